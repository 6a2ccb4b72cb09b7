"""Tiny random models of each family, of sizes that every engine takes, extended from 256 tokens to 2,048."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from skipwise.model.config import load_config
from skipwise.model.convert import convert
from skipwise.model.extension import plan_extension
from skipwise.model.loading import load_model, load_tokenizer, save_extended

WINDOW, TARGET = 256, 2048
INTERPOLATIONS = ("linear", "ntk", "yarn", "yarn-revised", "power", "yarn-fitted")
_FITTED = {"yarn-fitted": ("yarn", {"beta_slow": 2.0, "attention_factor": 1.15})}
_SHARED = {
    "vocab_size": 4096,  # nano's tokenizer
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": WINDOW,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_GROUPED = {"num_key_value_heads": 2}
_HEADS = {**_GROUPED, "head_dim": 64}
# family: model type, and what its config has besides ``_SHARED``
_FAMILIES = {
    "llama": ("llama", _GROUPED),
    "mistral": ("mistral", {**_HEADS, "sliding_window": None}),
    "qwen2": ("qwen2", _GROUPED),
    "qwen3": ("qwen3", _HEADS),
    "gpt_neox": ("gpt_neox", {}),
    "phi": ("gptj", {"intermediate_size": None, "rotary_dim": 32}),  # converted from GPT-J
    "gemma3": (
        "gemma3_text",
        {**_HEADS, "num_hidden_layers": 6, "sliding_window": 64, "query_pre_attn_scalar": 64, "pad_token_id": 1},
    ),
    "olmo2": ("olmo2", {**_GROUPED, "pad_token_id": 1}),
}
FAMILIES = tuple(_FAMILIES)


def model(family: str) -> PreTrainedModel:
    """A random model whose attention is far from flat, so that a wrong RoPE shows."""
    kind, differs = _FAMILIES[family]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**_SHARED, **differs})).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                outer = any(part in name for part in ("embed", "wte", "lm_head"))
                weight.mul_(3.0 if outer else 4.0)
    return model


def base(folder: Path, family: str) -> Path:
    """A checkpoint with the window of 256 tokens."""
    at = folder / f"{family}-base"
    if at.exists():
        return at
    source = folder / f"{family}-source" if family == "phi" else at
    model(family).save_pretrained(source)
    load_tokenizer("nano").save_pretrained(source)
    return convert(str(source), at) if family == "phi" else at


def extended(folder: Path, family: str, interpolation: str) -> Path:
    """A checkpoint extended to 2,048 tokens, as the product saves it."""
    out = folder / f"{family}.{interpolation}"
    if not out.exists():
        start = str(base(folder, family))
        name, settings = _FITTED.get(interpolation, (interpolation, {}))
        extension = plan_extension(load_config(start), interpolation=name, rope=settings)
        save_extended(load_model(start, extension), load_tokenizer("nano"), extension, out)
    return out
