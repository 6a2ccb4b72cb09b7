"""The memory that a model takes at the least, from its config alone, and what this machine has.

What is certain to fail is refused with these before any work. They are lower bounds: below them a run may still fail.
"""

import copy
import os
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache, PretrainedConfig

# Bytes that an optimizer keeps for each trained weight, and for each of an embedding, by its name in transformers. Moments in 8 bits
# have a scale of 4 bytes for each 256, and Trainer keeps those of embeddings in 32 bits.
_KEPT = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "paged_adamw_32bit"), (8.0, 8.0)),
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"), (2 * (1 + 4 / 256), 8.0)),
    **dict.fromkeys(("lion_8bit", "paged_lion_8bit"), (1 + 4 / 256, 4.0)),
    **dict.fromkeys(("lion_32bit", "paged_lion_32bit"), (4.0, 4.0)),
    **dict.fromkeys(("adafactor", "sgd"), (0.0, 0.0)),  # Adafactor keeps a number for each row and column
}
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container


def machine_memory(device: torch.device) -> int | None:
    """Return the bytes of a GPU's memory, or the machine's, or the container's; None where that is not known."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if device.type != "cpu" or "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", ()):  # Windows has no sysconf
        return None
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(memory, int(_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no container, or one without a limit
        return memory


def parameters_of(config: PretrainedConfig) -> int | None:
    """Return the number of parameters of the stock model; no weights are made. None where loading it will say why not."""
    try:
        with torch.device("meta"):
            return int(AutoModelForCausalLM.from_config(copy.deepcopy(config)).num_parameters())
    except Exception:  # of the architecture's own code
        return None


def optimizer_bytes(optim: str) -> tuple[float, float] | None:
    """Return how many bytes an optimizer keeps for each trained weight, and for each of an embedding; None if not known."""
    return _KEPT.get(optim)


def token_bytes(config: PretrainedConfig, itemsize: int, *, cached: bool) -> int:
    """Return the least bytes that one more token takes in a forward pass without gradients.

    A feed-forward layer holds its input and output and two results of its inner width. ``cached`` adds the keys and
    values of all layers; a layer of sliding attention keeps those of the last tokens alone.
    """
    text = config.get_text_config()
    inner = inner_width(text)
    if experts_of(text):
        inner = 0  # each expert reads some of the tokens
    kept = 0
    if cached:
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        each = 2 * heads * head_size(text)
        if latent := getattr(text, "kv_lora_rank", None):  # multi-head latent attention keeps what both are made from
            each = latent + text.qk_rope_head_dim
        kept = each * list(DynamicCache(config=config).is_sliding).count(False)
    return itemsize * (2 * text.hidden_size + 2 * inner + kept)


def experts_of(config: PretrainedConfig) -> int:
    """Return how many experts a layer of a mixture has; 0 of a dense model."""
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    sections = (config, getattr(config, "ffn_config", None))  # DBRX has one
    return max(getattr(section, name, None) or 0 for section in sections for name in names)


def head_size(config: PretrainedConfig) -> int:
    """Return the dimensions of an attention head, which not every config states."""
    return getattr(config, "head_dim", None) or config.hidden_size // max(config.num_attention_heads, 1)


def inner_width(config: PretrainedConfig) -> int:
    """Return the inner width of the widest feed-forward layer, of which Gemma 3n's config lists each; 0 where none is said."""
    stated = getattr(config, "intermediate_size", None) or 0
    return int(max(stated) if isinstance(stated, list) else stated)
