"""A tiny random model of every family that the tests cover, by stock classes; windows of 64 tokens."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from tests.tiny import byte_tokenizer

WINDOW = 64
_SHARED = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": WINDOW,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
_GROUPED = {"num_key_value_heads": 2}
_HEADS = {**_GROUPED, "head_dim": 16}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": WINDOW // 4,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
# family: model type, and what its config has otherwise than ``_SHARED``
_FAMILIES: dict[str, tuple[str, dict]] = {
    "llama": ("llama", {}),
    "llama2": ("llama", {"num_key_value_heads": 4}),
    "llama3": ("llama", {**_GROUPED, "rope_parameters": _LLAMA3}),
    "mistral": ("mistral", {**_GROUPED, "sliding_window": None}),
    "qwen2": ("qwen2", _GROUPED),
    "qwen3": ("qwen3", _HEADS),
    "gpt_neox": (
        "gpt_neox",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
    ),
    "phi": ("phi", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    "gemma2": ("gemma2", {**_HEADS, "sliding_window": 16, "query_pre_attn_scalar": 16}),
    "gemma3": (
        "gemma3_text",
        {
            **_HEADS,
            "sliding_window": 16,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "olmo2": ("olmo2", _GROUPED),
    "mixtral": ("mixtral", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
}
NAMES = tuple(_FAMILIES)
# Of a mixture of experts each token chooses its own, so other text changes how products are rounded, and no step is planned.
DENSE = tuple(name for name in NAMES if name != "mixtral")
ROTATED = {"gpt_neox": 4, "phi": 8}  # dims a head; the others rotate all 16


def config(name: str, **changes: object) -> PretrainedConfig:
    """The config of a tiny model of the family."""
    kind, differs = _FAMILIES[name]
    return AutoConfig.for_model(kind, **{**_SHARED, **differs, **changes})


def model(name: str, attention: str | None = None, **changes: object) -> PreTrainedModel:
    """A tiny random model of the family, with its own attention kernel or the one named."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config(name, **changes), attn_implementation=attention)


def checkpoint(folder: Path, name: str) -> Path:
    """A tiny checkpoint of the family with a tokenizer of bytes."""
    model(name, vocab_size=257).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
