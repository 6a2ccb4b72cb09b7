"""Preallocated KV cache; ``DynamicCache`` copies keys and values at each token."""

import inspect
from typing import Any

import torch
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import create_causal_mask

#: Argument of models and mask functions: "cache" from transformers 5.24 on, "past_key_values" before.
CACHE = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"
_ROOM = 256  # tokens more than there are, when memory is allocated again


def roomy_cache(config: PretrainedConfig, tokens: int = 0, dtype: torch.dtype | None = None) -> DynamicCache:
    """Return an empty cache with memory for ``tokens`` of each text.

    ``dtype`` defaults to that of autocast: RoPE leaves keys in float32, which take twice the memory and would be cast at each
    token. Layers with sliding or linear attention stay stock.
    """
    cache = DynamicCache(config=config)
    cache.layers = [_Roomy(tokens, dtype) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def has_room(cache: DynamicCache) -> bool:
    """Return True if all layers keep every token, so that the last ones can be removed."""
    return all(type(layer) is _Roomy for layer in cache.layers)


class _Roomy(DynamicLayer):
    """Keys and values of a layer, [texts, heads, tokens, size]: views of larger memory."""

    def __init__(self, tokens: int, dtype: torch.dtype | None) -> None:
        super().__init__()
        self._tokens, self._dtype = tokens, dtype
        self._memory: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        device = key_states.device.type
        dtype = self._dtype or (torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None)
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
