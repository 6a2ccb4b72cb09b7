"""Keys and values of the tokens that a model has read, in memory with room for more: transformers' own are copied with each token."""

from typing import Any

import torch
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

_ROOM = 256  # tokens more than there are, where memory is taken anew


def roomy_cache(config: PretrainedConfig, tokens: int = 0, dtype: torch.dtype | None = None) -> DynamicCache:
    """Return an empty cache that at first takes memory for ``tokens`` of each text, in ``dtype``.

    Without one keys and values are kept as attention casts them under autocast. RoPE leaves keys in float32, which take twice
    the memory and would be cast again with each token.

    Layers that keep only the last tokens (sliding attention), or a state (linear attention), stay as they are.
    """
    cache = DynamicCache(config=config)
    cache.layers = [_Roomy(tokens, dtype) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def has_room(cache: DynamicCache) -> bool:
    """Whether all layers keep the keys and values of every token, so that the last ones can be forgotten."""
    return all(type(layer) is _Roomy for layer in cache.layers)


class _Roomy(DynamicLayer):
    """One layer's keys and values, [texts, heads, tokens, size]: the filled parts of its memory."""

    def __init__(self, tokens: int, dtype: torch.dtype | None) -> None:
        super().__init__()
        self._tokens, self._dtype = tokens, dtype
        self._memory: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        device = key_states.device.type
        cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        begin = self.get_seq_length()
        end = begin + key_states.shape[2]
        if not self._memory or end > self._memory[0].shape[2]:
            size = self._tokens if end <= self._tokens else end + _ROOM
            filled = (self.keys, self.values) if begin else (None, None)
            self._memory = [
                _with_room(size, self._dtype or cast, *pair)
                for pair in zip((key_states, value_states), filled, strict=True)
            ]
        for memory, states in zip(self._memory, (key_states, value_states), strict=True):
            memory[:, :, begin:end] = states
        self.keys, self.values = (memory[:, :, :end] for memory in self._memory)
        self.is_initialized = True
        return self.keys, self.values


def _with_room(size: int, dtype: torch.dtype | None, states: torch.Tensor, filled: torch.Tensor | None) -> torch.Tensor:
    """Memory for ``size`` tokens of such states, which begins with what is ``filled``."""
    memory = states.new_empty(*states.shape[:2], size, states.shape[3], dtype=dtype or states.dtype)
    if filled is not None:
        memory[:, :, : filled.shape[2]] = filled
    return memory
