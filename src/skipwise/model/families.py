"""Checkpoints whose own class has no ``rope_parameters``, as the same network in a stock class that has them.

    GPT-J           -> Phi      rows of q and k from interleaved to half-split rotation; biases that it lacks are 0
    Baichuan2-7B    -> Llama    ``W_pack`` is q, k and v; the rows of the output head are normalised once
    PoSE's authors' -> Llama, Phi   ``rope_scaling`` of their own types as ``rope_parameters``

Nothing is executed that comes with a checkpoint: its config is read as JSON, its weights as tensors.
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
from skipwise.model.rope import SCALED

Tensors = Iterator[tuple[str, torch.Tensor]]

# rope_scaling of the code that the paper's authors released -> ours; their YaRN mixes periods, except for GPT-J
_AUTHORS = {"linear": "linear", "vanilla_ntk": "ntk", "yarn": "yarn-revised"}
_FIRST_BAICHUAN = 64_000  # words; its head is not normalised
_BUFFERS = re.compile(
    r"(rotary_emb\.(inv_freq|cos_cached|sin_cached)|attn\.(bias|masked_bias|embed_positions))$"
)


@dataclass(frozen=True)
class Conversion:
    """How a checkpoint is written as one of a stock class.

    Attributes:
        source: what it was recognised as.
        config: of the stock class.
        convert: a source's tensor -> the tensors that hold it there, by name.
        told: what the user should know of it.
    """

    source: str
    config: PretrainedConfig
    convert: Callable[[str, torch.Tensor], Tensors]
    told: tuple[str, ...] = ()

    def tensors(self, name: str, tensor: torch.Tensor) -> Tensors:
        """What becomes of one tensor; of a buffer that the stock class computes, nothing."""
        if _BUFFERS.search(name):
            return
        try:
            yield from self.convert(name, tensor)
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"{name} has shape {tuple(tensor.shape)}, which the network that the config describes has not ({error}); "
                "the checkpoint is damaged, or of another config"
            ) from error


def plan_conversion(config: Mapping[str, Any], original_length: int | None = None) -> Conversion:
    """Recognise a checkpoint by its ``config.json``.

    Args:
        config: as read, nothing resolved.
        original_length: L_c of a checkpoint of the authors', where its config does not say it truly.

    Raises:
        ModelError: it needs no conversion, or there is none for it.
    """
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
                f"model_type {kind!r} is not converted: there is gptj, baichuan (7B), and Llama with the rope_scaling "
                "of PoSE's authors; what stock transformers rotates by rope_parameters, skipwise extend takes as it is"
            )
    if _by_authors(config):
        return _with_authors_scaling(plan, config, original_length)
    if original_length is not None:
        raise ModelError(
            f"--original {original_length:,} is for a checkpoint of PoSE's authors, and this one has no rope_scaling of "
            "theirs; leave it out, and give original_length to skipwise extend if the config's window is not the true one"
        )
    return plan


def _unconverted(config: Mapping[str, Any]) -> str:
    """Why a Llama is not converted: nothing is to be done, or nobody knows what its scaling means."""
    scaling = config.get("rope_scaling")
    if not scaling:
        return "model_type llama needs no conversion: skipwise extend takes it as it is"
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, Mapping) else None
    if kind in SCALED | {"dynamic"}:
        return f"model_type llama with {kind} rope_scaling needs no conversion: skipwise extend says what it takes of it"
    return (
        f"config has rope_scaling {scaling!r}, which is neither of transformers nor of PoSE's authors "
        f"({', '.join(_AUTHORS)}, each with a factor); mend config.json, or start from the base model"
    )


def _as_it_is(name: str, tensor: torch.Tensor) -> Tensors:
    yield name, tensor


def _gptj(config: Mapping[str, Any]) -> Conversion:
    """GPT-J's block is Phi's: one norm before attention and feed-forward, which stand side by side."""
    heads, width = int(config["n_head"]), int(config["n_embd"])
    turned, head = config.get("rotary_dim"), width // heads
    if not turned or turned > head:
        raise ModelError(
            f"config has rotary_dim {turned!r}, which must be from 2 to the {head} dims of a head; mend config.json"
        )
    stock = PhiConfig(
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
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": turned / head,
        },
    )
    half_split = torch.cat(
        [torch.arange(0, turned, 2), torch.arange(1, turned, 2), torch.arange(turned, head)]
    )

    def convert(name: str, tensor: torch.Tensor) -> Tensors:
        new = name
        for old, stands_for in _GPTJ_NAMES.items():
            new = new.replace(old, stands_for)
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
    """Baichuan's 7B models are Llama's network under other names; the 13B ones have ALiBi."""
    if "max_position_embeddings" not in config:
        raise ModelError(
            "this Baichuan has ALiBi positions, as the 13B models do; PoSE needs rotary position embeddings, as the 7B "
            "models have"
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


def _unit_rows(weight: torch.Tensor, rows: int = 8192) -> torch.Tensor:
    """Divide each row by its length, in float32 and a few rows at a time: a head is the largest tensor of all."""
    unit = torch.empty_like(weight)
    for part, into in zip(weight.split(rows), unit.split(rows), strict=True):
        into.copy_(normalize(part.float()))
    return unit


def _llama_config(config: Mapping[str, Any]) -> LlamaConfig:
    known = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads hidden_act "
        "max_position_embeddings initializer_range rms_norm_eps pad_token_id bos_token_id eos_token_id "
        "tie_word_embeddings"
    )
    kept = {name: config[name] for name in known.split() if name in config}
    theta = float(config.get("rope_theta") or 10_000.0)
    return LlamaConfig(**kept, rope_parameters={"rope_type": "default", "rope_theta": theta})


def _by_authors(config: Mapping[str, Any]) -> bool:
    """Whether the config has a ``rope_scaling`` as their code writes it: a type and a factor, nothing else."""
    scaling = config.get("rope_scaling")
    return isinstance(scaling, Mapping) and set(scaling) == {"type", "factor"} and scaling["type"] in _AUTHORS


def _with_authors_scaling(
    plan: Conversion, config: Mapping[str, Any], original_length: int | None
) -> Conversion:
    scaling, stock = config["rope_scaling"], plan.config
    factor = float(scaling["factor"])
    named = _AUTHORS[scaling["type"]]
    if plan.source == "GPT-J" and named == "yarn-revised":
        named = "yarn"
    window = int(stock.max_position_embeddings)
    # Their code stores the scaled length; a length that no base of theirs exceeds is the base's own.
    original = original_length or (int(window / factor) if window > 4096 else window)
    old = stock.rope_parameters
    head = getattr(stock, "head_dim", None) or stock.hidden_size // stock.num_attention_heads
    turned = int(head * old.get("partial_rotary_factor", 1.0))
    kept = {name: value for name, value in old.items() if name == "partial_rotary_factor"}
    stock.rope_parameters = {
        **kept,
        **rope_parameters(named, Rope(old["rope_theta"], turned, original), factor),
    }
    stock.max_position_embeddings = round(original * factor)
    told = f"rope_scaling {scaling['type']} x{factor:g} is {named} from {original:,} to {round(original * factor):,}"
    return Conversion(f"{plan.source}, extended", stock, plan.convert, (*plan.told, told))
