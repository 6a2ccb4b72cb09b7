"""Convert checkpoints whose class has no ``rope_parameters`` to the same network in a stock class that has them.

    GPT-J           -> Phi      rows of q and k go from interleaved to half-split rotation; missing biases are 0
    Baichuan2-7B    -> Llama    ``W_pack`` is split into q, k and v; the rows of the output head are normalised
    PoSE's authors' -> Llama, Phi   their own types of ``rope_scaling`` become ``rope_parameters``

No code of a checkpoint is executed: its config is read as JSON, its weights as tensors.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import normalize
from transformers import LlamaConfig, PhiConfig, PretrainedConfig

from skipwise.errors import ModelError
from skipwise.method.interpolation import Rope, rope_parameters
from skipwise.method.lengths import parse_length
from skipwise.model.rope import SCALED, rotated_dims

Tensors = Iterator[tuple[str, torch.Tensor]]

# rope_scaling types in the paper authors' code -> our names; their YaRN mixes periods, except for GPT-J
_AUTHORS = {"linear": "linear", "vanilla_ntk": "ntk", "yarn": "yarn-revised"}
_FIRST_BAICHUAN = 64_000  # vocabulary of Baichuan 1, whose head is not normalised
_BUFFERS = re.compile(r"(rotary_emb\.(inv_freq|cos_cached|sin_cached)|attn\.(bias|masked_bias|embed_positions))$")


@dataclass(frozen=True)
class Conversion:
    """How to write a checkpoint as one of a stock class."""

    source: str  # the name of the recognised source model
    config: PretrainedConfig  # of the stock class
    convert: Callable[[str, torch.Tensor], Tensors]  # maps a source's tensor to named tensors of the stock class
    notes: tuple[str, ...] = ()  # lines to show to the user

    def tensors(self, name: str, tensor: torch.Tensor) -> Tensors:
        """Yield the stock tensors for one tensor; none for a buffer that the stock class computes itself."""
        if _BUFFERS.search(name):
            return
        try:
            yield from self.convert(name, tensor)
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"{name} has shape {tuple(tensor.shape)}, which does not fit the config ({error}); "
                "the checkpoint is damaged, or belongs to another config"
            ) from error


def plan_conversion(config: Mapping[str, Any], original_length: int | str | None = None) -> Conversion:
    """Return the conversion of the checkpoint with this ``config.json``.

    ``original_length`` is L_o of a checkpoint of the authors, if its config does not give the true one.
    """
    original = parse_length(original_length) if original_length is not None else None
    kind = config.get("model_type")
    match kind:
        case "gptj":
            plan = _gptj(config)
        case "baichuan":
            plan = _baichuan(config)
        case "llama" if _by_authors(config):
            plan = Conversion("Llama of PoSE's authors", _llama_config(config), _as_it_is)
        case "llama":
            raise ModelError(_unconverted(config))
        case _:
            raise ModelError(
                f"model_type {kind!r} is not converted. Conversions exist for gptj, baichuan (7B), and Llama with the "
                "rope_scaling of PoSE's authors; give a model with rope_parameters to skipwise extend directly"
            )
    if _by_authors(config):
        return _with_authors_scaling(plan, config, original)
    if original is not None:
        raise ModelError(
            f"--original {original:,} is for a checkpoint of PoSE's authors, and this one lacks their rope_scaling; "
            "leave it out, and give original_length to skipwise extend if the config's window is not the true one"
        )
    return plan


def _unconverted(config: Mapping[str, Any]) -> str:
    """Return why a Llama is not converted: it needs no conversion, or its scaling is unknown."""
    scaling = config.get("rope_scaling")
    if not scaling:
        return "model_type llama needs no conversion: give it to skipwise extend directly"
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, Mapping) else None
    if kind in SCALED | {"dynamic"}:
        return (
            f"model_type llama with {kind} rope_scaling needs no conversion: give it to skipwise extend with "
            "--existing-rope replace"
        )
    return (
        f"config has rope_scaling {scaling!r}, a type of neither transformers nor PoSE's authors "
        f"({', '.join(_AUTHORS)}, each with a factor); correct config.json, or start from the base model"
    )


def _as_it_is(name: str, tensor: torch.Tensor) -> Tensors:
    yield name, tensor


def _gptj(config: Mapping[str, Any]) -> Conversion:
    """Return the conversion to Phi, which has the same block: one norm, then attention and feed-forward in parallel."""
    heads, width = int(config["n_head"]), int(config["n_embd"])
    rotated, head = config.get("rotary_dim"), width // heads
    if not rotated or rotated > head:
        raise ModelError(
            f"config has rotary_dim {rotated!r}, which must be from 2 to the {head} dims of a head; correct config.json"
        )
    stock = PhiConfig(
        architectures=["PhiForCausalLM"],
        vocab_size=config["vocab_size"],
        hidden_size=width,
        intermediate_size=config.get("n_inner") or 4 * width,
        num_hidden_layers=config["n_layer"],
        num_attention_heads=heads,
        hidden_act=config.get("activation_function", "gelu_new"),
        max_position_embeddings=config["n_positions"],
        layer_norm_eps=config.get("layer_norm_epsilon", 1e-5),
        resid_pdrop=config.get("resid_pdrop", 0.0),
        embd_pdrop=config.get("embd_pdrop", 0.0),
        attention_dropout=config.get("attn_pdrop", 0.0),
        initializer_range=config.get("initializer_range", 0.02),
        tie_word_embeddings=config.get("tie_word_embeddings", False),
        bos_token_id=config.get("bos_token_id"),
        eos_token_id=config.get("eos_token_id"),
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": rotated / head},
    )
    half_split = torch.cat([torch.arange(0, rotated, 2), torch.arange(1, rotated, 2), torch.arange(rotated, head)])

    def convert(name: str, tensor: torch.Tensor) -> Tensors:
        new = name
        for theirs, stock_name in _GPTJ_NAMES.items():
            new = new.replace(theirs, stock_name)
        if new.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = tensor.view(heads, head, width)[:, half_split].reshape(heads * head, width)
        yield new, tensor
        if ".self_attn." in new:
            yield new.removesuffix("weight") + "bias", torch.zeros(len(tensor), dtype=tensor.dtype)

    return Conversion("GPT-J", stock, convert)


_GPTJ_NAMES = {
    "transformer.wte.": "model.embed_tokens.",
    "transformer.h.": "model.layers.",
    "transformer.ln_f.": "model.final_layernorm.",
    ".ln_1.": ".input_layernorm.",
    ".attn.out_proj.": ".self_attn.dense.",
    ".attn.": ".self_attn.",
    ".mlp.fc_in.": ".mlp.fc1.",
    ".mlp.fc_out.": ".mlp.fc2.",
}


def _baichuan(config: Mapping[str, Any]) -> Conversion:
    """Return the conversion of a 7B model to Llama, the same network under other names; the 13B models have ALiBi."""
    if "max_position_embeddings" not in config:
        raise ModelError(
            "this Baichuan has ALiBi positions, as the 13B models do; PoSE needs rotary position embeddings: choose a "
            "7B model"
        )
    first = config["vocab_size"] == _FIRST_BAICHUAN

    def convert(name: str, tensor: torch.Tensor) -> Tensors:
        if name.endswith("self_attn.W_pack.weight"):
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                yield name.replace("W_pack", f"{part}_proj"), rows
        elif name == "lm_head.weight" and not first:
            yield name, _unit_rows(tensor)
        else:
            yield name, tensor

    return Conversion("Baichuan-7B" if first else "Baichuan2-7B", _llama_config(config), convert)


def _unit_rows(weight: torch.Tensor) -> torch.Tensor:
    """Divide each row by its norm in float32, 8,192 at a time to save memory: a head is the largest tensor."""
    unit = torch.empty_like(weight)
    for part, into in zip(weight.split(8192), unit.split(8192), strict=True):
        into.copy_(normalize(part.float()))
    return unit


def _llama_config(config: Mapping[str, Any]) -> LlamaConfig:
    known = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads hidden_act "
        "max_position_embeddings initializer_range rms_norm_eps pad_token_id bos_token_id eos_token_id "
        "tie_word_embeddings"
    )
    kept = {name: config[name] for name in known.split() if name in config}
    rope = {"rope_type": "default", "rope_theta": float(config.get("rope_theta") or 10_000.0)}
    return LlamaConfig(**kept, architectures=["LlamaForCausalLM"], rope_parameters=rope)


def _by_authors(config: Mapping[str, Any]) -> bool:
    """Return whether the config has a ``rope_scaling`` as the authors' code writes it: only a type and a factor."""
    scaling = config.get("rope_scaling")
    return isinstance(scaling, Mapping) and set(scaling) == {"type", "factor"} and scaling["type"] in _AUTHORS


def _with_authors_scaling(plan: Conversion, config: Mapping[str, Any], original: int | None) -> Conversion:
    scaling, stock = config["rope_scaling"], plan.config
    factor = float(scaling["factor"])
    named = _AUTHORS[scaling["type"]]
    if plan.source == "GPT-J" and named == "yarn-revised":
        named = "yarn"
    window = int(stock.max_position_embeddings)
    # Their code stores the scaled length. None of their bases exceeds 4,096 tokens, so a value up to that is unscaled.
    original = original or (int(window / factor) if window > 4096 else window)
    old = stock.rope_parameters
    rope = Rope(old["rope_theta"], rotated_dims(stock, old), original)
    kept = {name: value for name, value in old.items() if name == "partial_rotary_factor"}
    stock.rope_parameters = {**kept, **rope_parameters(named, rope, factor)}
    stock.max_position_embeddings = round(original * factor)
    note = f"rope_scaling {scaling['type']} x{factor:g} is {named} from {original:,} to {round(original * factor):,}"
    return Conversion(f"{plan.source}, extended", stock, plan.convert, (note,))
