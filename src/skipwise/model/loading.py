"""Load a checkpoint as a stock transformers class, as it is or with an interpolation set."""

from importlib import resources
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from skipwise.errors import ModelError, first_line
from skipwise.model import lora
from skipwise.model.four_bit import quantization_settings
from skipwise.model.rope import CONVERTED, Extension, check_frequencies, converted_first, set_interpolation
from skipwise.model.sliding import mask_by_position


def resolve(name: str) -> str:
    """Return the folder of the embedded model for ``nano``, else ``name`` itself, which must not be empty."""
    if not name.strip():
        raise ModelError(f"model = {name!r} names none; give nano, a folder or a name on the model hub")
    return str(resources.files("skipwise").joinpath("assets", "nano")) if name == "nano" else name


def load_config(name: str) -> PretrainedConfig:
    """Read the config of a folder or a hub name; no remote code is run.

    Raises:
        ModelError: there is no config that transformers can read.
    """
    try:
        # Without this argument transformers asks the user whether to run remote code.
        return AutoConfig.from_pretrained(resolve(name), trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, StrictDataclassError) as error:
        if (kind := _model_type(name)) in CONVERTED:  # its own class would be remote code
            raise ModelError(converted_first(kind, name)) from error
        raise ModelError(_unreadable(name, error)) from error


def _model_type(name: str) -> str:
    """Return the config's model_type, whether or not transformers has a class for it."""
    try:
        return str(PretrainedConfig.get_config_dict(resolve(name))[0].get("model_type"))
    except (OSError, ValueError):
        return ""


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model.

    Raises:
        ModelError: there is none.
    """
    try:
        return AutoTokenizer.from_pretrained(resolve(name), trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"model {name!r} has no tokenizer that transformers can load ({first_line(error)}); "
            "save one beside it with tokenizer.save_pretrained"
        ) from error


def load_model(
    name: str,
    extension: Extension | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    four_bits: bool = False,
    merge: bool = True,
) -> PreTrainedModel:
    """Load a causal model, as it is or with the interpolation of ``extension`` in its config.

    Rotary frequencies are float32 for every ``dtype``; they are checked against the float64 formula to 1e-6. Sliding
    layers count their window in positions while the model trains (``skipwise.model.sliding``).

    Args:
        name: ``nano``, a folder (also an adapter's, which is merged into its base), or a name on the hub.
        extension: the interpolation to set; default: what the config has.
        dtype: dtype of the weights.
        device: device to load to.
        four_bits: hold the weights of linear layers in 4 bits and compute in ``dtype``.
        merge: merge an adapter into its base; if false, keep its layers apart, as in training.

    Raises:
        ModelError: transformers cannot load it, or its frequencies are not those of ``extension``.
    """
    config = load_config(name)
    if extension is not None:
        set_interpolation(config, extension)
    folder = resolve(name)
    base = lora.base_of(folder)
    settings = quantization_settings(dtype, device) if four_bits else {}
    model = _load_whole(resolve(base) if base else folder, name, config=config, dtype=dtype, **settings)
    if base:
        model = lora.load_adapter(model, folder, merge=merge)
    if not four_bits:
        torch.nn.Module.to(model, device)
    if extension is not None:
        check_frequencies(model, extension)
    mask_by_position(model)
    return model


def _load_whole(folder: str, name: str, **settings: Any) -> PreTrainedModel:
    """Load a model by transformers; refuse a checkpoint that lacks weights, which transformers would draw at random."""
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=False, output_loading_info=True, **settings
        )
    except (OSError, ValueError, KeyError, RuntimeError, EOFError, SafetensorError, UnpicklingError) as error:
        raise ModelError(_unreadable(name, error)) from error
    model, missing = loaded[0], sorted(loaded[1]["missing_keys"])
    if missing:
        raise ModelError(
            f"model {name!r} lacks {len(missing)} of its weights ({', '.join(missing[:3])}, ...), which would be drawn "
            "at random; the checkpoint is incomplete, or is not a causal language model"
        )
    return model


def _unreadable(name: str, error: Exception) -> str:
    if Path(name).exists():
        return f"model folder {name} cannot be loaded: {first_line(error)}"
    return (
        f"model {name!r} is neither nano, nor a folder here, nor reachable on the model hub "
        f"({first_line(error)}); download it first and give its folder"
    )
