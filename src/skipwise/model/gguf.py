"""A GGUF file -> config, weights and tokenizer of a stock checkpoint.

transformers dequantises the weights. It passes over a RoPE's scaling without a word, so that is taken from the file
here.
"""

import io
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    modeling_gguf_pytorch_utils,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from skipwise.errors import EngineError, ModelError, SkipwiseError, pip_install, reason
from skipwise.method.interpolation import yarn_attention
from skipwise.model.gguf_tokenizer import read_tokenizer
from skipwise.model.legacy_config import write_legacy_keys
from skipwise.model.rope import rope_of, rotated_dims
from skipwise.model.sealed import write_seal

_PLAIN_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# What transformers raises for files that it does not expect.
_UNREADABLE = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, ImportError, OSError,
    StrictDataclassError,
)  # fmt: skip


class GGUFFile:
    """A GGUF file: its settings, and its tensors as they are stored.

    Raises:
        EngineError: the package gguf is not installed.
        ModelError: the file is damaged, a part, or lacks a tokenizer or weights.
    """

    def __init__(self, path: Path) -> None:
        if find_spec("gguf") is None:
            raise EngineError(f"what reads GGUF files is not installed: {pip_install('gguf')}")
        from gguf import GGUFReader

        if not path.is_file():
            raise ModelError(f"{path} is not a file; give the path of a GGUF file")
        try:
            self.reader = GGUFReader(path)
            self.architecture = str(self.reader.fields["general.architecture"].contents())
        except (ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
            raise ModelError(f"{path} is not a whole GGUF file ({reason(error)}); fetch it again") from error
        self.path = path
        if self.get("split.count", 1) not in (0, 1):
            raise ModelError(f"{path} is a part of a split GGUF; put the parts together with llama-gguf-split --merge")
        if not self.get("tokenizer.ggml.tokens"):
            raise ModelError(f"{path} holds no tokenizer; give a GGUF file that has one")
        if not self._matrices:
            raise ModelError(f"{path} holds no weights; give a GGUF file that has them")
        blocks = len({tensor.name.split(".")[1] for tensor in self.reader.tensors if tensor.name.startswith("blk.")})
        if self.setting("block_count", blocks) != blocks:
            raise ModelError(
                f"{path} says block_count {self.setting('block_count')} and holds {blocks}; it is damaged, fetch it again"
            )

    def get(self, name: str, default: Any = None) -> Any:
        field = self.reader.fields.get(name)
        return default if field is None else field.contents()

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting of the architecture."""
        return self.get(f"{self.architecture}.{name}", default)

    def number(self, name: str, default: float) -> float:
        """A setting that must be a number above 0; 0 stands for the default, as in llama.cpp."""
        value = self.setting(name) or default
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ModelError(f"{self.path} says {name} = {value!r}, which must be a number above 0; fetch it again")
        return float(value)

    @property
    def pre_tokenizer(self) -> str | None:
        """The name of what splits a text before byte-level merges."""
        return self.get("tokenizer.ggml.pre") if self.get("tokenizer.ggml.model") == "gpt2" else None

    @cached_property
    def _matrices(self) -> Counter[str]:
        """How many weights of matrices have each type."""
        found: Counter[str] = Counter()
        for tensor in self.reader.tensors:
            if len(tensor.shape) > 1:
                found[tensor.tensor_type.name] += int(tensor.n_elements)
        return found

    @property
    def types(self) -> str:
        """The types of the matrices, the commonest first."""
        return " and ".join(name for name, _ in self._matrices.most_common())

    @property
    def quantised(self) -> bool:
        return not self._matrices.keys() <= _PLAIN_TYPES.keys()

    @property
    def dtype(self) -> torch.dtype:
        """What the checkpoint is saved in."""
        [kind, *others] = [name for name, _ in self._matrices.most_common()]
        return _PLAIN_TYPES[kind] if not self.quantised and not others else torch.bfloat16

    @contextmanager
    def alone(self) -> Iterator[dict[str, Any]]:
        """Arguments by which transformers reads this file, without the files that lie beside it."""
        # The extra has the modules of the distribution gguf, not its name, by which transformers looks for it.
        modeling_gguf_pytorch_utils.is_gguf_available = lambda *_, **__: True
        with TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):  # progress bars
            (Path(folder) / "model.gguf").symlink_to(self.path.resolve())
            try:
                yield {"pretrained_model_name_or_path": folder, "gguf_file": "model.gguf"}
            except _UNREADABLE as error:
                raise ModelError(
                    f"transformers cannot read {self.path}, of architecture {self.architecture} ({reason(error)}); give "
                    "the model's own checkpoint"
                ) from error


def write_checkpoint(source: GGUFFile, folder: Path) -> None:
    """Write config, weights and tokenizer into ``folder``, and seal it. Memory holds the model once.

    Plain weights keep their type. Quantised ones become bfloat16, the type that most models were trained in: float32
    would double the file, and what rounding adds is small beside what quantisation cost.

    Raises:
        ModelError: the file is one that transformers cannot read, or has a RoPE that is not converted.
    """
    try:
        _write(source, folder)
    except (SkipwiseError, OSError, SafetensorError):
        raise
    except Exception as error:  # of transformers and tokenizers, for settings that they do not expect
        raise ModelError(
            f"{source.path}, of architecture {source.architecture}, cannot be converted ({type(error).__name__}: "
            f"{reason(error)}); give the model's own checkpoint"
        ) from error


def _write(source: GGUFFile, folder: Path) -> None:
    with source.alone() as file:
        config = AutoConfig.from_pretrained(**file)
    source.number("context_length", 0)
    _set_rope(config, source)
    _set_attention(config, source)
    with source.alone() as file:
        # Not AutoTokenizer: an architecture's class would put its own splits in place of the file's.
        tokenizer = read_tokenizer(
            source.get, lambda: PreTrainedTokenizerFast.from_pretrained(**file), config.max_position_embeddings
        )
    _stock(source, config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_legacy_keys(folder)
    write_seal(folder, {"converted_from": source.path.name})


def _stock(source: GGUFFile, config: PretrainedConfig) -> PreTrainedModel:
    """The model with all weights of the file, without the mark of GGUF with which transformers refuses to save it."""
    with source.alone() as file:
        read = AutoModelForCausalLM.from_pretrained(**file, config=config, dtype=source.dtype)
    marks = ("quantization_config", "_model_name_or_path")
    stated = {name: value for name, value in config.to_dict().items() if name not in marks}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(type(config).from_dict(stated))
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.config.dtype = source.dtype
    held = sum(weight.numel() for weight in model.parameters())
    stored = sum(int(tensor.n_elements) for tensor in source.reader.tensors if not tensor.name.startswith("rope_"))
    if held != stored or not all(torch.isfinite(weight).all() for weight in model.parameters()):
        raise ModelError(
            f"{source.path} holds {stored:,} weights, {type(model).__name__} has {held:,}, and all must be numbers; fetch "
            "the file again, or give the model's own checkpoint"
        )
    return model


def _set_rope(config: PretrainedConfig, source: GGUFFile) -> None:
    """Set the scaling of the RoPE, which transformers passes over, to what llama.cpp makes of the file."""
    rope = rope_of(config)
    kind = source.setting("rope.scaling.type", "linear")  # llama.cpp's default
    factor = source.number("rope.scaling.factor", source.number("rope.scale_linear", 1))
    attention = source.number("rope.scaling.attn_factor", 1)
    lists = {tensor.name: tensor.data for tensor in source.reader.tensors if tensor.name.startswith("rope_")}
    plain = kind == "none" or (kind == "linear" and factor == 1)
    if plain and list(lists) == ["rope_freqs.weight"]:
        _set_factors(config, torch.tensor(lists["rope_freqs.weight"]).flatten().tolist(), attention)
    elif lists or kind not in ("none", "linear", "yarn"):
        what = f"{kind} RoPE" + (f" with {', '.join(lists)}" if lists else "")
        raise ModelError(
            f"{source.path} has {what}, which is not converted; give the model's own checkpoint, or a GGUF file of its base"
        )
    elif kind == "yarn":
        rope |= {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": int(
                source.number("rope.scaling.original_context_length", config.max_position_embeddings / factor)
            ),
            "attention_factor": yarn_attention(factor) * attention,  # as llama.cpp computes it
            "beta_fast": source.number("rope.scaling.yarn_beta_fast", 32),
            "beta_slow": source.number("rope.scaling.yarn_beta_slow", 1),
        }
    elif not plain:
        rope |= {"rope_type": "linear", "factor": factor}


def _set_factors(config: PretrainedConfig, factors: list[float], attention: float) -> None:
    """Set a RoPE whose frequencies are divided by ``factors``: Llama 3.1's own scaling, or longrope with one list."""
    rope = rope_of(config)
    dim = rotated_dims(config, rope)
    if len(factors) != dim // 2 or not all(0 < factor < math.inf for factor in factors):
        raise ModelError(
            f"rope_freqs.weight of {config.model_type} must be {dim // 2} numbers above 0, and it has {len(factors)}; give the "
            "model's own checkpoint"
        )
    llama3 = {
        "rope_type": "llama3",
        "factor": max(factors),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    tried = deepcopy(config)
    tried.rope_parameters = dict(rope) | llama3
    found, _ = ROPE_INIT_FUNCTIONS["llama3"](tried, torch.device("cpu"))
    divided = rope["rope_theta"] ** -(torch.arange(0, dim, 2) / dim) / torch.tensor(factors)
    if attention == 1 and torch.allclose(found, divided, rtol=1e-4, atol=0):
        rope |= llama3
        return
    rope |= {
        "rope_type": "longrope",
        "factor": max(factors),
        "original_max_position_embeddings": round(config.max_position_embeddings / max(factors)),
        "attention_factor": attention,
        "short_factor": factors,
        "long_factor": list(factors),
        "short_mscale": attention,  # for vLLM
        "long_mscale": attention,
    }


def _set_attention(config: PretrainedConfig, source: GGUFFile) -> None:
    """Set what transformers leaves at the defaults of a class, and llama.cpp computes."""
    if config.model_type == "qwen3":
        config.head_dim = source.setting("attention.key_length", config.head_dim)
    if hasattr(config, "query_pre_attn_scalar"):
        large = source.setting("block_count") in (46, 62)  # the 27B of Gemma 2 and 3
        width = config.hidden_size // config.num_attention_heads
        config.query_pre_attn_scalar = width if large else config.head_dim
