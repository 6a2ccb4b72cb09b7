"""Convert checkpoints without ``rope_parameters`` to stock classes that have them.

The networks are the same:

    GPT-J           -> Phi      rows of q and k go from interleaved to half-split rotation; missing biases are 0
    Baichuan2-7B    -> Llama    ``W_pack`` is split into q, k and v; the rows of the output head are normalised
    PoSE's authors' -> Llama, Phi   their types of ``rope_scaling`` become ``rope_parameters``

No code of a checkpoint runs: its config is read as JSON, its weights as tensors.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub import snapshot_download
from rich.console import Console
from safetensors import SafetensorError, safe_open
from tokenizers import Regex, decoders, normalizers
from torch.nn.functional import normalize
from transformers import AutoModelForCausalLM, AutoTokenizer, GPTJConfig, LlamaConfig, PhiConfig, PretrainedConfig

from skipwise.errors import ModelError, pip_install, reason
from skipwise.method.interpolation import Rope, rope_parameters
from skipwise.method.lengths import parse_length
from skipwise.model.config import rotated_dims, write_legacy_keys
from skipwise.model.origin import write_seal
from skipwise.results.files import new_folder

_SHARD_BYTES = 2**30  # at most, of each file of weights
# rope_scaling types in the paper authors' code -> our names; their YaRN mixes periods, except for GPT-J.
_AUTHORS = {"linear": "linear", "vanilla_ntk": "ntk", "yarn": "yarn-revised"}
_FIRST_BAICHUAN = 64_000  # vocabulary of Baichuan 1; its head is not normalised
_BUFFERS = re.compile(r"(rotary_emb\.(inv_freq|cos_cached|sin_cached)|attn\.(bias|masked_bias|embed_positions))$")
_COPIED = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json",
    "special_tokens_map.json", "generation_config.json", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
_SPACE = "\u2581"  # SentencePiece's sign for a space

Tensors = Iterator[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class Conversion:
    """A conversion to a stock class."""

    source: str
    config: PretrainedConfig  # of the stock class
    tensors: Callable[[str, torch.Tensor], Tensors]  # from a tensor of the source to those of the stock class


def convert(
    checkpoint: str, out: Path, *, original_length: int | str | None = None, console: Console | None = None
) -> Path:
    """Write a checkpoint as a stock class with the same logits.

    Args:
        checkpoint: a folder or a name on the model hub, with safetensors or ``.bin`` weights.
        original_length: L_o of a checkpoint of PoSE's authors, if its config does not have it.

    Raises:
        ModelError: there is no conversion for the checkpoint, or its weights cannot be read.
        RunError: ``out`` exists.
    """
    console = console or Console(quiet=True)
    folder = Path(checkpoint)
    if not folder.is_dir():
        try:
            wanted = ["config.json", *_COPIED, "*.safetensors", "*.index.json", "pytorch_model*.bin"]
            folder = Path(snapshot_download(checkpoint, allow_patterns=wanted))
        except Exception as error:  # of many types: no network, no such name, no access
            raise ModelError(
                f"{checkpoint!r} is no folder and cannot be fetched from the hub ({reason(error)}). Give a checkpoint's folder"
            ) from error
    plan = plan_conversion(_read(folder / "config.json"), original_length)
    about = _read(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").exists() else {}
    remote_tokenizer = "auto_map" in about and not (folder / "tokenizer.json").exists()
    if remote_tokenizer and not all(find_spec(package) for package in ("sentencepiece", "google.protobuf")):
        raise ModelError(f"{folder / 'tokenizer.model'} needs two packages. {pip_install('sentencepiece')}")
    rope: Any = plan.config.rope_parameters
    console.print(f"{plan.source} -> {type(plan.config).__name__.removesuffix('Config')}", soft_wrap=True)
    if rope["rope_type"] != "default" or rope["rope_theta"] != 10_000:
        console.print(f"RoPE: {rope}, {plan.config.max_position_embeddings:,} tokens", soft_wrap=True)
    with new_folder(out) as partial:
        _write_weights(plan, folder, partial)
        for path in filter(Path.exists, (folder / name for name in _COPIED)):
            shutil.copyfile(path, partial / path.name)
        if remote_tokenizer:
            _write_stock_tokenizer(partial, about)
        write_legacy_keys(partial)
        write_seal(partial, {"converted_from": checkpoint})
    return out


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _shards(folder: Path) -> list[Path]:
    """Return the files of weights; safetensors if the checkpoint has both kinds."""
    for whole in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{whole}.index.json"
        if index.exists():
            return [folder / name for name in sorted(set(_read(index)["weight_map"].values()))]
        if (folder / whole).exists():
            return [folder / whole]
    return [folder / "model.safetensors"]  # reported as missing where it is opened


def _tensors(path: Path) -> Tensors:
    """Yield the tensors of a file, mapped into memory; no code of a pickle runs."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a dictionary)
                    yield name, file.get_tensor(name)
        else:
            yield from torch.load(path, map_location="cpu", weights_only=True, mmap=True).items()
    except (SafetensorError, UnpicklingError, RuntimeError, OSError) as error:
        raise ModelError(
            f"{path} cannot be read as weights ({reason(error)}). Download it again, or get the checkpoint as safetensors"
        ) from error


def _write_weights(plan: Conversion, source: Path, folder: Path) -> None:
    """Write config and weights of the stock class; dtype and vocabulary size are those of the weights."""
    weights = {
        new: value
        for shard in _shards(source)
        for name, tensor in _tensors(shard)
        if not _BUFFERS.search(name)
        for new, value in plan.tensors(name, tensor)
    }
    embeddings = weights["model.embed_tokens.weight"]
    plan.config.vocab_size = len(embeddings)  # the config may not count an added pad token
    if plan.config.tie_word_embeddings:
        weights["lm_head.weight"] = embeddings
    rope = dict(plan.config.rope_parameters)  # the first releases of transformers 5 change Phi's
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(plan.config)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ModelError(f"the weights in {source} do not fit its config ({error}). Download it again") from error
    model.tie_weights()
    model.config.dtype = embeddings.dtype
    model.config.rope_parameters = rope
    model.save_pretrained(folder, max_shard_size=_SHARD_BYTES)


def plan_conversion(config: Mapping[str, Any], original_length: int | str | None = None) -> Conversion:
    """Return the conversion of the checkpoint with this ``config.json``."""
    scaling, kind = config.get("rope_scaling"), config.get("model_type")
    # The authors' code writes only a type and a factor.
    by_authors = isinstance(scaling, Mapping) and set(scaling) == {"type", "factor"} and scaling["type"] in _AUTHORS
    if kind == "gptj":
        plan = _gptj(config)
    elif kind == "baichuan":
        plan = _baichuan(config)
    elif kind == "llama" and by_authors:
        plan = Conversion("Llama of PoSE's authors", _llama_config(config), lambda name, tensor: iter([(name, tensor)]))
    else:
        raise ModelError(
            f"model_type {kind!r} with rope_scaling {scaling!r} has no conversion; GPT-J, Baichuan 7B and Llama of PoSE's authors "
            "have one. Give another model to skipwise extend directly"
        )
    if not by_authors:
        return plan
    assert scaling is not None
    factor, named, stock = float(scaling["factor"]), _AUTHORS[scaling["type"]], plan.config
    if kind == "gptj" and named == "yarn-revised":
        named = "yarn"
    window = int(stock.max_position_embeddings)
    # Their code stores the scaled length. None of their bases exceeds 4,096 tokens, so a value up to that is unscaled.
    original = parse_length(original_length) if original_length else int(window / factor) if window > 4096 else window
    old: Any = stock.rope_parameters
    rope = Rope(old["rope_theta"], rotated_dims(stock, old), original)
    stock.rope_parameters = {**old, **rope_parameters(named, rope, factor)}
    stock.max_position_embeddings = round(original * factor)
    return plan


def _gptj(config: Mapping[str, Any]) -> Conversion:
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

    return Conversion("GPT-J", stock, tensors)


def _baichuan(config: Mapping[str, Any]) -> Conversion:
    """Return the conversion of a 7B model to Llama."""
    if "max_position_embeddings" not in config:
        raise ModelError("Baichuan 13B has ALiBi; PoSE needs rotary position embeddings. Choose a 7B model")
    first = config["vocab_size"] == _FIRST_BAICHUAN

    def tensors(name: str, tensor: torch.Tensor) -> Tensors:
        if name.endswith("self_attn.W_pack.weight"):
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                yield name.replace("W_pack", f"{part}_proj"), rows
        elif name == "lm_head.weight" and not first:
            unit = torch.empty_like(tensor)
            for rows, into in zip(tensor.split(8192), unit.split(8192), strict=True):  # float32 takes twice the memory
                into.copy_(normalize(rows.float()))
            yield name, unit
        else:
            yield name, tensor

    return Conversion("Baichuan-7B" if first else "Baichuan2-7B", _llama_config(config), tensors)


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
    """Write a stock tokenizer with the tokens of ``tokenizer.model``.

    Stock Llama tokenizers always put a space before a text. Baichuan 2 does not ("Baichuan 2: Open Large-scale Language
    Models", 2023, section 2.2), so its first token would differ. The model's ``normalizer_spec`` has the rule.
    """
    schema: Any = import_module("sentencepiece.sentencepiece_model_pb2")
    model = schema.ModelProto()
    model.ParseFromString((folder / "tokenizer.model").read_bytes())
    settings = folder / "tokenizer_config.json"
    del about["auto_map"]  # remote code
    # transformers reads the vocabulary and the merges as Llama's.
    settings.write_text(json.dumps(about | {"tokenizer_class": "LlamaTokenizer"}), encoding="utf-8")
    backend = AutoTokenizer.from_pretrained(folder, trust_remote_code=False).backend_tokenizer
    rule = model.normalizer_spec
    steps: list[normalizers.Normalizer] = []
    if rule.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rule.precompiled_charsmap))
    if rule.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    if rule.add_dummy_prefix:
        steps.append(normalizers.Prepend(_SPACE))
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    backend.pre_tokenizer = None
    undone = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*undone, *[decoders.Strip(" ", 1, 0)] * rule.add_dummy_prefix])
    backend.save(str(folder / "tokenizer.json"))
    about["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings.write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
