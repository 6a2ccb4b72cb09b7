"""Load a checkpoint as a stock transformers class, as it is or with an interpolation set."""

import hashlib
from functools import cache
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
    BitsAndBytesConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from skipwise.errors import ModelError, first_line
from skipwise.model import lora
from skipwise.model.rope import CONVERTED, Extension, check_frequencies, converted_first, set_interpolation

_BROKEN_WEIGHTS = (SafetensorError, UnpicklingError)


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
        # Left out, the question whether to run remote code would be put to the user.
        return AutoConfig.from_pretrained(resolve(name), trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, StrictDataclassError) as error:
        if (kind := _model_type(name)) in CONVERTED:  # its own class would be remote code
            raise ModelError(converted_first(kind, name)) from error
        raise ModelError(_unreadable(name, error)) from error


def _model_type(name: str) -> str:
    """As the config says it, whether or not there is a class for it."""
    try:
        return str(PretrainedConfig.get_config_dict(resolve(name))[0].get("model_type"))
    except (OSError, ValueError):
        return ""


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer beside a model.

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
        set_interpolation(config, extension)
    folder = resolve(name)
    base = lora.base_of(folder)
    settings: dict[str, Any] = {"config": config, "dtype": dtype, "output_loading_info": True}
    settings["trust_remote_code"] = False
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


@cache
def weights_fingerprint(name: str) -> str:
    """Hash a model's weights as they came: of a hub's model its commit, of a folder each file's size and first 16 MiB."""
    digest = hashlib.sha256(str(getattr(load_config(name), "_commit_hash", None)).encode())
    for path in sorted(Path(resolve(name)).glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
        with open(path, "rb") as file:
            digest.update(file.read(2**24))
    return digest.hexdigest()


def _unreadable(name: str, error: Exception) -> str:
    if Path(name).exists():
        return f"model folder {name} cannot be loaded: {first_line(error)}"
    return (
        f"model {name!r} is neither nano, nor a folder here, nor reachable on the model hub "
        f"({first_line(error)}); download it first and give its folder"
    )
