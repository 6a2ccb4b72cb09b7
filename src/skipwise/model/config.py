"""Find a model by its name and read its config, checked before transformers builds anything by it."""

import copy
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import torch
from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig
from transformers.quantizers import AutoHfQuantizer

from skipwise.errors import ModelError, first_problem, nearest, reason
from skipwise.model import lora
from skipwise.model.packaged import packaged
from skipwise.model.rope import CONVERTED, converted_first
from skipwise.recipes.names import PACKAGED, expanded, model_name

_PACKAGED = " or ".join(PACKAGED)


def _dtype(name: str) -> str:
    """Require the name of a torch dtype."""
    if not isinstance(getattr(torch, name.removeprefix("torch."), None), torch.dtype):
        raise ValueError("it must name a dtype of torch, as float32 or bfloat16")
    return name


Size = Annotated[int, Field(ge=1, le=2**24)]
Dtype = Annotated[str, AfterValidator(_dtype)]


class _Written(BaseModel):
    """What a config.json may say of a model that can be built at all; the other fields are for transformers to check.

    A size far beyond any model's would take hours to build, or all memory.
    """

    model_config = ConfigDict(strict=True)

    vocab_size: Size | None = None
    hidden_size: Size | None = None
    intermediate_size: Size | list[Size] | None = None
    num_hidden_layers: Annotated[int, Field(ge=1, le=10_000)] | None = None
    num_attention_heads: Annotated[int, Field(ge=1, le=2**16)] | None = None
    num_key_value_heads: Annotated[int, Field(ge=1, le=2**16)] | None = None
    head_dim: Annotated[int, Field(ge=1, le=2**16)] | None = None
    max_position_embeddings: Annotated[int, Field(ge=1)] | None = None
    sliding_window: Annotated[int, Field(ge=0)] | None = None
    layer_types: list[str] | None = None
    dtype: Dtype | None = None
    torch_dtype: Dtype | None = None
    quantization_config: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None


def resolve(name: str) -> str:
    """Return the folder of a model that a package has (``packaged``), or that lies in a run folder; else ``name`` itself, with
    ``~`` as the home folder.

    Raises:
        ModelError: it is empty, a file, or a path where no folder is; the hub is not asked for a path.
    """
    if not name.strip():
        raise ModelError(f"model = {name!r} names none; give {_PACKAGED}, a folder or a name on the model hub")
    if folder := packaged(name):
        return str(folder)
    path = Path(model_name(name))
    if path.is_file():
        raise ModelError(f"model {name!r} is a file; give its folder, or convert a GGUF file first: skipwise convert")
    return str(path) if path.is_dir() else name


def load_config(name: str | Path) -> PretrainedConfig:
    """Read the config of a folder or a hub name; no code of the checkpoint or of the hub is run.

    Raises:
        ModelError: there is no config that transformers can read, it asks for such code, it has a config inside that its
            kind has not, or weights that are quantized in a way that transformers cannot load here.
        RecipeError: ``name`` is no path that a system could have.
        RunError: ``smollm2`` cannot be written to the cache.
    """
    name = str(name)
    folder, read = resolve(name), {}
    try:
        read = _read_config(folder)
        _Written.model_validate(read)
        # Without this argument transformers asks the user whether to run remote code.
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # transformers raises what it happens to meet in the file
        kind = str(read.get("model_type"))
        if kind in CONVERTED:  # its own class would be remote code
            raise ModelError(converted_first(kind, name)) from error
        if read.get("auto_map") and kind not in CONFIG_MAPPING:
            raise ModelError(
                f"model {name!r} ({kind}) is known only to the code in its auto_map, which Skipwise never runs "
                f"({reason(error)}); choose a model that transformers has a class for"
            ) from error
        lora.base_of(folder)  # refuses an adapter of peft, beside which no config lies
        raise ModelError(unreadable(name, error)) from error
    for key, value in _settings(read):
        if key.endswith(("_implementation", "_implementation_internal")) and _is_fetched(str(value)):
            raise ModelError(
                f"the config of model {name!r} has {key} {value!r}, a kernel on the hub: that is code, which Skipwise "
                f"neither fetches nor runs; remove {key} from config.json"
            )
    _require_text_config(name, config)
    _require_quantizer(name, config)
    return config


def _require_text_config(name: str, config: PretrainedConfig) -> None:
    """Require the config of the text model to be one; in a config that has no inner ones, transformers leaves a dict."""
    text: Any = config.get_text_config()
    if not isinstance(text, PretrainedConfig):
        keys = ("text_config", "text_encoder", "decoder", "generator")
        key = next(key for key in keys if getattr(config, key, None) is not None)
        raise ModelError(
            f"the config of model {name!r} has {key} {repr(text)[:60]}, which configs of {config.model_type} do not have; "
            f"remove {key} from config.json"
        )


def _require_quantizer(name: str, config: PretrainedConfig) -> None:
    """Require quantized weights to be of a kind that transformers knows, and the packages that it loads them with.

    What else it asks of the machine, as a GPU, is left to the loading: a run may be planned on another machine.
    """
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        settings = getattr(config.get_text_config(), "quantization_config", None)
    if settings is None:
        return
    try:
        quantizer = AutoHfQuantizer.from_config(copy.deepcopy(settings), pre_quantized=True)
    except ImportError as error:
        raise _lacks_package(name, error) from error
    except Exception as error:  # each method checks its own settings
        raise ModelError(
            f"the config of model {name!r} has quantization_config {repr(settings)[:60]}, which transformers refuses: "
            f"{reason(error)}; correct config.json, or remove quantization_config if the weights are not quantized"
        ) from error
    try:
        quantizer.validate_environment(device_map=None, weights_only=True)
    except ImportError as error:
        raise _lacks_package(name, error) from error
    except Exception:  # of a GPU that is not here
        return


def _lacks_package(name: str, error: ImportError) -> ModelError:
    return ModelError(
        f"the weights of model {name!r} are quantized, and a package that reads them is not installed: {reason(error)}; "
        "install it, or give the model as it was before it was quantized"
    )


def _is_fetched(kernel: str) -> bool:
    """Return whether transformers would fetch a kernel from the hub: OWNER/NAME, or one whose package is not installed."""
    return "/" in kernel or ("flash" in kernel and find_spec("flash_attn") is None)


def _read_config(folder: str) -> dict[str, Any]:
    """Return what a config.json says, before transformers makes anything of it."""
    path = Path(folder) / "config.json"
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ValueError("config.json is not a file")
    if not path.exists():  # on the hub
        if not Path(folder).is_dir():
            _require_hub(folder)
        return PretrainedConfig.get_config_dict(folder)[0]
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("config.json is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"config.json is not JSON ({error})") from None
    if not isinstance(read, dict):
        raise ValueError(f"config.json holds a {type(read).__name__}, not settings by name")
    return read


def _require_hub(name: str) -> None:
    """Ask the hub once, where it must be asked; transformers repeats a question without an answer for a minute or more.

    ``$HF_HUB_ETAG_TIMEOUT`` says for how many seconds an answer is waited for.
    """
    if constants.HF_HUB_OFFLINE or isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    with suppress(HfHubHTTPError):  # transformers says what the hub answers
        get_hf_file_metadata(hf_hub_url(name, "config.json"))


def _settings(read: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every setting of a config, with those of the configs in it."""
    for key, value in read.items():
        yield key, value
        if isinstance(value, dict):
            yield from _settings(value)


def unreadable(name: str, error: Exception) -> str:
    """Return the message of a model that cannot be read: what is meant by its name, what is wrong, and the way out."""
    said = _invalid(error) if isinstance(error, ValidationError) else reason(error)
    if (Path(expanded(name)) / "recipe.yaml").exists():
        return f"{name} is a run folder without a model yet: finish the run with skipwise extend --resume"
    if Path(expanded(name)).exists():
        return f"model folder {name} cannot be loaded: {said}; correct its files, or fetch the checkpoint again"
    meant, way_out = "", "download it first and give its folder"
    if "/" not in name:
        beside = os.listdir() if os.access(".", os.R_OK) else []
        meant = nearest(name, [*PACKAGED, *filter(os.path.isdir, beside)])
        way_out = f"give {_PACKAGED}, a folder here or a name on the model hub, as OWNER/NAME"
    return f"model {name!r} is neither {_PACKAGED.replace(' or ', ' nor ')}, nor a folder here{meant}, nor reachable on the model hub ({said}); {way_out}"


def _invalid(error: ValidationError) -> str:
    """Return what is wrong with the first bad field of a config."""
    key, value, rule = first_problem(error)
    return f"config.json has {key} {repr(value)[:60]}: {rule}"
