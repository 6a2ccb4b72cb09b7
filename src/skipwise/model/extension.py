"""Plan an extension by a config's RoPE, write it into the config, and check the frequencies of a loaded model."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from skipwise.errors import ModelError, RecipeError, library_errors
from skipwise.method.interpolation import DEFAULTS, Rope, RopeSettings, frequencies, rope_parameters
from skipwise.method.lengths import LONGEST, WINDOW, parse_length
from skipwise.model.config import (
    FULL,
    head_size,
    original_length as stated_length,
    reach_of,
    read_rope_origin,
    rope_of,
    rotated_dims,
    slides,
    slides_in_some,
    write_legacy_keys,
)
from skipwise.recipes.loading import load_recipe
from skipwise.recipes.schema import AUTO, Recipe

KEPT = "kept"  # the interpolation of a model that keeps its window: its RoPE, scaled or not, stays
_FITTED_FROM = 8  # times the original length (docs/method.md)
_REPLACEABLE = ("linear", "yarn", "llama3", "longrope", "dynamic")  # scalings


@dataclass(frozen=True)
class Extension:
    """The original RoPE, the target length and the interpolation."""

    rope: Rope  # unscaled, with the original length
    target_length: int  # L_t in tokens
    interpolation: str  # a name of ``skipwise.method.interpolation.INTERPOLATIONS``, or ``KEPT``
    settings: RopeSettings = DEFAULTS

    def __repr__(self) -> str:
        """Return the fields; settings only if set, because records are found by a hash of this."""
        shown = {key: value for key, value in vars(self).items() if key != "settings" or value != DEFAULTS}
        return f"Extension({', '.join(f'{key}={value!r}' for key, value in shown.items())})"

    @property
    def factor(self) -> float:
        """alpha = L_t / L_o."""
        return self.target_length / self.rope.original_length

    @property
    def description(self) -> str:
        """Name of the interpolation, with its settings."""
        return f"{self.interpolation} ({self.settings})" if self.settings != DEFAULTS else self.interpolation


def plan_extension(
    config: PretrainedConfig,
    *,
    target_length: int | str | None = None,
    original_length: int | str | None = None,
    interpolation: str | None = None,
    rope: Mapping[str, Any] | None = None,
    base_theta: float | None = None,
) -> Extension:
    """Return the extension of a model to ``target_length``.

    Args:
        config: the config of any model with ``rope_parameters``.
        target_length: L_t in tokens, as 32768 or "32k"; "window": the model's own, and its RoPE stays; default: 8 times the
            original length.
        original_length: L_o, if the config does not have the right one.
        interpolation: a name of ``skipwise.method.interpolation.INTERPOLATIONS``; it replaces a scaling that the config already has.
            Default: ``none``, and a config with a scaling is refused.
        rope: settings of the interpolation, as in a recipe's section ``rope``: ``{"rope_theta": 5e6}``.
        base_theta: ``rope_theta`` before any scaling, if the config has another.

    Raises:
        ModelError: no RoPE, a scaling that switches or exists already, an ``original_length`` beyond the config's positions,
            a target not above the original length, or a sliding window below the target.
        RecipeError: an unknown interpolation or ``rope`` setting, or a bad value.
    """
    name = interpolation or "none"
    settings = load_recipe(None, {"interpolation": name, "rope": dict(rope or {})}).rope.settings
    current = rope_of(config)
    stated = original = stated_length(config)
    window = (reach_of(config) if current.get("rope_type") == "yarn" else config.max_position_embeddings) or stated
    if target_length == WINDOW:
        if interpolation is not None or settings != DEFAULTS:
            raise RecipeError(
                f"target {WINDOW} keeps the model's RoPE, and interpolation {name} replaces it. Leave interpolation and rope "
                "out, or give a length as the target"
            )
        window = parse_length(original_length or window)
        return Extension(Rope(float(current["rope_theta"]), rotated_dims(config, current), window), window, KEPT)
    if (
        stated < window
        and interpolation is None
        and target_length is not None
        and parse_length(target_length) <= window
    ):
        raise ModelError(
            f"the model reads {window:,} tokens already, by {current['rope_type']}. Give a longer target, or {WINDOW}: then training "
            "keeps that window"
        )
    _check_scaling(current, stated, replaced=interpolation is not None)
    if original_length is not None:
        original, longest = parse_length(original_length), max(stated, config.max_position_embeddings)
        if original > longest:  # of another model's recipe: the factor would be too small
            raise ModelError(
                f"original_length {original:,} exceeds the {longest:,} positions of the config. Leave it out (for a recipe of "
                "another model: --set original_length=null), or correct max_position_embeddings in config.json"
            )
    target = parse_length(target_length) if target_length is not None else 8 * original
    if not original < target <= LONGEST:
        raise ModelError(
            f"target {target:,} must exceed the {original:,} tokens that the model reads already, and be at most {LONGEST:,}. "
            f"Give another target, {WINDOW} to keep that window, or original_length if the model reads less"
        )
    if slides(config) and not slides_in_some(config) and config.sliding_window < target:
        raise ModelError(
            f"config has sliding_window {config.sliding_window:,} in all layers, below the target {target:,}. Set "
            "sliding_window to null in config.json if the model tolerates full attention, or choose another model"
        )
    unscaled = Rope(float(base_theta or current["rope_theta"]), rotated_dims(config, current), original)
    extension = Extension(unscaled, target, name, settings)
    frequencies(name, unscaled, extension.factor, settings)  # refuses settings that do not fit the model
    return extension


def extension_of(config: PretrainedConfig, recipe: Recipe) -> Extension:
    """Return the extension of a recipe; a model that Skipwise extended is extended again from its base's RoPE.

    ``fitted`` is planned as ``power`` before the fit. ``auto`` is YaRN below 8 times the original length, and replaces no scaling.
    """
    origin, automatic = read_rope_origin(recipe.model), recipe.interpolation == AUTO
    if recipe.target == WINDOW:
        return plan_extension(
            config,
            target_length=WINDOW,
            original_length=recipe.original_length,
            interpolation=None if automatic else recipe.interpolation,
            rope=recipe.rope.model_dump(),
        )
    name = "power" if recipe.is_fitted else recipe.interpolation
    extension = plan_extension(
        config,
        target_length=recipe.target,
        original_length=recipe.original_length or (origin.original_length if origin else None),
        interpolation=None if automatic and not origin else name,
        rope=recipe.rope.model_dump(),
        base_theta=origin.rope_theta if origin else None,
    )
    if automatic:
        far = extension.target_length >= _FITTED_FROM * extension.rope.original_length
        extension = replace(extension, interpolation="power" if far else "yarn")
    extended = copy.deepcopy(config)
    set_interpolation(extended, extension)
    problem = f"{type(config).__name__} does not take {extension.interpolation} x{extension.factor:g}"
    fix = "Choose --interpolation ntk or yarn-revised, or another model"
    with library_errors(ModelError, problem, fix), TemporaryDirectory() as folder, torch.device("meta"):
        extended.save_pretrained(folder)  # write, read and build the extended model without weights
        write_legacy_keys(Path(folder))
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, trust_remote_code=False))
    return extension


def set_interpolation(config: PretrainedConfig, extension: Extension) -> None:
    """Write the interpolation into ``config``; the rotated share of each head stays, and all of it if the window is kept."""
    if extension.interpolation == KEPT:
        return
    kept = {key: value for key, value in rope_of(config).items() if key == "partial_rotary_factor"}
    new = kept | rope_parameters(extension.interpolation, extension.rope, extension.factor, extension.settings)
    config.rope_parameters = {**config.rope_parameters, FULL: new} if FULL in config.rope_parameters else new
    config.max_position_embeddings = extension.target_length
    if getattr(config, "head_dim", 0) is None:  # some classes' YaRN reads it and does not compute it
        config.head_dim = head_size(config)


def check_frequencies(model: torch.nn.Module, extension: Extension) -> None:
    """Require every rotary buffer to be float32 and within 1e-6 of the formula; a kept RoPE has none of ours."""
    require_float32_frequencies(model)
    name, factor = extension.interpolation, extension.factor
    if name == KEPT:
        return
    expected, attention_factor = frequencies(name, extension.rope, factor, extension.settings)
    for module, prefix in _rotary_modules(model):
        actual = getattr(module, f"{prefix}inv_freq").detach().cpu().numpy().astype(np.float64)
        scaling = float(getattr(module, f"{prefix}attention_scaling", 1.0))
        close = actual.shape == expected.shape and np.allclose(actual, expected, rtol=1e-6, atol=0)
        if not close or abs(scaling - attention_factor) > 1e-6:
            what = f"an attention factor of {scaling}" if close else "other rotary frequencies"
            raise ModelError(
                f"the model has {what}, not those of {name} x{factor:g}: its code ignores rope_parameters. Choose another "
                "model or --interpolation"
            )


def require_float32_frequencies(model: torch.nn.Module) -> None:
    """Require rotary frequencies that no cast has rounded: ``.to(bfloat16)`` moves position 2,047 by 2.5 rad."""
    kinds = {getattr(module, f"{prefix}inv_freq").dtype for module, prefix in _rotary_modules(model)}
    if not kinds:
        raise ModelError("the model has no rotary frequencies (inv_freq). PoSE needs rotary position embeddings")
    if rounded := kinds - {torch.float32}:
        raise ModelError(
            f"rotary frequencies are {rounded.pop()}, which rounds positions. Load the model with dtype= instead of casting it"
        )


def _rotary_modules(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str]]:
    """Yield the modules with extended inverse frequencies, and the prefix of their buffers."""
    for module in model.modules():
        for prefix in ("", f"{FULL}_"):
            if isinstance(getattr(module, f"{prefix}inv_freq", None), torch.Tensor):
                yield module, prefix


def set_frequencies(model: torch.nn.Module, extension: Extension) -> None:
    """Set the frequencies of a model loaded without a scaling, which some classes compute at each call; its config stays."""
    wanted, attention = frequencies(extension.interpolation, extension.rope, extension.factor, extension.settings)
    for module, prefix in _rotary_modules(model):
        getattr(module, f"{prefix}inv_freq").copy_(torch.from_numpy(wanted))
        setattr(module, f"{prefix}attention_scaling", attention)
    check_frequencies(model, extension)


def _check_scaling(current: dict[str, Any], original: int, *, replaced: bool) -> None:
    """Refuse an existing scaling unless it is to be replaced."""
    kind, factor = str(current.get("rope_type", "default")), current.get("factor")
    if kind == "default" or (replaced and kind in _REPLACEABLE):
        return
    fix = "Start from the base model; convert a checkpoint of PoSE's authors first: skipwise convert CHECKPOINT OUT"
    if kind in _REPLACEABLE:
        fix = f"--interpolation yarn replaces it, with original_length if it is not {original:,}; or start from the base model"
    raise ModelError(f"config is already {kind}{f' x{factor:g}' if factor else ''} (original {original:,}). {fix}")
