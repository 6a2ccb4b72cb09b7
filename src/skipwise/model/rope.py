"""A config's RoPE: read it, refuse what cannot be extended, write the interpolation into it, and prove it in a model.

A model may have one set of ``rope_parameters``, or one for each kind of its layers, as Gemma 3: then those of
``full_attention`` are extended, and layers that slide keep theirs, since no token looks further there than before.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from skipwise.errors import ModelError
from skipwise.method.interpolation import NAMES, Rope, frequencies, rope_parameters
from skipwise.recipes.schema import Recipe

_LEARNED = {"gpt2", "opt", "bert", "roberta", "gpt_bigcode", "gpt_neo", "distilbert", "electra", "xglm"}
_ALIBI = {"bloom", "mpt"}
CONVERTED = {"gptj", "baichuan"}
_FULL = "full_attention"
SCALED = {"linear", "yarn", "llama3", "longrope"}


@dataclass(frozen=True)
class Extension:
    """What is asked of a model: its own window, the one to reach, and how.

    Attributes:
        rope: the model's unscaled RoPE, original length included.
        target_length: L_t in tokens.
        interpolation: a name of ``skipwise.method.interpolation.NAMES``.
    """

    rope: Rope
    target_length: int
    interpolation: str

    @property
    def factor(self) -> float:
        """alpha = L_t / L_c."""
        return self.target_length / self.rope.original_length


def plan_extension(
    config: PretrainedConfig,
    *,
    target_length: int | None = None,
    original_length: int | None = None,
    interpolation: str = "none",
    existing_rope: str = "refuse",
) -> Extension:
    """Read a config's RoPE and window, and say what extending it means.

    Args:
        config: of any model with ``rope_parameters``.
        target_length: L_t; default 8 times the original.
        original_length: L_c, where the config does not say it truly.
        interpolation: a name of ``skipwise.method.interpolation.NAMES``.
        existing_rope: ``replace`` drops a scaling that the config already has.

    Raises:
        ModelError: no RoPE, one that switches or is scaled already, a target not above the original, or a
            sliding window below it.
    """
    current = rope_of(config)
    _check_numbers(config, current)
    scaled = _check_scaling(config, current, existing_rope)
    original = original_length or _original_length(config, current if scaled else {})
    target = target_length or 8 * original
    if target <= original:
        raise ModelError(
            f"target {target:,} must exceed the model's {original:,} tokens; "
            "give a larger --target, or original_length if the config does not say the true window"
        )
    _check_sliding_window(config, target)
    rope = Rope(float(current["rope_theta"]), _rotated_dims(config, current), original)
    return Extension(rope, target, interpolation)


def extension_of(config: PretrainedConfig, recipe: Recipe) -> Extension:
    """What a recipe asks of a model.

    Raises:
        ModelError: what ``plan_extension`` refuses, or the model's class does.
    """
    extension = plan_extension(
        config,
        target_length=recipe.target,
        original_length=recipe.original_length,
        interpolation=recipe.interpolation,
        existing_rope=recipe.existing_rope,
    )
    _require_buildable(config, extension)
    return extension


def _require_buildable(config: PretrainedConfig, extension: Extension) -> None:
    """Write the extended config, read it again and build its model without weights: what is refused there, by whatever
    error of its class, would be refused after training."""
    extended = copy.deepcopy(config)
    set_interpolation(extended, extension)
    try:
        with TemporaryDirectory() as folder, torch.device("meta"):
            extended.save_pretrained(folder)
            read = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            AutoModelForCausalLM.from_config(read)
    except Exception as error:
        told = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(
            f"{type(config).__name__} cannot hold {extension.interpolation} x{extension.factor:g} ({told}); choose another "
            f"--interpolation of {', '.join(name for name in NAMES if name != 'none')}, or another model"
        ) from error


def set_interpolation(config: PretrainedConfig, extension: Extension) -> None:
    """Write what ``extension`` asks for into ``config``; the share of each head that is rotated stays."""
    current = rope_of(config)
    kept = {key: value for key, value in current.items() if key == "partial_rotary_factor"}
    new = {**kept, **rope_parameters(extension.interpolation, extension.rope, extension.factor)}
    config.rope_parameters = (
        {**config.rope_parameters, _FULL: new} if _FULL in config.rope_parameters else new
    )
    config.max_position_embeddings = extension.target_length
    if getattr(config, "head_dim", 0) is None:  # left to be computed, which not every class's YaRN does
        config.head_dim = config.hidden_size // config.num_attention_heads


def converted_first(kind: str, checkpoint: str | None) -> str:
    """What to say of a model that needs ``skipwise convert`` before."""
    return (
        f"model_type {kind} has rotary positions that its class cannot scale; write it as a stock class with the same "
        f"logits first: skipwise convert {checkpoint or 'CHECKPOINT'} OUT"
    )


def check_frequencies(model: torch.nn.Module, extension: Extension) -> None:
    """Require every rotary buffer to be float32 and within 1e-6 of the formula.

    A model cast with ``.to(bfloat16)`` fails here: rounded frequencies are 2.5 rad off at position 2,047.

    Raises:
        ModelError: a buffer is of another type or value, or there is none.
    """
    wanted, attention_factor = frequencies(extension.interpolation, extension.rope, extension.factor)
    found = list(_rotary_buffers(model))
    if not found:
        raise ModelError("the model has no rotary frequencies (inv_freq); PoSE needs rotary positions")
    for inv_freq, scaling in found:
        if inv_freq.dtype != torch.float32:
            raise ModelError(
                f"rotary frequencies are {inv_freq.dtype}, which rounds positions; load the model with dtype=, "
                "do not cast a loaded one"
            )
        actual = inv_freq.detach().cpu().numpy().astype(np.float64)
        if actual.shape != wanted.shape or not np.allclose(actual, wanted, rtol=1e-6, atol=0):
            raise ModelError(
                f"the model computes other rotary frequencies than {extension.interpolation} x{extension.factor:g} "
                "asks for; a code path of this model ignores its rope_parameters"
            )
        if abs(scaling - attention_factor) > 1e-6:
            raise ModelError(
                f"the model scales attention by {scaling}, {extension.interpolation} asks for "
                f"{attention_factor:.6f}"
            )


def _rotary_buffers(model: torch.nn.Module) -> Iterator[tuple[torch.Tensor, float]]:
    """Inverse frequencies and attention factor wherever the model has those that are extended."""
    for module in model.modules():
        for prefix in ("", f"{_FULL}_"):
            inv_freq = getattr(module, f"{prefix}inv_freq", None)
            if isinstance(inv_freq, torch.Tensor):
                yield inv_freq, float(getattr(module, f"{prefix}attention_scaling", 1.0))


def rope_of(config: PretrainedConfig) -> dict[str, Any]:
    """The ``rope_parameters`` that are extended: the model's one set, or that of its full-attention layers.

    Raises:
        ModelError: there are none, or none of full attention.
    """
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
        what = (
            "learned positions" if kind in _LEARNED else "ALiBi" if kind in _ALIBI else "no rope_parameters"
        )
        raise ModelError(
            f"model_type {kind} has {what} in its config; PoSE needs rotary position embeddings that can be set there, as "
            "Llama's, Mistral's or Qwen's can"
        )
    one = current.get(_FULL) or current
    if "rope_theta" not in one:
        raise ModelError(
            f"model_type {kind} has several RoPEs ({', '.join(map(str, current))}) and none of {_FULL} layers, "
            "which are what could be extended; choose a model that has such layers"
        )
    return one


def sliding_layers(config: PretrainedConfig) -> str | None:
    """Which layers look no further after the extension than before, for the plan that is printed; None for none."""
    kinds = getattr(config, "layer_types", None) or []
    if not _slides(config) or _FULL not in kinds:
        return None
    apart = " and keep their own RoPE" if _FULL in config.rope_parameters else ""
    return (
        f"{kinds.count(_FULL)} of {len(kinds)} layers attend to all tokens and are extended; the others look back "
        f"{config.sliding_window:,} tokens{apart}"
    )


def _check_numbers(config: PretrainedConfig, current: dict[str, Any]) -> None:
    """Refuse a config whose RoPE cannot be computed."""
    window, theta, factor = config.max_position_embeddings, current["rope_theta"], current.get("factor", 1.0)
    for name, value, least in (
        ("max_position_embeddings", window, 1),
        ("rope_theta", theta, 1),
        ("rope factor", factor, 1),
    ):
        if value is None and name == "rope factor":  # longrope has a list instead
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < least or (name == "rope_theta" and value == 1):
            rule = f"above {least}" if name == "rope_theta" else f"at least {least}"
            raise ModelError(f"config has {name} {value!r}, which must be a number {rule}; mend config.json")
    if _rotated_dims(config, current) < 2:
        raise ModelError(
            "config has no dims to rotate; mend head_dim, hidden_size or num_attention_heads in it"
        )


def _check_scaling(config: PretrainedConfig, current: dict[str, Any], existing_rope: str) -> bool:
    """Say whether a scaling is there that is to be replaced; refuse what must not be trained on."""
    kind = current.get("rope_type", "default")
    if kind == "default":
        return False
    factor = current.get("factor")
    if kind == "longrope" and current.get("short_factor") == current.get("long_factor"):
        switches = False
    else:
        switches = kind in ("dynamic", "longrope")
    original = _original_length(config, current)
    if existing_rope == "replace" and kind in SCALED | {"dynamic"}:
        return True
    if switches:
        raise ModelError(
            f"config has {kind} RoPE, whose frequencies switch with the longest position of each batch: it cannot "
            "be trained on; choose --existing-rope replace, or start from the base model"
        )
    times = f" x{factor:g}" if factor else ""
    if kind == "vanilla_ntk":
        raise ModelError(
            f"config is already vanilla_ntk{times}, by which PoSE's authors mean NTK: skipwise convert CHECKPOINT OUT "
            "writes it as a stock checkpoint; or start from the base model"
        )
    if kind not in SCALED:
        raise ModelError(
            f"config is already {kind}{times}, a scaling that is not known here and cannot be replaced; "
            "start from the base model"
        )
    guessed = kind == "linear" and "original_max_position_embeddings" not in current
    unless = f" (with original_length, if its true window is not {original:,})" if guessed else ""
    raise ModelError(
        f"config is already {kind}{times} (original {original:,}): choose --existing-rope replace{unless}, "
        "or start from the base model"
    )


def _check_sliding_window(config: PretrainedConfig, target: int) -> None:
    """Refuse attention that is cut in every layer by the token's index, which positions that skip do not see."""
    if not _slides(config) or config.sliding_window >= target:
        return
    if _FULL not in (getattr(config, "layer_types", None) or []):
        raise ModelError(
            f"config has sliding_window {config.sliding_window:,}, below the target {target:,}: no token would ever "
            "attend as far as it is trained to; set sliding_window to null in config.json if the model tolerates full "
            "attention, or choose another model"
        )


def _slides(config: PretrainedConfig) -> bool:
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None) or ["sliding_attention"]
    return bool(
        window and getattr(config, "use_sliding_window", True) is not False and "sliding_attention" in layers
    )


def original_length(config: PretrainedConfig) -> int:
    """L_c as far as a config says it: NTK's, whose only trace is its theta, is not told from a model never extended."""
    try:
        current = rope_of(config)
    except ModelError:  # positions of another kind
        current = {}
    scaled = current.get("rope_type", "default") != "default"
    return _original_length(config.get_text_config(), current if scaled else {})


def _original_length(config: PretrainedConfig, scaling: dict[str, Any]) -> int:
    """L_c: what the scaling says it was, else its factor's share of the window, else the window.

    Linear scaling that leaves ``max_position_embeddings`` at the base cannot be told from one that raises it.
    """
    said = scaling.get("original_max_position_embeddings")
    if said is None and scaling and scaling.get("rope_type") == "linear":
        return int(config.max_position_embeddings / scaling["factor"])
    return int(said or config.max_position_embeddings)


def _rotated_dims(config: PretrainedConfig, current: dict[str, Any]) -> int:
    head = getattr(config, "head_dim", None) or config.hidden_size // max(config.num_attention_heads, 1)
    return int(head * current.get("partial_rotary_factor", 1.0))
