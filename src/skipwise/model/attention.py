"""Attention masks for sliding layers when positions skip, and a preallocated KV cache.

A sliding layer attends to the last ``w`` tokens, and transformers counts tokens in the input. After a skip, the first tokens
of a chunk would attend to the previous chunk, at a distance that such a layer never covers when it reads text.

A batch of packed texts (``data.examples.collate``) has a mask, which transformers passes to every layer: to sliding layers,
which would attend to a whole text, and to eager attention, which would add the bool mask to its scores.
"""

import inspect
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import create_causal_mask

from skipwise.model.config import FULL, SLIDING, slides, slides_in_some
from skipwise.model.forward import stock_model

#: Argument of models and mask functions: "cache" from transformers 5.24 on, "past_key_values" before.
CACHE = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"
_ROOM = 256  # tokens more than there are, when memory is allocated again


def mask_by_position(model: PreTrainedModel) -> None:
    """Make sliding layers count their window in positions while ``model`` trains, in any training loop.

    A forward pre-hook of the decoder builds the masks, so they are equal under peft, DDP and torch.compile. In eval mode the
    results stay stock: only the mask of packed texts changes, and long texts are read without a mask of tokens x tokens.
    """
    decoder: Any = stock_model(model).base_model
    config = decoder.config.get_text_config()
    stock = config._attn_implementation != "eager" and not slides(config)
    if not stock and not other_layers(config) and _set_masks not in decoder._forward_pre_hooks.values():
        decoder.register_forward_pre_hook(_set_masks, with_kwargs=True)


def takes_packed(decoder: Any) -> bool:
    """Return True if the layers of ``decoder`` apply the mask of packed texts, stock or by the hook."""
    config = decoder.config.get_text_config()
    if _set_masks in decoder._forward_pre_hooks.values():
        return config._attn_implementation in ("sdpa", "eager")
    return config._attn_implementation == "sdpa" and not slides(config) and not other_layers(config)


def other_layers(config: Any) -> list[str]:
    """Return the kinds of layers other than full and sliding attention; they may read across packed texts."""
    return sorted(set(getattr(config, "layer_types", None) or []) - {FULL, SLIDING})


def attention_masks(
    config: Any, attention_mask: torch.Tensor, position_ids: torch.Tensor, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Return a mask for full-attention and for sliding layers.

    In a sliding layer the token at position p attends to earlier tokens at positions p - w + 1 .. p: the stock mask if
    positions do not skip. ``attention_mask`` (ones) and ``position_ids`` are int64 [batch, tokens]. Eager attention takes an
    additive mask of ``dtype``.
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

    return {FULL: create_causal_mask(**settings), SLIDING: create_causal_mask(**settings, and_mask_function=near)}


def _set_masks(decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """Replace the decoder's mask by one for each kind of layer. A module function, so that it can be copied."""
    mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
    config = decoder.config.get_text_config()
    if _reads_in_blocks(decoder, kwargs):
        return args, kwargs | {"attention_mask": {FULL: None, SLIDING: SlidingWindow(config.sliding_window)}}
    by_position = positions if decoder.training and slides_in_some(config) else None
    if (
        any(kwargs.get(name) is not None for name in (CACHE, "past_key_values"))
        or not isinstance(mask, torch.Tensor)
        or "flash" in str(config._attn_implementation)  # its kernels take no such mask
    ):
        return None
    if mask.ndim == 4 and mask.dtype == torch.bool:  # packed texts
        places = torch.arange(mask.shape[-1], device=mask.device)[None] if by_position is None else by_position
        return args, kwargs | {"attention_mask": _packed_masks(config, mask, places, decoder.dtype)}
    if mask.ndim == 2 and by_position is not None:
        masks = attention_masks(config, mask, by_position.expand_as(mask), decoder.dtype)
        return args, kwargs | {"attention_mask": masks}
    return None


def _reads_in_blocks(decoder: Any, kwargs: dict[str, Any]) -> bool:
    """Return True for a long text without padding, read in one pass in eval mode."""
    config, mask = decoder.config.get_text_config(), kwargs.get("attention_mask")
    cache = kwargs.get(CACHE) if kwargs.get(CACHE) is not None else kwargs.get("past_key_values")
    return (
        not decoder.training
        and slides_in_some(config)
        and not other_layers(config)
        and config._attn_implementation == "sdpa"
        and (cache is None or cache.get_seq_length() == 0)
        and isinstance(mask, torch.Tensor)
        and mask.ndim == 2
        and mask.shape[1] > 2 * config.sliding_window
        and bool(mask.all())
    )


class SlidingWindow(torch.Tensor):
    """Mask of a causal sliding window that SDPA applies block by block of queries.

    The stock mask has tokens x tokens: 17 GB at 128k. A block of ``window`` queries reaches less than two blocks of keys.
    """

    window: int

    @staticmethod
    def __new__(cls, window: int) -> "SlidingWindow":
        mask = torch.Tensor._make_subclass(cls, torch.empty(0))
        mask.window = window
        return mask

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not scaled_dot_product_attention:
            return super().__torch_function__(func, types, args, kwargs or {})
        (query, key, value), options = args, dict(kwargs)
        window, tokens = options.pop("attn_mask").window, query.shape[2]
        places, blocks = torch.arange(tokens, device=query.device), []
        for begin in range(0, tokens, window):
            asked, read = slice(begin, begin + window), slice(max(0, begin - window + 1), begin + window)
            distance = places[asked, None] - places[None, read]
            near = (distance >= 0) & (distance < window)
            blocks.append(func(query[:, :, asked], key[:, :, read], value[:, :, read], attn_mask=near, **options))
        return torch.cat(blocks, dim=2)


def _packed_masks(config: Any, mask: torch.Tensor, places: torch.Tensor, dtype: torch.dtype) -> Any:
    """Return the mask of packed texts, bool [batch, 1, tokens, tokens], for each kind of layer and the kernel."""

    def fitted(seen: torch.Tensor) -> torch.Tensor:
        if config._attn_implementation != "eager":
            return seen
        return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)

    if not slides(config):
        return fitted(mask)
    near = fitted(mask & (places[:, None, :, None] - places[:, None, None, :] < config.sliding_window))
    return {FULL: fitted(mask), SLIDING: near} if slides_in_some(config) else near


class PreallocatedCache(DynamicCache):
    """KV cache with memory for ``tokens`` of each text; DynamicCache copies all keys and values for each new token.

    Under autocast keys and values have its dtype; RoPE leaves keys in float32. Sliding and linear attention stay stock.
    """

    def __init__(self, config: PretrainedConfig, tokens: int = 0) -> None:
        super().__init__(config=config)
        self.layers = [_Preallocated(tokens) if type(layer) is DynamicLayer else layer for layer in self.layers]

    @property
    def can_be_cropped(self) -> bool:
        """Return True if all layers keep every token."""
        return all(type(layer) is _Preallocated for layer in self.layers)


class _Preallocated(DynamicLayer):
    """Keys and values of a layer, [texts, heads, tokens, size]: views of larger memory."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self._tokens = tokens
        self._memory: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        device = key_states.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        begin = self.get_seq_length()
        end = begin + key_states.shape[2]
        if not self._memory or end > self._memory[0].shape[2]:
            size = self._tokens if end <= self._tokens else end + _ROOM
            memory = [
                states.new_empty(*states.shape[:2], size, states.shape[3], dtype=dtype or states.dtype)
                for states in (key_states, value_states)
            ]
            if self.keys is not None and self.values is not None:
                memory[0][:, :, :begin], memory[1][:, :, :begin] = self.keys, self.values
            self._memory = memory
        for memory_of, states in zip(self._memory, (key_states, value_states), strict=True):
            memory_of[:, :, begin:end] = states
        self.keys, self.values = (memory_of[:, :, :end] for memory_of in self._memory)
        self.is_initialized = True
        return self.keys, self.values
