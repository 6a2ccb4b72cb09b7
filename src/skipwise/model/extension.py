"""The extension of a model: plan it by the config's RoPE, write it into the config, and check a loaded model.

A config that cannot be extended is refused here, before anything is trained.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from packaging.version import Version
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from skipwise.errors import ModelError, reason
from skipwise.method.interpolation import DEFAULTS, Rope, RopeSettings, frequencies, rope_parameters
from skipwise.method.lengths import parse_length
from skipwise.method.limits import LONGEST
from skipwise.model.legacy_config import write_legacy_keys
from skipwise.model.memory import head_size
from skipwise.model.origin import read_origin
from skipwise.model.rope import FULL, SCALED, check_numbers, reach_of, rope_of, rotated_dims, slides, sliding_layers
from skipwise.model.rope import original_length as own_length
from skipwise.recipes.loading import load_recipe
from skipwise.recipes.schema import AUTO, Recipe

_LARGE = 16  # times the original window
_FITTED_FROM = 8  # times the original window (docs/fit.md)
_WITHOUT_SETTINGS = ("linear", "ntk", "yarn", "yarn-revised", "power")  # interpolations that need none
_REPLACE = (
    "choose --existing-rope replace (in Python, give load_model an extension of "
    'plan_extension(..., existing_rope="replace"))'
)


@dataclass(frozen=True)
class Extension:
    """The extension of a model: its original RoPE, the length to reach, the interpolation and its settings."""

    rope: Rope  # unscaled, with the original length
    target_length: int  # L_t in tokens
    interpolation: str  # a name of ``skipwise.method.interpolation.NAMES``
    settings: RopeSettings = DEFAULTS
    margin: float = 0.0  # share of the target

    def __repr__(self) -> str:
        """The fields; these two only if they are set, because what was measured is recognised by a digest of this."""
        unset = {"settings": DEFAULTS, "margin": 0.0}
        shown = {key: value for key, value in vars(self).items() if key not in unset or value != unset[key]}
        return f"Extension({', '.join(f'{key}={value!r}' for key, value in shown.items())})"

    @property
    def reach(self) -> int:
        """The positions that are interpolated and trained, in tokens: the target and the margin beyond it.

        The interpolation maps the last positions to those at the edge of the original window, where the base was trained
        least. With a margin they lie beyond the target.
        """
        return round(self.target_length * (1 + self.margin))

    @property
    def factor(self) -> float:
        """alpha, what is reached over L_o; without a margin L_t / L_o."""
        return self.reach / self.rope.original_length

    @property
    def told(self) -> str:
        """The interpolation, with the settings that were stated."""
        return f"{self.interpolation} ({self.settings})" if self.settings != DEFAULTS else self.interpolation


def plan_extension(
    config: PretrainedConfig,
    *,
    target_length: int | str | None = None,
    original_length: int | str | None = None,
    interpolation: str = "none",
    rope: Mapping[str, Any] | None = None,
    existing_rope: str = "refuse",
    base_theta: float | None = None,
    margin: float = 0.0,
) -> Extension:
    """Read a config's RoPE and window, and return the extension to ``target_length``.

    Args:
        config: the config of any model with ``rope_parameters``.
        target_length: L_t in tokens, as 32768 or "32k"; default: 8 times the original.
        original_length: L_o, if the config does not give the true one.
        interpolation: a name of ``skipwise.method.interpolation.NAMES``.
        rope: settings of the interpolation, as a recipe's section ``rope`` has them: ``{"rope_theta": 5e6}``.
        existing_rope: ``replace`` drops a scaling that the config already has.
        base_theta: ``rope_theta`` before any scaling, if the config has another.
        margin: share of the target by which positions are extended beyond it (``Extension.reach``), 0 to 1.

    Raises:
        ModelError: no RoPE, one that switches or is scaled already, an ``original_length`` beyond the config's positions,
            a target not above the original, or a sliding window below it.
        RecipeError: the interpolation or ``existing_rope`` is unknown, or a setting of ``rope`` is, or breaks its rule.
    """
    given = {"interpolation": interpolation, "existing_rope": existing_rope, "rope": dict(rope or {})}
    given["positions"] = {"margin": margin}
    settings = load_recipe(None, given).rope.settings
    current = rope_of(config)
    check_numbers(config, current)
    _check_scaling(config, current, existing_rope)
    own = original = own_length(config)
    if original_length is not None:
        original = parse_length(original_length)
        _check_given_length(original, max(own, config.max_position_embeddings))
    target = parse_length(target_length) if target_length is not None else 8 * original
    if original < 2:
        raise ModelError(f"original length {original} must be at least 2 tokens; give original_length")
    if target * (1 + margin) > LONGEST:
        beyond = f" and its margin of {margin:.1%}" if margin else ""
        raise ModelError(f"target {target:,}{beyond} must be at most {LONGEST:,} tokens; give a smaller target")
    if target <= original:
        raise ModelError(
            f"target {target:,} must exceed the model's {original:,} tokens; "
            "give a larger target, or original_length if the config does not give the true window"
        )
    _check_sliding_window(config, target)
    unscaled = Rope(float(base_theta or current["rope_theta"]), rotated_dims(config, current), original)
    extension = Extension(unscaled, target, interpolation, settings, margin)
    frequencies(interpolation, unscaled, extension.factor, settings)  # refuses what this model cannot have
    return extension


def extension_of(config: PretrainedConfig, recipe: Recipe) -> Extension:
    """Return the extension that a recipe asks for, unless ``plan_extension`` or the model's class refuses it.

    A model that Skipwise extended is extended again from its base's RoPE. A fit that is still to be made is planned as ``power``;
    ``auto`` is YaRN below 8 times the window.
    """
    origin = read_origin(recipe.model)
    extension = plan_extension(
        config,
        target_length=recipe.target,
        original_length=recipe.original_length or (origin.original_length if origin else None),
        interpolation="power" if recipe.is_fitted else recipe.interpolation,
        rope=recipe.rope.model_dump(),
        existing_rope="replace" if origin else recipe.existing_rope,
        base_theta=origin.rope_theta if origin else None,
        margin=recipe.positions.margin,
    )
    if recipe.interpolation == AUTO and extension.target_length < _FITTED_FROM * extension.rope.original_length:
        extension = replace(extension, interpolation="yarn")
    _check_layer_kinds(config, extension.interpolation)
    _require_buildable(config, extension)
    return extension


def set_interpolation(config: PretrainedConfig, extension: Extension) -> None:
    """Write the interpolation of ``extension`` into ``config``; the rotated part of each head stays."""
    current = rope_of(config)
    kept = {key: value for key, value in current.items() if key == "partial_rotary_factor"}
    asked = rope_parameters(extension.interpolation, extension.rope, extension.factor, extension.settings)
    new = {**kept, **asked}
    config.rope_parameters = {**config.rope_parameters, FULL: new} if FULL in config.rope_parameters else new
    config.max_position_embeddings = extension.reach
    if getattr(config, "head_dim", 0) is None:  # some classes' YaRN reads it and does not compute it
        config.head_dim = head_size(config)


def check_frequencies(model: torch.nn.Module, extension: Extension) -> None:
    """Require every rotary buffer to be float32 and within 1e-6 of the formula.

    A model cast with ``.to(bfloat16)`` fails: its rounded frequencies are off by 2.5 rad at position 2,047.
    """
    name, factor = extension.interpolation, extension.factor
    expected, attention_factor = frequencies(name, extension.rope, factor, extension.settings)
    ignored = "a code path of this model ignores its rope_parameters"
    buffers = list(_rotary_buffers(model))
    if not buffers:
        raise ModelError("the model has no rotary frequencies (inv_freq); PoSE needs rotary positions")
    for inv_freq, scaling in buffers:
        if inv_freq.dtype != torch.float32:
            raise ModelError(
                f"rotary frequencies are {inv_freq.dtype}, which rounds positions; load the model with dtype=, "
                "do not cast a loaded one"
            )
        actual = inv_freq.detach().cpu().numpy().astype(np.float64)
        if actual.shape != expected.shape or not np.allclose(actual, expected, rtol=1e-6, atol=0):
            raise ModelError(f"the model computes other rotary frequencies than {name} x{factor:g} asks for; {ignored}")
        if abs(scaling - attention_factor) > 1e-6:
            asked = f"{name} asks for {attention_factor:.6f}"
            raise ModelError(f"the model scales attention by {scaling}, {asked}; {ignored}")


def _rotary_buffers(model: torch.nn.Module) -> Iterator[tuple[torch.Tensor, float]]:
    """Yield the inverse frequencies and the attention factor of each extended rotary embedding."""
    for module, prefix in _rotary_modules(model):
        yield getattr(module, f"{prefix}inv_freq"), float(getattr(module, f"{prefix}attention_scaling", 1.0))


def _rotary_modules(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str]]:
    """Yield the modules that hold inverse frequencies, and how the names of those that are extended begin."""
    for module in model.modules():
        for prefix in ("", f"{FULL}_"):
            if isinstance(getattr(module, f"{prefix}inv_freq", None), torch.Tensor):
                yield module, prefix


def set_frequencies(model: torch.nn.Module, extension: Extension) -> None:
    """Give a loaded model the frequencies of an extension; its config stays.

    The model must have been loaded without a scaling, which some classes compute anew at each call.
    """
    wanted, attention = frequencies(extension.interpolation, extension.rope, extension.factor, extension.settings)
    for module, prefix in _rotary_modules(model):
        inv_freq = getattr(module, f"{prefix}inv_freq")
        inv_freq.copy_(torch.from_numpy(wanted))
        setattr(module, f"{prefix}attention_scaling", attention)
    check_frequencies(model, extension)


def extension_told(config: PretrainedConfig, extension: Extension, recipe: Recipe) -> str:
    """Return lengths and interpolation as ``131,072 -> 524,288 tokens (x4, yarn, skipwise)``; the first is the config's."""
    scaled = rope_of(config).get("rope_type", "default") != "default"
    original = extension.rope.original_length
    comes = max(reach_of(config, original) or 0, original) if scaled else original
    unfitted = recipe.is_fitted and extension.interpolation == "power"
    name = "fitted" if unfitted else extension.told
    return f"{comes:,} -> {extension.target_length:,} tokens (x{extension.factor:g}, {name}, {recipe.arm})"


def replaced_scaling(config: PretrainedConfig, extension: Extension) -> str | None:
    """Return a sentence on the scaling of the config that the extension replaces, or None if it has none."""
    current = rope_of(config)
    kind, factor = current.get("rope_type", "default"), current.get("factor")
    if kind == "default":
        return None
    return (
        f"the model's own RoPE scaling, {kind}{f' x{factor:g}' if factor else ''}, is replaced: x{extension.factor:g} "
        f"starts from the original length, {extension.rope.original_length:,} tokens{_shorter(config, extension)}"
    )


def _shorter(config: PretrainedConfig, extension: Extension) -> str:
    """What is said of a target below the length that the config gives; nothing for a longer target."""
    reads = reach_of(config, extension.rope.original_length) or 0
    if reads <= extension.target_length:
        return ""
    return f"; its config says that it reads {reads:,} already, more than the target"


def large_factor(extension: Extension) -> str | None:
    """Return a sentence on a factor at which YaRN read far text worse on a model that was measured, or None at a smaller one."""
    times = extension.target_length / extension.rope.original_length
    if times < _LARGE or extension.interpolation not in ("yarn", "yarn-revised"):
        return None
    return (
        f"note: {times:g} times the original window. At {_LARGE} times YaRN fails on one of two models, and fitted settings do not: "
        "--interpolation fitted, or skipwise fit (docs/fit.md)"
    )


def _check_scaling(config: PretrainedConfig, current: dict[str, Any], existing_rope: str) -> None:
    """Refuse an existing scaling, unless it can be replaced and is to be."""
    kind, factor = str(current.get("rope_type", "default")), current.get("factor")
    if kind == "default" or (existing_rope == "replace" and kind in SCALED | {"dynamic"}):
        return
    one_list = kind == "longrope" and current.get("short_factor") == current.get("long_factor")
    if kind in ("dynamic", "longrope") and not one_list:
        raise ModelError(
            f"config has {kind} RoPE, whose frequencies switch with the longest position of each batch: it cannot "
            f"be trained on; {_REPLACE}, or start from the base model"
        )
    times = f" x{factor:g}" if factor else ""
    if kind == "vanilla_ntk":
        raise ModelError(
            f"config is already vanilla_ntk{times}, by which PoSE's authors mean NTK: skipwise convert CHECKPOINT OUT "
            "writes it as a stock checkpoint; or start from the base model"
        )
    if kind not in SCALED:
        raise ModelError(
            f"config is already {kind}{times}, an unknown scaling that cannot be replaced; start from the base model"
        )
    original = own_length(config)
    guessed = kind == "linear" and "original_max_position_embeddings" not in current
    unless = f", with original_length if its true window is not {original:,}" if guessed else ""
    raise ModelError(
        f"config is already {kind}{times} (original {original:,}): {_REPLACE}{unless}, or start from the base model"
    )


def _check_given_length(original: int, longest: int) -> None:
    """Refuse an original length beyond the config's window, as that of another model's recipe: the factor would be too small."""
    if original > longest:
        raise ModelError(
            f"original_length {original:,} exceeds the {longest:,} positions of the model's config; leave it out (of a recipe "
            "made for another model: --set original_length=null), or correct max_position_embeddings in config.json"
        )


def _check_sliding_window(config: PretrainedConfig, target: int) -> None:
    """Refuse a model in which every layer slides: it counts tokens, so skipped positions never reach the target."""
    if slides(config) and not sliding_layers(config) and config.sliding_window < target:
        raise ModelError(
            f"config has sliding_window {config.sliding_window:,}, below the target {target:,}: no token would attend "
            "that far in training; set sliding_window to null in config.json if the model tolerates full "
            "attention, or choose another model"
        )


def _check_layer_kinds(config: PretrainedConfig, interpolation: str) -> None:
    """Older transformers raise UnboundLocalError in the second forward of longrope for one of several layer kinds."""
    if interpolation in ("yarn-revised", "power", "factors") and FULL in config.rope_parameters:
        found = transformers.__version__
        if Version(found) < Version("5.21"):
            raise ModelError(
                f"interpolation {interpolation} fails in transformers {found} for a model with several kinds of layers; "
                "install transformers 5.21 or newer, or choose another --interpolation"
            )


def _require_buildable(config: PretrainedConfig, extension: Extension) -> None:
    """Require the model's class to take the interpolation, before training and not after it."""
    try:
        _build(config, extension)
    except Exception as error:
        others = (replace(extension, interpolation=name, settings=RopeSettings()) for name in _WITHOUT_SETTINGS)
        builds = [one.interpolation for one in others if _is_buildable(config, one)]
        choose = f"--interpolation {' or '.join(builds)}, or " if builds else ""
        raise ModelError(
            f"a model of class {type(config).__name__} cannot be built with {extension.interpolation} x{extension.factor:g} ({reason(error)}); "
            f"choose {choose}another model"
        ) from error


def _build(config: PretrainedConfig, extension: Extension) -> None:
    """Write, read and build the extended model without weights."""
    extended = copy.deepcopy(config)
    set_interpolation(extended, extension)
    with TemporaryDirectory() as folder, torch.device("meta"):
        extended.save_pretrained(folder)
        write_legacy_keys(Path(folder))
        read = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        AutoModelForCausalLM.from_config(read)


def _is_buildable(config: PretrainedConfig, extension: Extension) -> bool:
    try:
        _check_layer_kinds(config, extension.interpolation)
        _build(config, extension)
    except Exception:  # of the architecture's own code
        return False
    return True
