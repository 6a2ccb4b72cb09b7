"""Read config, weights and tokenizer from a GGUF file.

transformers reads weights and tokenizer (``gguf_file=``). Added here: the scaling of the RoPE, the attention scale of large
Gemmas, some pre-tokenizers, and special tokens around a text.
"""

import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Regex, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    modeling_gguf_pytorch_utils,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from skipwise.errors import EngineError, ModelError, SkipwiseError, pip_install, reason
from skipwise.method.interpolation import yarn_attention
from skipwise.model.config import rope_of, rotated_dims, write_legacy_keys
from skipwise.model.origin import write_seal

_TRANSFORMERS = (5, 24)  # the oldest that splits a text as ``tokenizer.ggml.pre`` requires
_PLAIN_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Pre-tokenizers with which llama.cpp takes a piece that is a token whole, and begins a text with BOS by default.
_WHOLE_FIRST = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"}
# Pre-tokenizers unknown to transformers: each digit is a piece, and GPT-2's expression splits the rest.
_DIGITS_FIRST = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}


class GGUFFile:
    """Settings and tensors of a GGUF file.

    Raises:
        EngineError: the package gguf is not installed, or transformers is too old.
        ModelError: it is no GGUF file with all weights.
    """

    def __init__(self, path: Path) -> None:
        if find_spec("gguf") is None or tuple(map(int, transformers.__version__.split(".")[:2])) < _TRANSFORMERS:
            raise EngineError(
                f"a GGUF file needs the package gguf and transformers 5.24 (here: {transformers.__version__}). "
                f"{pip_install('gguf')}"
            )
        from gguf import GGUFReader

        try:
            self.reader = GGUFReader(path)
            self.architecture = str(self.reader.fields["general.architecture"].contents())
        except (OSError, ValueError, LookupError) as error:
            raise ModelError(f"{path} cannot be read as a GGUF file ({reason(error)}). Download it again") from error
        if self.get("split.count", 1) > 1:
            raise ModelError(f"{path} is one of several parts. Merge them with llama-gguf-split --merge")
        self.path = path
        matrices: Counter[str] = Counter()
        for tensor in self.reader.tensors:
            if len(tensor.shape) > 1:
                matrices[tensor.tensor_type.name] += int(tensor.n_elements)
        names = [name for name, _ in matrices.most_common()]
        self.types = " and ".join(names)  # of the matrices
        # Quantised weights become bfloat16, the type that most models were trained in.
        self.dtype = _PLAIN_TYPES.get(names[0], torch.bfloat16) if len(names) == 1 else torch.bfloat16

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting."""
        field = self.reader.fields.get(name)
        return default if field is None else field.contents()

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a setting of the architecture; 0 means the default."""
        return self.get(f"{self.architecture}.{name}") or default

    @contextmanager
    def alone(self) -> Iterator[dict[str, Any]]:
        """Yield arguments with which transformers reads this file alone."""
        # transformers looks for the package by its name; the extra has its modules under another name.
        modeling_gguf_pytorch_utils.is_gguf_available = lambda *_, **__: True
        with TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):  # progress bars
            (Path(folder) / "model.gguf").symlink_to(self.path.resolve())
            yield {"pretrained_model_name_or_path": folder, "gguf_file": "model.gguf", "trust_remote_code": False}


def write_checkpoint(source: GGUFFile, folder: Path) -> None:
    """Write config, weights and tokenizer of a stock checkpoint.

    Raises:
        ModelError: transformers cannot read the file, or its RoPE is not converted.
    """
    try:
        with source.alone() as file:
            config = AutoConfig.from_pretrained(**file)
            _set_rope(config, source)
            _set_attention(config, source)
            # Not AutoTokenizer: the class of an architecture would set its own splits instead of the file's.
            tokenizer = PreTrainedTokenizerFast.from_pretrained(**file)
            model: Any = AutoModelForCausalLM.from_pretrained(**file, config=config, dtype=source.dtype)
        _set_tokenizer(tokenizer, source, config.max_position_embeddings)
        held = sum(weight.numel() for weight in model.parameters())
        stored = sum(int(tensor.n_elements) for tensor in source.reader.tensors if not tensor.name.startswith("rope_"))
        if held != stored:  # transformers ignores tensors that it does not know
            raise ModelError(
                f"{source.path} has {stored:,} weights, not the {held:,} of its model. Use the model's own checkpoint"
            )
        # With the mark of GGUF transformers refuses to save the model.
        model.hf_quantizer = None
        del model.config.quantization_config
        vars(model.config).pop("_model_name_or_path", None)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except (SkipwiseError, OSError):
        raise
    except Exception as error:  # transformers raises errors of many types
        raise ModelError(
            f"{source.path} ({source.architecture}) cannot be converted: {reason(error)}. Use the model's own checkpoint"
        ) from error
    write_legacy_keys(folder)
    write_seal(folder, {"converted_from": source.path.name})


def _set_tokenizer(tokenizer: PreTrainedTokenizerFast, source: GGUFFile, length: int) -> None:
    """Set the splits and special tokens that transformers leaves out."""
    kind, pre = source.get("tokenizer.ggml.model"), source.get("tokenizer.ggml.pre")
    tokenizer.model_max_length = length
    backend = tokenizer.backend_tokenizer
    if pre in _WHOLE_FIRST:
        backend.model.ignore_merges = True
    if pre in _DIGITS_FIRST:
        digits = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    begins = source.get("tokenizer.ggml.add_bos_token", kind == "llama" or pre in _WHOLE_FIRST)  # as llama.cpp
    begin = [tokenizer.bos_token] * bool(begins and tokenizer.bos_token)
    end = [tokenizer.eos_token] * bool(source.get("tokenizer.ggml.add_eos_token") and tokenizer.eos_token)
    backend.post_processor = processors.TemplateProcessing(
        single=[*begin, "$A", *end],
        pair=[*begin, "$A", *end, *begin, "$B", *end],
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in {*begin, *end}],
    )


def _set_rope(config: PretrainedConfig, source: GGUFFile) -> None:
    """Set the scaling of the RoPE, which transformers ignores."""
    rope = rope_of(config)
    kind = source.setting("rope.scaling.type", "linear")  # llama.cpp's default
    factor = source.setting("rope.scaling.factor", source.setting("rope.scale_linear", 1.0))
    attention = source.setting("rope.scaling.attn_factor", 1.0)
    lists = {tensor.name: tensor.data for tensor in source.reader.tensors if tensor.name.startswith("rope_")}
    plain = kind == "none" or (kind == "linear" and factor == 1)
    if plain and list(lists) == ["rope_freqs.weight"] and (llama3 := _llama3(config, lists["rope_freqs.weight"])):
        rope |= llama3
    elif lists or kind not in ("none", "linear", "yarn"):
        raise ModelError(
            f"{source.path} has a RoPE of type {kind} ({', '.join(lists)}), which has no conversion. Use the model's own checkpoint"
        )
    elif kind == "yarn":
        original = source.setting("rope.scaling.original_context_length", config.max_position_embeddings / factor)
        rope |= {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": int(original),
            "attention_factor": yarn_attention(factor) * attention,  # llama.cpp multiplies
            "beta_fast": source.setting("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": source.setting("rope.scaling.yarn_beta_slow", 1.0),
        }
    elif not plain:
        rope |= {"rope_type": "linear", "factor": factor}


def _llama3(config: PretrainedConfig, factors: np.ndarray) -> dict[str, Any] | None:
    """Return Llama 3.1's RoPE if it divides frequencies by ``factors``."""
    rope, scaled = rope_of(config), deepcopy(config)
    llama3 = {
        "rope_type": "llama3",
        "factor": float(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaled.rope_parameters = dict(rope) | llama3
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](scaled, torch.device("cpu"))
    plain = rope["rope_theta"] ** -(torch.arange(0, dim := rotated_dims(config, rope), 2) / dim)
    divided = plain / torch.tensor(factors, dtype=torch.float32).flatten()
    return llama3 if torch.allclose(frequencies, divided, rtol=1e-4, atol=0) else None


def _set_attention(config: PretrainedConfig, source: GGUFFile) -> None:
    """Set the head size of Qwen3 and the attention scale of Gemma."""
    if config.model_type == "qwen3":
        config.head_dim = source.setting("attention.key_length", config.head_dim)
    if hasattr(config, "query_pre_attn_scalar"):
        large = config.num_hidden_layers in (46, 62)  # the 27B of Gemma 2 and 3
        width = config.hidden_size // config.num_attention_heads
        config.query_pre_attn_scalar = width if large else config.head_dim
