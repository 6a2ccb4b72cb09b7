"""Layers that slide, where positions skip: they look back by position, as in reading, and not by token.

A sliding layer attends to the last ``w`` tokens, and transformers counts them as they stand in the input. Behind a skip
the first tokens of a chunk would so see the chunk before, at a distance that no reading asks of such a layer.
"""

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.masking_utils import create_causal_mask

from skipwise.model.rope import sliding_layers


def attention_masks(
    model: PreTrainedModel, attention_mask: torch.Tensor, position_ids: torch.Tensor
) -> torch.Tensor | dict[str, Any]:
    """What to pass as ``attention_mask`` for inputs whose positions skip: for a model with layers of full attention and
    layers that slide a mask for each kind, for any other the mask as it is.

    In a sliding layer the token at position p sees those of positions p - w + 1 .. p that stand before it; where positions
    do not skip, that is what the model does by itself. Flash attention takes no such mask, and is left as it is.

    Args:
        model: as it is called.
        attention_mask: ones, int64 [batch, tokens].
        position_ids: int64 [batch, tokens].
    """
    config = model.config.get_text_config()
    other = set(getattr(config, "layer_types", None) or []) - {"full_attention", "sliding_attention"}
    if sliding_layers(config) is None or other or "flash" in str(config._attn_implementation):
        return attention_mask
    settings: dict[str, Any] = {
        "config": config,
        "inputs_embeds": torch.empty(*position_ids.shape, 0, dtype=model.dtype, device=position_ids.device),
        "attention_mask": attention_mask,
        "past_key_values": None,
        "position_ids": position_ids,
    }

    def near(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return position_ids[batch, query] - position_ids[batch, key] < config.sliding_window

    return {
        "full_attention": create_causal_mask(**settings),
        "sliding_attention": create_causal_mask(**settings, and_mask_function=near),
    }
