"""Convert GPT-J, Baichuan2-7B, the PoSE authors' checkpoints and GGUF files to stock checkpoints.

The networks are the same:

    GPT-J           -> Phi      rows of q and k go from interleaved to half-split rotation; missing biases are 0
    Baichuan2-7B    -> Llama    ``W_pack`` is split into q, k and v; the rows of the output head are normalised
    PoSE's authors' -> Llama, Phi   their types of ``rope_scaling`` become ``rope_parameters``

A config is read as JSON and weights as tensors, so no code of a checkpoint runs. transformers reads weights and tokenizer of a
GGUF file; added here are the scaling of the RoPE, the attention scale of large Gemmas, some pre-tokenizers, and special tokens.
"""

import io
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from huggingface_hub import snapshot_download
from rich.console import Console
from tokenizers import Regex, pre_tokenizers, processors
from torch.nn.functional import normalize
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPTJConfig,
    LlamaConfig,
    LlamaTokenizer,
    PhiConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    modeling_gguf_pytorch_utils,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import load_state_dict

from skipwise.errors import EngineError, ModelError, library_errors, pip_install
from skipwise.method.interpolation import Rope, rope_parameters, yarn_attention
from skipwise.method.lengths import parse_length
from skipwise.model.config import rope_of, rotated_dims, unreadable, write_legacy_keys, write_seal
from skipwise.model.cost import meta_model
from skipwise.results.files import new_folder, read_json, write_json

_SHARD_BYTES = 2**30  # at most, of each file of weights
# rope_scaling types in the paper authors' code -> our names; their YaRN mixes periods, except for GPT-J.
_AUTHORS = {"linear": "linear", "vanilla_ntk": "ntk", "yarn": "yarn-revised"}
_FIRST_BAICHUAN = 64_000  # vocabulary of Baichuan-7B; its head is not normalised
_BUFFERS = re.compile(r"(rotary_emb\.(inv_freq|cos_cached|sin_cached)|attn\.(bias|masked_bias|embed_positions))$")
_COPIED = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json",
    "special_tokens_map.json", "generation_config.json", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
_PLAIN_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Pre-tokenizers with which llama.cpp takes a piece that is a token whole, and begins a text with BOS by default.
_WHOLE_FIRST = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"}
# Pre-tokenizers unknown to transformers: each digit is a piece, and GPT-2's expression splits the rest.
_DIGITS_FIRST = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}

Tensors = Iterator[tuple[str, torch.Tensor]]
Rename = Callable[[str, torch.Tensor], Tensors]  # from a tensor of the source to those of the stock class


def convert(
    checkpoint: str, out: Path, *, original_length: int | str | None = None, console: Console | None = None
) -> Path:
    """Write a checkpoint (a folder or a name on the hub) as a stock class with the same logits.

    ``original_length`` is L_o of a checkpoint of PoSE's authors, if its config does not have it.

    Raises:
        ModelError: there is no conversion for the checkpoint, or its weights cannot be read.
        RunError: ``out`` exists.
    """
    folder = Path(checkpoint)
    if not folder.is_dir():
        try:
            wanted = ["config.json", *_COPIED, "*.safetensors", "*.index.json", "pytorch_model*.bin"]
            folder = Path(snapshot_download(checkpoint, allow_patterns=wanted))
        except Exception as error:  # of many types: no network, no such name, no access
            raise ModelError(unreadable(checkpoint, error)) from error
    source = read_json(folder / "config.json")
    config, rename = plan_conversion(source, original_length)
    about = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").exists() else {}
    remote_tokenizer = "auto_map" in about and not (folder / "tokenizer.json").exists()
    if remote_tokenizer and not all(find_spec(package) for package in ("sentencepiece", "google.protobuf")):
        raise ModelError(f"{folder / 'tokenizer.model'} needs two packages. {pip_install('sentencepiece')}")
    lengths = f"RoPE {config.rope_parameters}, {config.max_position_embeddings:,} tokens"
    (console or Console(quiet=True)).print(f"{source['model_type']} -> {config.model_type}: {lengths}", soft_wrap=True)
    with new_folder(out) as partial:
        _write_weights(folder, partial, config, rename)
        for path in filter(Path.exists, (folder / name for name in _COPIED)):
            shutil.copyfile(path, partial / path.name)
        if remote_tokenizer:
            _write_stock_tokenizer(partial, about)
        write_legacy_keys(partial)
        write_seal(partial, {"converted_from": checkpoint})
    return out


def _tensors(folder: Path) -> Tensors:
    """Yield the weights of a checkpoint, safetensors if it has both kinds; no code of a pickle runs."""
    names = ["model.safetensors"]  # reported as missing where it is read
    for whole in ("pytorch_model.bin", "model.safetensors"):
        index = folder / f"{whole}.index.json"
        if index.exists():
            names = sorted(set(read_json(index)["weight_map"].values()))
        elif (folder / whole).exists():
            names = [whole]
    fix = "Download it again, or get the checkpoint as safetensors"
    for path in [folder / name for name in names]:
        with library_errors(ModelError, f"{path} cannot be read as weights", fix):
            yield from load_state_dict(str(path), weights_only=True).items()


def _write_weights(source: Path, folder: Path, config: PretrainedConfig, rename: Rename) -> None:
    """Write config and weights of the stock class; dtype and vocabulary size are those of the weights."""
    old = ((name, tensor) for name, tensor in _tensors(source) if not _BUFFERS.search(name))
    weights = dict(new for name, tensor in old for new in rename(name, tensor))
    embeddings = weights["model.embed_tokens.weight"]
    config.vocab_size = len(embeddings)  # the config may not count an added pad token
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = embeddings
    model = meta_model(config)
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    model.config.dtype = embeddings.dtype
    model.config.rope_parameters = config.rope_parameters  # the first releases of transformers 5 change Phi's
    model.save_pretrained(folder, max_shard_size=_SHARD_BYTES)


def plan_conversion(
    config: Mapping[str, Any], original_length: int | str | None = None
) -> tuple[PretrainedConfig, Rename]:
    """Return the stock config, and how tensors change, of the checkpoint with this ``config.json``."""
    kind, scaling = config.get("model_type"), config.get("rope_scaling") or {}
    # The authors' code writes only a type and a factor.
    named = _AUTHORS.get(scaling["type"]) if set(scaling) == {"type", "factor"} else None
    if kind == "gptj":
        stock, rename = _gptj(config)
        named = "yarn" if named == "yarn-revised" else named
    elif kind == "baichuan":
        stock, rename = _baichuan(config)
    elif kind == "llama" and named:
        stock, rename = _llama_config(config), lambda name, tensor: iter([(name, tensor)])
    else:
        raise ModelError(
            f"model_type {kind!r} with rope_scaling {scaling} has no conversion; GPT-J, Baichuan2-7B and Llama of PoSE's authors "
            "have one. Give another model to skipwise extend directly"
        )
    if named:
        factor, window = float(scaling["factor"]), int(stock.max_position_embeddings)
        # Their code stores the scaled length. None of their bases exceeds 4,096 tokens, so a value up to that is unscaled.
        original = (
            parse_length(original_length) if original_length else int(window / factor) if window > 4096 else window
        )
        old: Any = stock.rope_parameters
        rope = Rope(old["rope_theta"], rotated_dims(stock, old), original)
        stock.rope_parameters = {**old, **rope_parameters(named, rope, factor)}
        stock.max_position_embeddings = round(original * factor)
    return stock, rename


def _gptj(config: Mapping[str, Any]) -> tuple[PretrainedConfig, Rename]:
    """Return the conversion to Phi, which has the same block: one norm, then attention and feed-forward in parallel."""
    config = {**GPTJConfig().to_dict(), **config}
    heads, width, rotated = config["n_head"], config["n_embd"], config["rotary_dim"]
    head = width // heads
    equal = "vocab_size resid_pdrop embd_pdrop initializer_range tie_word_embeddings bos_token_id eos_token_id"
    stock = PhiConfig(
        architectures=["PhiForCausalLM"],
        hidden_size=width,
        intermediate_size=config["n_inner"] or 4 * width,
        num_hidden_layers=config["n_layer"],
        num_attention_heads=heads,
        hidden_act=config["activation_function"],
        max_position_embeddings=config["n_positions"],
        layer_norm_eps=config["layer_norm_epsilon"],
        attention_dropout=config["attn_pdrop"],
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": rotated / head},
        **{name: config[name] for name in equal.split()},
    )
    half_split = torch.cat([torch.arange(0, rotated, 2), torch.arange(1, rotated, 2), torch.arange(rotated, head)])
    names = {
        "transformer.wte.": "model.embed_tokens.",
        "transformer.h.": "model.layers.",
        "transformer.ln_f.": "model.final_layernorm.",
        ".ln_1.": ".input_layernorm.",
        ".attn.out_proj.": ".self_attn.dense.",
        ".attn.": ".self_attn.",
        ".mlp.fc_in.": ".mlp.fc1.",
        ".mlp.fc_out.": ".mlp.fc2.",
    }

    def tensors(name: str, tensor: torch.Tensor) -> Tensors:
        for theirs, stock_name in names.items():
            name = name.replace(theirs, stock_name)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = tensor.view(heads, head, width)[:, half_split].reshape(heads * head, width)
        yield name, tensor
        if ".self_attn." in name:
            yield name.removesuffix("weight") + "bias", torch.zeros(len(tensor), dtype=tensor.dtype)

    return stock, tensors


def _baichuan(config: Mapping[str, Any]) -> tuple[PretrainedConfig, Rename]:
    """Return the conversion of Baichuan2-7B to Llama."""
    if "max_position_embeddings" not in config or config["vocab_size"] == _FIRST_BAICHUAN:
        raise ModelError(
            "13B models of Baichuan have ALiBi, and the first Baichuan-7B another head. Choose Baichuan2-7B"
        )

    def tensors(name: str, tensor: torch.Tensor) -> Tensors:
        if name.endswith("self_attn.W_pack.weight"):
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                yield name.replace("W_pack", f"{part}_proj"), rows
        elif name == "lm_head.weight":
            yield name, normalize(tensor.float()).to(tensor.dtype)
        else:
            yield name, tensor

    return _llama_config(config), tensors


def _llama_config(config: Mapping[str, Any]) -> LlamaConfig:
    known = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads hidden_act "
        "max_position_embeddings initializer_range rms_norm_eps pad_token_id bos_token_id eos_token_id "
        "tie_word_embeddings"
    )
    kept = {name: config[name] for name in known.split() if name in config}
    rope = {"rope_type": "default", "rope_theta": float(config.get("rope_theta") or 10_000.0)}
    return LlamaConfig(**kept, architectures=["LlamaForCausalLM"], rope_parameters=rope)


def _write_stock_tokenizer(folder: Path, about: dict[str, Any]) -> None:
    """Write a stock tokenizer with the tokens of ``tokenizer.model``; unlike Llama's, Baichuan 2's adds no space before a text."""
    tokenizer = LlamaTokenizer.from_pretrained(folder, add_prefix_space=False)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    del about["auto_map"]  # remote code
    about["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_json(folder / "tokenizer_config.json", about)


class GGUFFile:
    """Settings and tensors of a GGUF file."""

    def __init__(self, path: Path) -> None:
        if find_spec("gguf") is None:
            raise EngineError(f"a GGUF file needs the package gguf. {pip_install('gguf')}")
        from gguf import GGUFReader

        with library_errors(ModelError, f"{path} cannot be read as a GGUF file", "Download it again"):
            self.reader = GGUFReader(path)
            self.architecture = str(self.reader.fields["general.architecture"].contents())
        if self.get("split.count", 1) > 1:
            raise ModelError(f"{path} is one of several parts. Merge them with llama-gguf-split --merge")
        self.path = path
        matrices = [tensor for tensor in self.reader.tensors if len(tensor.shape) > 1]
        self.types = " and ".join(sorted({tensor.tensor_type.name for tensor in matrices}))
        # Quantised weights become bfloat16, the type that most models were trained in.
        self.dtype = _PLAIN_TYPES.get(self.types, torch.bfloat16)
        norms = [each for each in self.reader.tensors if len(each.shape) == 1 and not each.name.startswith("rope_")]
        vectors = (torch.tensor(norm.data) for norm in norms if norm.data.dtype == np.float32)
        self.vectors_fit = all(torch.equal(vector, vector.to(self.dtype).float()) for vector in vectors)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting."""
        field = self.reader.fields.get(name)
        return default if field is None else field.contents()

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a setting of the architecture; 0 means the default."""
        return self.get(f"{self.architecture}.{name}") or default


def round_matrices(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Round weights to ``dtype``, but not vectors: norms of models made from AWQ differ in bfloat16 by up to 0.008."""
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.data = weight.data.to(dtype)
    cast(Any, model).config.dtype = dtype


def write_checkpoint(source: GGUFFile, folder: Path) -> None:
    """Write config, weights and tokenizer of a stock checkpoint."""
    # transformers looks for the package gguf by its name; the extra has its modules under another name.
    modeling_gguf_pytorch_utils.is_gguf_available = lambda *_, **__: True
    problem = f"{source.path} ({source.architecture}) cannot be converted"
    with library_errors(ModelError, problem, "Use the model's own checkpoint"):
        with TemporaryDirectory() as alone, redirect_stderr(io.StringIO()):  # without other files and progress bars
            (Path(alone) / "model.gguf").symlink_to(source.path.resolve())
            file: dict[str, Any] = {"gguf_file": "model.gguf", "trust_remote_code": False}
            config = AutoConfig.from_pretrained(alone, **file)
            _set_rope(config, source)
            _set_attention(config, source)
            # Not AutoTokenizer: the class of an architecture would set its own splits instead of the file's.
            tokenizer = PreTrainedTokenizerFast.from_pretrained(alone, **file)
            dtype = source.dtype if source.vectors_fit else torch.float32
            model: Any = AutoModelForCausalLM.from_pretrained(alone, config=config, dtype=dtype, **file)
            if dtype != source.dtype:
                round_matrices(model, source.dtype)
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
