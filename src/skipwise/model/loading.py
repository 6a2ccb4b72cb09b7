"""Load a checkpoint as a stock transformers class, refuse what cannot be extended, set the interpolation."""

import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from skipwise.errors import ModelError
from skipwise.interpolation import Rope, frequencies, rope_parameters
from skipwise.model import lora

_LEARNED = {"gpt2", "opt", "bert", "roberta", "gpt_bigcode", "gpt_neo", "distilbert", "electra", "xglm"}
_ALIBI = {"bloom", "mpt"}
_CONVERTED = {"gptj", "baichuan"}
_CONVERTED_FIRST = (
    "model_type {} has rotary positions that its class cannot scale; write it as a stock class with the same logits "
    "first: skipwise convert CHECKPOINT OUT"
)
_SCALED = {"linear", "yarn", "llama3", "longrope"}
_BROKEN_WEIGHTS = (SafetensorError, UnpicklingError)


@dataclass(frozen=True)
class Extension:
    """What is asked of a model: its own window, the one to reach, and how.

    Attributes:
        rope: the model's unscaled RoPE, original length included.
        target_length: L_t in tokens.
        interpolation: a name of ``skipwise.interpolation.NAMES``.
    """

    rope: Rope
    target_length: int
    interpolation: str

    @property
    def factor(self) -> float:
        """alpha = L_t / L_c."""
        return self.target_length / self.rope.original_length


def resolve(name: str) -> str:
    """The folder of the embedded model for ``nano``, else ``name`` itself.

    Raises:
        ModelError: the name is empty.
    """
    if not name.strip():
        raise ModelError(f"model = {name!r} names none; give nano, a folder or a name on the model hub")
    return str(resources.files("skipwise").joinpath("assets", "nano")) if name == "nano" else name


def load_config(name: str) -> PretrainedConfig:
    """Read the config of a folder or a hub name; no remote code is run.

    Raises:
        ModelError: nothing there that transformers can read.
    """
    try:
        return AutoConfig.from_pretrained(resolve(name))
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, StrictDataclassError) as error:
        if "`baichuan`" in str(error):  # its own class would be remote code
            raise ModelError(_CONVERTED_FIRST.format("baichuan")) from error
        raise ModelError(_unreadable(name, error)) from error


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer beside a model.

    Raises:
        ModelError: there is none.
    """
    try:
        return AutoTokenizer.from_pretrained(resolve(name))
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"model {name!r} has no tokenizer that transformers can load ({_first_line(error)}); "
            "save one beside it with tokenizer.save_pretrained"
        ) from error


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
        config: of any model with one set of ``rope_parameters``.
        target_length: L_t; default 8 times the original.
        original_length: L_c, where the config does not say it truly.
        interpolation: a name of ``skipwise.interpolation.NAMES``.
        existing_rope: ``replace`` drops a scaling that the config already has.

    Raises:
        ModelError: no RoPE, one that switches or is scaled already, a target not above the original, or a
            sliding window below it.
    """
    current = _rope_parameters(config)
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


def load_model(
    name: str,
    extension: Extension | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    four_bits: bool = False,
    merge: bool = True,
) -> PreTrainedModel:
    """Load a causal model, with the interpolation of ``extension`` in its config, or as it is.

    Frequencies are float32 whatever ``dtype`` is, and are checked against the float64 formula to 1e-6.

    Args:
        name: ``nano``, a folder (an adapter's too: it is merged into its base), or a name on the hub.
        extension: what the config is to say; default: what it says.
        dtype: of the weights.
        device: where to.
        four_bits: hold the weights of linear layers in 4 bits (nf4; Dettmers et al., 2023), computed in ``dtype``.
        merge: an adapter into its base; else it is put on it, as in training.

    Raises:
        ModelError: transformers cannot load it, or its frequencies are not what was asked for.
    """
    config = load_config(name)
    if extension is not None:
        new = rope_parameters(extension.interpolation, extension.rope, extension.factor)
        kept = {k: v for k, v in config.rope_parameters.items() if k == "partial_rotary_factor"}
        config.rope_parameters = {**kept, **new}
        config.max_position_embeddings = extension.target_length
    folder = resolve(name)
    base = lora.base_of(folder)
    settings: dict[str, Any] = {"config": config, "dtype": dtype, "output_loading_info": True}
    if four_bits:
        quantization = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
        )
        settings |= {"quantization_config": quantization, "device_map": {"": device}}
    try:
        loaded: tuple[PreTrainedModel, dict[str, Any]] = AutoModelForCausalLM.from_pretrained(  # type: ignore[assignment]
            resolve(base) if base else folder, **settings
        )
    except (OSError, ValueError, KeyError, RuntimeError, EOFError, *_BROKEN_WEIGHTS) as error:
        raise ModelError(_unreadable(name, error)) from error
    model, missing = loaded[0], sorted(loaded[1]["missing_keys"])
    if missing:
        some = ", ".join(missing[:3])
        raise ModelError(
            f"model {name!r} lacks {len(missing)} of its weights ({some}, ...), which would be drawn at "
            "random; the checkpoint is not whole, or is no causal language model"
        )
    if base:
        model = lora.load_adapter(model, folder, merge=merge)
    if not four_bits:
        torch.nn.Module.to(model, device)
    if extension is not None:
        check_frequencies(model, extension)
    return model


def check_frequencies(model: torch.nn.Module, extension: Extension) -> None:
    """Require every rotary buffer to be float32 and within 1e-6 of the formula.

    A model cast with ``.to(bfloat16)`` fails here: rounded frequencies are 2.5 rad off at position 2,047.

    Raises:
        ModelError: a buffer is of another type or value, or there is none.
    """
    wanted, attention_factor = frequencies(extension.interpolation, extension.rope, extension.factor)
    found = [m for m in model.modules() if isinstance(getattr(m, "inv_freq", None), torch.Tensor)]
    if not found:
        raise ModelError("the model has no rotary frequencies (inv_freq); PoSE needs rotary positions")
    for module in found:
        inv_freq = module.inv_freq
        assert isinstance(inv_freq, torch.Tensor)
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
        if abs(float(getattr(module, "attention_scaling", 1.0)) - attention_factor) > 1e-6:
            raise ModelError(
                f"the model scales attention by {module.attention_scaling}, "
                f"{extension.interpolation} asks for {attention_factor:.6f}"
            )


def _rope_parameters(config: PretrainedConfig) -> dict[str, Any]:
    kind = config.model_type
    current = getattr(config, "rope_parameters", None)
    if kind in _CONVERTED:
        raise ModelError(_CONVERTED_FIRST.format(kind))
    if not current:
        what = (
            "learned positions" if kind in _LEARNED else "ALiBi" if kind in _ALIBI else "no rotary positions"
        )
        raise ModelError(
            f"model_type {kind} has {what}; PoSE needs rotary position embeddings, as Llama, Mistral or Qwen have"
        )
    if "rope_theta" not in current:
        raise ModelError(
            f"model_type {kind} has several RoPEs ({', '.join(map(str, current))}); "
            "one set of rope_parameters is supported"
        )
    return current


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
    if existing_rope == "replace" and kind in _SCALED | {"dynamic"}:
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
    if kind not in _SCALED:
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
    """Refuse attention that is cut by the token's index, which positions that skip do not see in training."""
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None) or ["sliding_attention"]
    slides = getattr(config, "use_sliding_window", True) is not False and "sliding_attention" in layers
    if window and slides and window < target:
        raise ModelError(
            f"config has sliding_window {window:,}, below the target {target:,}: no token would ever attend as far "
            "as it is trained to; set sliding_window to null in config.json if the model tolerates full attention, "
            "or choose another model"
        )


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


def _unreadable(name: str, error: Exception) -> str:
    if Path(name).exists():
        return f"model folder {name} cannot be loaded: {_first_line(error)}"
    return (
        f"model {name!r} is neither nano, nor a folder here, nor reachable on the model hub "
        f"({_first_line(error)}); download it first and give its folder"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
