"""Attention masks for sliding-window layers when positions skip: the window is counted in positions, not in tokens.

A sliding layer attends to the last ``w`` tokens, and transformers counts tokens in the input. After a skip, the first
tokens of a chunk would attend to the previous chunk, at a distance that such a layer never covers when it reads text.
"""

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.masking_utils import create_causal_mask

from skipwise.model import lora
from skipwise.model.cache_argument import CACHE
from skipwise.model.rope import sliding_layers


def mask_by_position(model: PreTrainedModel) -> None:
    """Make the sliding layers of ``model`` count their window in positions while it trains, in any training loop.

    The decoder builds the masks itself, in a forward pre-hook. So they are the same in a plain loop, in any Trainer and
    under peft, DDP and torch.compile. Nothing changes in eval mode, with a cache, or in a model without sliding layers.
    """
    decoder: Any = lora.stock_model(model).base_model
    config = decoder.config.get_text_config()
    two_kinds = sliding_layers(config) and set(config.layer_types) == {"full_attention", "sliding_attention"}
    if two_kinds and _set_masks not in decoder._forward_pre_hooks.values():
        decoder.register_forward_pre_hook(_set_masks, with_kwargs=True)


def attention_masks(
    config: Any, attention_mask: torch.Tensor, position_ids: torch.Tensor, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Return a mask for each kind of layer of a model with full-attention and sliding-window layers.

    In a sliding layer, the token at position p attends to the tokens before it at positions p - w + 1 .. p. If
    positions do not skip, that is the stock mask. ``attention_mask`` (ones) and ``position_ids`` are int64 [batch,
    tokens]. Eager attention takes an additive mask, which has ``dtype``.
    """
    settings: dict[str, Any] = {
        "config": config,
        "inputs_embeds": torch.empty(*position_ids.shape, 0, dtype=dtype, device=position_ids.device),
        "attention_mask": attention_mask,
        CACHE: None,
        "position_ids": position_ids,
    }

    def near(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return position_ids[batch, query] - position_ids[batch, key] < config.sliding_window

    return {
        "full_attention": create_causal_mask(**settings),
        "sliding_attention": create_causal_mask(**settings, and_mask_function=near),
    }


def _set_masks(decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """Replace the decoder's mask of ones by a mask for each kind of layer. A module function, so that it can be copied."""
    mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
    config = decoder.config.get_text_config()
    if (
        not decoder.training
        or any(kwargs.get(name) is not None for name in (CACHE, "past_key_values"))
        or not isinstance(mask, torch.Tensor)
        or mask.ndim not in (2, 4)
        or positions is None
        or "flash" in str(config._attn_implementation)  # its kernels take no such mask
    ):
        return None
    if mask.ndim == 4:  # of several texts in a window, bool [batch, 1, tokens, tokens]
        near = positions[:, None, :, None] - positions[:, None, None, :] < config.sliding_window
        masks: dict[str, Any] = {"full_attention": mask, "sliding_attention": mask & near}
    else:
        masks = attention_masks(config, mask, positions.expand_as(mask), decoder.dtype)
    return args, kwargs | {"attention_mask": masks}
