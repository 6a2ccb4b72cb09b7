"""A config's RoPE: read it, refuse what cannot be extended, write the interpolation into it, and check a loaded model.

A model has one set of ``rope_parameters``, or one for each kind of layer, as Gemma 3 does. Then the set of
``full_attention`` is extended. Sliding layers keep theirs, since they attend no farther than before.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from packaging.version import Version
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from skipwise.errors import ModelError, reason
from skipwise.method.interpolation import DEFAULTS, NAMES, Rope, RopeSettings, frequencies, rope_parameters
from skipwise.method.lengths import parse_length
from skipwise.method.limits import LONGEST
from skipwise.model.legacy_config import write_legacy_keys
from skipwise.model.memory import head_size
from skipwise.recipes.loading import load_recipe
from skipwise.recipes.schema import Recipe

_LEARNED = {"gpt2", "opt", "bert", "roberta", "gpt_bigcode", "gpt_neo", "distilbert", "electra", "xglm"}
_ALIBI = {"bloom", "mpt"}
CONVERTED = {"gptj", "baichuan"}
_FULL = "full_attention"
SCALED = {"linear", "yarn", "llama3", "longrope"}
_LARGE = 16  # times the original window
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
    _check_numbers(config, current)
    _check_scaling(config, current, existing_rope)
    own = original = _original_length(config, current)
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
    unscaled = Rope(float(current["rope_theta"]), rotated_dims(config, current), original)
    extension = Extension(unscaled, target, interpolation, settings, margin)
    frequencies(interpolation, unscaled, extension.factor, settings)  # refuses what this model cannot have
    return extension


def extension_of(config: PretrainedConfig, recipe: Recipe) -> Extension:
    """Return the extension that a recipe asks for, unless ``plan_extension`` or the model's class refuses it."""
    extension = plan_extension(
        config,
        target_length=recipe.target,
        original_length=recipe.original_length,
        interpolation=recipe.interpolation,
        rope=recipe.rope.model_dump(),
        existing_rope=recipe.existing_rope,
        margin=recipe.positions.margin,
    )
    _check_layer_kinds(config, extension.interpolation)
    _require_buildable(config, extension)
    return extension


def _check_layer_kinds(config: PretrainedConfig, interpolation: str) -> None:
    """Older transformers raise UnboundLocalError in the second forward of longrope for one of several layer kinds."""
    if interpolation in ("yarn-revised", "factors") and _FULL in config.rope_parameters:
        found = transformers.__version__
        if Version(found) < Version("5.21"):
            raise ModelError(
                f"interpolation {interpolation} fails in transformers {found} for a model with several kinds of layers; "
                "install transformers 5.21 or newer, or choose another --interpolation"
            )


def _require_buildable(config: PretrainedConfig, extension: Extension) -> None:
    """Write, read and build the extended model without weights, so that its class fails before training, not after it."""
    extended = copy.deepcopy(config)
    set_interpolation(extended, extension)
    try:
        with TemporaryDirectory() as folder, torch.device("meta"):
            extended.save_pretrained(folder)
            write_legacy_keys(Path(folder))
            read = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            AutoModelForCausalLM.from_config(read)
    except Exception as error:
        raise ModelError(
            f"a model of class {type(config).__name__} cannot be built with {extension.interpolation} x{extension.factor:g} ({reason(error)}); choose another "
            f"--interpolation of {', '.join(name for name in NAMES if name != 'none')}, or another model"
        ) from error


def set_interpolation(config: PretrainedConfig, extension: Extension) -> None:
    """Write the interpolation of ``extension`` into ``config``; the rotated part of each head stays."""
    current = rope_of(config)
    kept = {key: value for key, value in current.items() if key == "partial_rotary_factor"}
    asked = rope_parameters(extension.interpolation, extension.rope, extension.factor, extension.settings)
    new = {**kept, **asked}
    config.rope_parameters = {**config.rope_parameters, _FULL: new} if _FULL in config.rope_parameters else new
    config.max_position_embeddings = extension.reach
    if getattr(config, "head_dim", 0) is None:  # some classes' YaRN reads it and does not compute it
        config.head_dim = head_size(config)


def converted_first(kind: str, checkpoint: str | None) -> str:
    """Return the message for a model that ``skipwise convert`` must convert first."""
    return (
        f"model_type {kind} has rotary positions that its class cannot scale; write it as a stock class with the same "
        f"logits first: skipwise convert {checkpoint or 'CHECKPOINT'} OUT"
    )


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
    for module in model.modules():
        for prefix in ("", f"{_FULL}_"):
            inv_freq = getattr(module, f"{prefix}inv_freq", None)
            if isinstance(inv_freq, torch.Tensor):
                yield inv_freq, float(getattr(module, f"{prefix}attention_scaling", 1.0))


def rope_of(config: PretrainedConfig) -> dict[str, Any]:
    """Return the ``rope_parameters`` to extend: the model's one set, or that of its full-attention layers."""
    kind = config.model_type
    current = getattr(config, "rope_parameters", None)
    if kind in CONVERTED:
        raise ModelError(converted_first(kind, config.name_or_path))
    if not current and (text := config.get_text_config()) is not config:
        raise ModelError(
            f"model_type {kind} is a model of text and more; take its {text.model_type} alone: load it by its own class, "
            "save that model and its tokenizer in a folder, and give the folder"
        )
    if not current:
        what = "learned positions" if kind in _LEARNED else "ALiBi" if kind in _ALIBI else "no rope_parameters"
        raise ModelError(
            f"model_type {kind} has {what} in its config; PoSE needs rotary position embeddings whose scaling is set "
            "there, as in Llama, Mistral or Qwen"
        )
    extended = current.get(_FULL) or current
    if not isinstance(extended, dict) or ("rope_theta" not in extended and "rope_type" in extended):
        raise ModelError(
            f"config has rope_parameters {str(extended)[:80]}, which must give rope_theta, the base of the frequencies; "
            "correct config.json"
        )
    if "rope_theta" not in extended:
        raise ModelError(
            f"model_type {kind} has several RoPEs ({', '.join(map(str, current))}) and none for {_FULL} layers, "
            "the only ones that can be extended; choose a model that has such layers"
        )
    return extended


def sliding_layers(config: PretrainedConfig) -> str | None:
    """Return a sentence on the layers whose reach does not grow with the extension, or None if there are none."""
    kinds = getattr(config, "layer_types", None) or []
    if not slides(config) or _FULL not in kinds:
        return None
    own_rope = " and keep their own RoPE" if _FULL in config.rope_parameters else ""
    return (
        f"{kinds.count(_FULL)} of {len(kinds)} layers attend to all tokens and are extended; the others look back "
        f"{config.sliding_window:,} tokens{own_rope}"
    )


def extension_told(config: PretrainedConfig, extension: Extension, arm: str) -> str:
    """Return how a model is extended: ``131,072 -> 524,288 tokens (x4, yarn, skipwise)``, the first by the config as it comes."""
    scaled = rope_of(config).get("rope_type", "default") != "default"
    original = extension.rope.original_length
    comes = max(reach_of(config, original) or 0, original) if scaled else original
    return f"{comes:,} -> {extension.target_length:,} tokens (x{extension.factor:g}, {extension.told}, {arm})"


def replaced_scaling(config: PretrainedConfig, extension: Extension) -> str | None:
    """Return a sentence on the scaling of the config that the extension replaces, or None if it has none."""
    current = rope_of(config)
    kind, factor = current.get("rope_type", "default"), current.get("factor")
    if kind == "default":
        return None
    return (
        f"the model's own RoPE scaling, {kind}{f' x{factor:g}' if factor else ''}, is replaced: {extension.told} "
        f"x{extension.factor:g} starts from the original length, {extension.rope.original_length:,} tokens"
    )


def large_factor(extension: Extension) -> str | None:
    """Return a sentence on a factor at which YaRN read far text worse on a model that was measured, or None at a smaller one."""
    times = extension.target_length / extension.rope.original_length
    if times < _LARGE or extension.interpolation not in ("yarn", "yarn-revised"):
        return None
    return (
        f"note: {times:g} times the original window. On one of two models, at {_LARGE} times, text far back harmed under YaRN and not "
        "under ntk: compare interpolations first (docs/tutorials/choose-and-read.md)"
    )


def _check_numbers(config: PretrainedConfig, current: dict[str, Any]) -> None:
    """Refuse a config whose RoPE cannot be computed."""
    _require_number("max_position_embeddings", getattr(config, "max_position_embeddings", None), "at least 1")
    _require_number("rope_theta", current["rope_theta"], "above 1")
    if current.get("factor") is not None:  # longrope has a list instead
        _require_number("rope factor", current["factor"], "at least 1")
    if current.get("original_max_position_embeddings") is not None:
        _require_number("original_max_position_embeddings", current["original_max_position_embeddings"], "at least 1")
    share = current.get("partial_rotary_factor", 1.0)
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise ModelError(
            f"config has partial_rotary_factor {share!r}, which must be above 0 and at most 1; correct config.json"
        )
    try:
        dims = rotated_dims(config, current)
    except (AttributeError, RuntimeError):  # the second where transformers refuses to name one for all layers
        raise ModelError(
            f"config of type {config.model_type} has no head_dim, hidden_size or num_attention_heads that holds for all layers, "
            "so its frequencies cannot be set; choose another model"
        ) from None
    if dims < 2 or dims % 2:
        raise ModelError(
            f"config has {dims} dims to rotate in each head, which must be an even number of at least 2; correct head_dim, "
            "hidden_size, num_attention_heads or partial_rotary_factor in it"
        )


def _require_number(name: str, value: Any, rule: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 1 or (rule == "above 1" and value == 1):
        raise ModelError(f"config has {name} {value!r}, which must be a number {rule}; correct config.json")


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
    original = _original_length(config, current)
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


def slides(config: PretrainedConfig) -> bool:
    """Return whether any layer attends to the last tokens alone; configs of older classes do not list their layers."""
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None) or ["sliding_attention"]
    return bool(window and getattr(config, "use_sliding_window", True) is not False and "sliding_attention" in layers)


def original_length(config: PretrainedConfig) -> int:
    """Return L_o as a config gives it; an NTK extension changes theta alone and is not recognised."""
    try:
        current = rope_of(config)
    except ModelError:  # not rotary
        current = {}
    return _original_length(config.get_text_config(), current)


def _original_length(config: PretrainedConfig, current: dict[str, Any]) -> int:
    """Return L_o: what a scaling gives, else the window divided by a linear factor, else the window.

    A linear scaling may leave ``max_position_embeddings`` at the base's value, which cannot be told from a raised one.
    """
    kind = current.get("rope_type", "default")
    given = None if kind == "default" else current.get("original_max_position_embeddings")
    if given is None and kind == "linear":
        _require_number("rope factor", current.get("factor"), "at least 1")
        return int(config.max_position_embeddings / current["factor"])
    if given is not None:
        _require_number("original_max_position_embeddings", given, "at least 1")
    return int(given or config.max_position_embeddings)


def reach_of(config: PretrainedConfig, original: int | None = None) -> int | None:
    """Return how many positions a model's RoPE was made for by its config; None if it does not say.

    ``max_position_embeddings`` is that length under llama3 and longrope, and in every model that Skipwise extended. Under
    yarn, linear and dynamic it may have stayed at the original length, as Qwen's model cards advise: then it is the original
    length times the factor. A linear or dynamic scaling does not state the original length, and without ``original`` it is
    taken for ``max_position_embeddings``: so a linear model whose length was raised already is said to read more than it does.
    """
    longest = getattr(config, "max_position_embeddings", None)
    # With a set for each kind of layer there is no rope_type, and the length is the one that is reached.
    rope = getattr(config, "rope_parameters", None) or {}
    if not isinstance(longest, int) or rope.get("rope_type") not in ("yarn", "linear", "dynamic"):
        return longest if isinstance(longest, int) else None
    stated, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    original = stated if isinstance(stated, int) and stated else original or longest
    factor = factor if isinstance(factor, int | float) and math.isfinite(factor) else 1
    return max(longest, round(original * factor))


def rotated_dims(config: PretrainedConfig, current: dict[str, Any]) -> int:
    """Return how many dimensions of each head a model rotates by its ``rope_parameters``."""
    return int(head_size(config) * current.get("partial_rotary_factor", 1.0))
