"""A GGUF file -> a stock checkpoint with its tokenizer: ``skipwise convert FILE.gguf OUT``.

transformers dequantises the weights. It passes over a RoPE's scaling without a word, so that is taken from the file
here. llama.cpp, where it is installed, reads the same file and has to predict the same.
"""

import io
import math
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from rich.console import Console
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

from skipwise.engines.compare import compare, plan_request
from skipwise.engines.gguf import require_converter
from skipwise.engines.gguf_tokenizer import SPLITS, read_tokenizer
from skipwise.engines.quantise import writer_like
from skipwise.engines.request import Engine, find_engines, missing
from skipwise.errors import EngineError, ModelError, RunError, SkipwiseError, reason
from skipwise.model.legacy_config import write_legacy_keys
from skipwise.model.loading import load_config, load_tokenizer
from skipwise.model.rope import original_length, rope_of, rotated_dims
from skipwise.model.sealed import write_seal
from skipwise.results.files import new_folder, require_checksum, require_free

_TOLERANCE = 5e-3  # of the mean at each depth, in nats; both sides compute in float32 from the same numbers
_READ = 2048  # tokens that the check reads at most
_PLAIN_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# What transformers raises for files that it does not expect.
_UNREADABLE = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, ImportError, OSError,
    StrictDataclassError,
)  # fmt: skip


def convert_gguf(file: Path, out: Path, console: Console, *, checked: bool = True) -> Path:
    """Write the model of a GGUF file to ``out`` as a stock checkpoint with its tokenizer, and return ``out``.

    Plain weights keep their type. Quantised ones become bfloat16, the type that most models were trained in: float32
    would double the file, and what rounding adds is small beside what quantisation cost. Memory holds the model once.

    Raises:
        EngineError: the extra ``gguf`` is not installed, or llama.cpp reads the file otherwise.
        ModelError: the file is damaged, lacks a tokenizer, or is one that transformers cannot read.
        RunError: ``out`` exists or cannot be written.
    """
    require_free(out)
    require_converter()
    source = _Source(file)
    require_checksum(file)
    console.print(
        f"{source.architecture} with weights of type {source.types} -> {str(source.dtype)[6:]}", soft_wrap=True
    )
    unchecked = out.with_name(f"{out.name}.unchecked")
    require_free(unchecked)
    try:
        with new_folder(out) as partial:
            with _foreign_errors(source):
                _write(source, partial)
            if checked and (engine := next((one for one in find_engines([], []) if one.name == "llama.cpp"), None)):
                try:
                    _check(source, partial, engine, console)
                except EngineError as error:
                    os.replace(partial, unchecked)
                    raise EngineError(f"{error}. The checkpoint was left as {unchecked}; do not use it") from error
            else:
                _say_unchecked(source, checked, console)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{out} cannot be written ({reason(error)}); make room, or give another folder") from error
    if source.quantised:
        console.print(
            f"The weights come from {source.types}. What quantisation cost cannot be won back.", soft_wrap=True
        )
    return out


def _say_unchecked(source: "_Source", asked: bool, console: Console) -> None:
    why = missing("llama.cpp") if asked else "--no-check"
    console.print(f"unchecked: whether it predicts what llama.cpp does was not tried ({why})", soft_wrap=True)
    if source.pre_tokenizer not in SPLITS:
        kind = source.pre_tokenizer or source.get("tokenizer.ggml.model")
        what = f"whether a tokenizer of kind {kind} gives llama.cpp's tokens was not tried; they may be others"
        console.print(f"tokenizer: {what}", style="yellow", soft_wrap=True)


@contextmanager
def _foreign_errors(source: "_Source") -> Iterator[None]:
    """transformers and tokenizers raise errors of any type for settings that they do not expect."""
    try:
        yield
    except (SkipwiseError, OSError, SafetensorError):
        raise
    except Exception as error:
        raise ModelError(
            f"{source.path}, of architecture {source.architecture}, cannot be converted ({type(error).__name__}: "
            f"{reason(error)}); give the model's own checkpoint"
        ) from error


class _Source:
    """A GGUF file: its settings, and its tensors as they are stored."""

    def __init__(self, path: Path) -> None:
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


def _write(source: _Source, folder: Path) -> None:
    """Write config, weights and tokenizer."""
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


def _stock(source: _Source, config: PretrainedConfig) -> PreTrainedModel:
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


def _set_rope(config: PretrainedConfig, source: _Source) -> None:
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
            "attention_factor": (0.1 * math.log(factor) + 1) * attention,  # as llama.cpp computes it
            "beta_fast": source.number("rope.scaling.yarn_beta_fast", 32),
            "beta_slow": source.number("rope.scaling.yarn_beta_slow", 1),
        }
    elif not plain:
        rope |= {"rope_type": "linear", "factor": factor}


def _set_factors(config: PretrainedConfig, factors: list[float], attention: float) -> None:
    """Set a RoPE whose frequencies are divided by ``factors``: Llama 3.1's own scaling, or longrope with one list."""
    rope = rope_of(config)
    half = rotated_dims(config, rope) // 2
    if len(factors) != half or not all(0 < factor < math.inf for factor in factors):
        raise ModelError(
            f"rope_freqs.weight of {config.model_type} must be {half} numbers above 0, and it has {len(factors)}; give the "
            "model's own checkpoint"
        )
    llama3 = {
        "rope_type": "llama3",
        "factor": max(factors),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    tried, dim = deepcopy(config), rotated_dims(config, rope)
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


def _set_attention(config: PretrainedConfig, source: _Source) -> None:
    """Set what transformers leaves at the defaults of a class, and llama.cpp computes."""
    if config.model_type == "qwen3":
        config.head_dim = source.setting("attention.key_length", config.head_dim)
    if hasattr(config, "query_pre_attn_scalar"):
        large = source.setting("block_count") in (46, 62)  # the 27B of Gemma 2 and 3
        width = config.hidden_size // config.num_attention_heads
        config.query_pre_attn_scalar = width if large else config.head_dim


def _check(source: _Source, folder: Path, llama_cpp: Engine, console: Console) -> None:
    """Compare tokens and predictions with llama.cpp's on the same file.

    Raises:
        EngineError: the predictions differ, or llama.cpp cannot read the file.
    """
    tokenizer, config = load_tokenizer(str(folder)), load_config(str(folder))
    window = min(config.max_position_embeddings, _READ)
    request = plan_request(folder, tokenizer, min(original_length(config), window), window)
    ours, *_ = find_engines(["transformers"], [])
    with TemporaryDirectory(dir=folder.parent) as at, console.status("reading the file with llama.cpp"):
        compared = compare(ours.answer(request), llama_cpp, request.of(_in_float32(source, Path(at))), _TOLERANCE)
    largest = max((mean for _, mean in compared.depths.values()), default=math.nan)
    if not compared.agrees:
        why = compared.problem or f"they are {largest:.1e} nats apart in the mean, more than {_TOLERANCE:g}"
        raise EngineError(f"transformers does not predict what llama.cpp does from {source.path}: {why}")
    console.print(
        f"checked: next-token log-probabilities are {largest:.1e} nats from llama.cpp's in the mean", soft_wrap=True
    )
    if compared.note:
        console.print(f"tokenizer: {compared.note} from llama.cpp's", style="yellow", soft_wrap=True)


def _in_float32(source: _Source, folder: Path) -> Path:
    """Write the file again with float32 weights: of quantised ones llama.cpp rounds the activations too.

    Matrices are rounded to the checkpoint's type first, so both sides compute with the same numbers.
    """
    from gguf.quants import dequantize

    writer = writer_like(source.reader, folder / "model.gguf")
    for tensor in source.reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        writer.add_tensor_info(tensor.name, shape, torch.zeros(0).numpy().dtype, 4 * int(tensor.n_elements))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in source.reader.tensors:
        values = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        if len(tensor.shape) > 1:
            values = values.to(source.dtype)
        writer.write_tensor_data(values.float().numpy())
    writer.close()
    return folder / "model.gguf"
