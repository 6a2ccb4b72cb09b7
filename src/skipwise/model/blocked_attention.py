"""Causal attention on a CPU by blocks of bf16 matrix products, forward and backward.

On an AMD EPYC with AVX512-BF16 torch's fused attention reaches a fifth of the rate of matrix products; on a Xeon with AMX
torch has a faster kernel. Here one product gives the scores of a block of queries, of all heads with a common key head, with a
block of keys; exp is computed in place, and a second product sums the values (FlashAttention, Dao et al., 2022, also for
backward).

    out_i = sum_j exp(s_ij - m_i) v_j / sum_j exp(s_ij - m_i),   s_ij = scale q_i . k_j

A bf16 product is rounded to 8 bits. Two more columns keep that error small and save passes over memory:

- keys end in -1, -1 and queries in the two halves of m_i, so that the product is s_ij - m_i, in float32 until it is rounded:
  near 0, where the weights are large, the error is small;
- values end in 1, 1, so that the second product also sums the rounded weights.

m_i need only be near the largest score: it is the largest among the nearest keys and the first ones, where a language model's
attention is largest. If a sum of weights shows that m_i was too low, it is taken from all scores.
"""

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import create_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from skipwise.model.precision import choose_precision, cpu_features

_QUERIES, _KEYS = 256, 512  # tokens of a block, among the fastest of eight sizes at SmolLM2's shape
_SHORT = 2048  # up to this many keys, blocks of 256 are as fast or faster: less of the diagonal block is hidden
_LEAST_QUERIES, _LEAST_KEYS = 128, 512  # below, both ways are as fast
_FIRST = 64  # first keys that count for m_i
_LARGE = math.exp(16)  # of a sum of weights; with the right m_i the sum over 64k keys is exp(11) at most
#: Argument of models and mask functions: "cache" from transformers 5.24 on, "past_key_values" before.
CACHE = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"
_ROOM = 256  # tokens more than there are, when memory is allocated again


@cache
def is_faster() -> bool:
    """Return True on a CPU that multiplies bf16 faster than float32 and has no AMX, which torch's kernel uses."""
    return choose_precision("auto", "cpu") == "bf16" and "amx_bf16" not in cpu_features()


@contextmanager
def blocked_attention(model: PreTrainedModel) -> Iterator[None]:
    """Replace torch's fused attention of ``model`` in this context, on a CPU in bf16 where blocks are faster.

    A single query, of generated text, uses torch's attention in float32. The function ``sdpa`` is replaced, not
    the model's choice of it, because some models treat other names differently: Falcon would add a bool mask to its scores.
    """
    if model.device.type != "cpu" or model.config.get_text_config()._attn_implementation != "sdpa" or not is_faster():
        yield
        return
    stock = ALL_ATTENTION_FUNCTIONS["sdpa"]
    ALL_ATTENTION_FUNCTIONS["sdpa"] = _forward
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = stock


def attends_by_blocks(model: PreTrainedModel) -> bool:
    """Return True if ``blocked_attention`` is active for ``model``."""
    changed = ALL_ATTENTION_FUNCTIONS["sdpa"] is _forward
    return changed and model.device.type == "cpu" and model.config.get_text_config()._attn_implementation == "sdpa"


def keeps_float32(model: PreTrainedModel) -> bool:
    """Return True if a KV cache is best kept in float32: a single query uses float32 here, and a bf16 cache would be cast for
    each token. Under autocast only, because some models multiply the cache by their weights."""
    return attends_by_blocks(model) and torch.is_autocast_enabled("cpu")


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Return the result of ``scaled_dot_product_attention``, bf16 [batch, heads, queries, size of a value].

    Args:
        query: [batch, heads, queries, size].
        key: [batch, key heads, keys, size]; each serves ``heads / key heads`` query heads, in their order.
        value: [batch, key heads, keys, size of a value].
        mask: True where a query attends to a key, bool [batch or 1, 1, queries, keys]; None: causal, as many queries as keys. A
            query without keys gets zeros. Hidden keys and values must be finite.
        scale: of the scores.
    """
    return _Attention.apply(query, key, value, mask, scale)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any, scale: float) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            out, log_sums = _Blocks(query, key, value, mask, scale).out()
        ctx.mask, ctx.scale = mask, scale
        ctx.save_for_backward(query, key, value, out, log_sums)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        query, key, value, out, log_sums = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            by_inputs = _Blocks(query, key, value, ctx.mask, ctx.scale).gradients(out, log_sums, gradients[0])
        inputs = query, key, value
        return *(each.view(one.shape).to(one.dtype) for each, one in zip(by_inputs, inputs, strict=True)), None, None


class _Blocks:
    """Contiguous blocks of queries, keys and values by key heads, and memory for two products of blocks."""

    def __init__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
    ) -> None:
        self.batch, heads, self.queries, _ = query.shape
        self.groups, self.width, self.scale, self.mask = key.shape[1], value.shape[-1], scale, mask
        self.shared, self.step = heads // self.groups, _KEYS if key.shape[2] > _SHORT else _QUERIES
        self.query_blocks = self._by_queries((query * scale).bfloat16())
        self.keys = self._by_keys(key)
        self.lowered = [_with_columns(block, block.new_full((*block.shape[:2], 2), -1.0)) for block in self.keys]
        self.values = [_with_columns(block, block.new_ones(*block.shape[:2], 2)) for block in self._by_keys(value)]
        self.ahead = self.keys[0].new_full((1, 1, self.step, self.step), -math.inf).triu_(1)
        self.scratch = self.keys[0].new_empty(2, self.batch * heads * _QUERIES * self.step)

    def out(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the attention, bf16 [batch, heads, queries, width], and log sum_j exp(s_ij), float32, by blocks."""
        outs, log_sums = [], []
        for number, query in enumerate(self.query_blocks):
            sums, most = self._sums(query, list(self._parts(number)))
            weights = sums[..., self.width : self.width + 1].clamp_min(torch.finfo(torch.float32).tiny)
            outs.append((sums[..., : self.width] / weights).bfloat16())
            log_sums.append(most + weights.log())
        return self._by_heads(outs), torch.cat(log_sums, 1)

    def gradients(self, out: torch.Tensor, log_sums: torch.Tensor, of_out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the gradients of query, key and value, float32.

        With P the weights, dV = P^T dO, dS = P * (dO V^T - sum(dO * O)), dQ = dS K and dK = dS^T Q.
        """
        means = self._by_queries((of_out * out).sum(-1, keepdim=True, dtype=torch.float32))
        of_outs = self._by_queries(of_out.bfloat16())
        log_sums_of = log_sums.split([query.shape[1] for query in self.query_blocks], 1)
        of_query = [torch.zeros(query.shape) for query in self.query_blocks]
        of_keys = [torch.zeros(block.shape) for block in self.keys]
        of_values = [torch.zeros(*block.shape[:2], self.width) for block in self.values]
        for number, (query, gradient) in enumerate(zip(self.query_blocks, of_outs, strict=True)):
            lowered, less = _with_numbers(query, log_sums_of[number]), _with_numbers(gradient, -means[number])
            for part in self._parts(number):
                seen = slice(part.keys)
                weights = self._scores(lowered, self.lowered, part).exp_()
                of_values[part.block][:, seen].add_(weights.mT @ gradient)
                weights *= self._product(1, less, self.values[part.block][:, seen].mT)
                of_query[number] += weights @ self.keys[part.block][:, seen]
                of_keys[part.block][:, seen].add_(weights.mT @ query)
            of_query[number] *= self.scale
        of_key, of_value = (torch.cat(of, 1).unflatten(0, (self.batch, self.groups)) for of in (of_keys, of_values))
        return self._by_heads(of_query), of_key, of_value

    def _by_queries(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """Return [batch, heads, queries, any] as blocks [batch * key heads, heads of a key head * queries of the block, any]."""
        by_key_heads = whole.reshape(self.batch * self.groups, self.shared, self.queries, -1)
        return [block.flatten(1, 2).contiguous() for block in by_key_heads.split(_QUERIES, 2)]

    def _by_heads(self, blocks: list[torch.Tensor]) -> torch.Tensor:
        """Return such blocks as one tensor again."""
        by_key_heads = torch.cat([block.unflatten(1, (self.shared, -1)) for block in blocks], 2)
        return by_key_heads.view(self.batch, -1, self.queries, by_key_heads.shape[-1])

    def _by_keys(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """Return [batch, key heads, keys, any] as blocks [batch * key heads, keys of the block, any] in bf16."""
        return [block.contiguous() for block in whole.bfloat16().flatten(0, 1).split(self.step, 1)]

    def _parts(self, number: int) -> Iterator["_Part"]:
        """Yield the blocks of keys that a block of queries attends to."""
        begin = _QUERIES * number
        end = min(begin + _QUERIES, self.queries)
        if self.mask is None:
            for first in range(0, end, self.step):
                keys = min(self.step, end - first)
                ahead = self.ahead[..., begin - first : end - first, :keys] if first + keys > begin else None
                yield _Part(first // self.step, keys, ahead)
            return
        for first in range(0, self.mask.shape[-1], self.step):
            some = self.mask[..., begin:end, first : first + self.step]
            if bool(some.any()):
                hidden = None if bool(some.all()) else torch.where(some, 0.0, -math.inf).to(torch.bfloat16)
                yield _Part(first // self.step, some.shape[-1], hidden)

    def _sums(self, query: torch.Tensor, parts: list["_Part"]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sums of values and weights, [..., width + 2], and their m_i, float32."""
        near = [parts[0].first(_FIRST), *parts[-1:]] if parts else []
        for looked in (near, parts):
            sums = torch.zeros(*query.shape[:2], self.width + 2)
            most = torch.full((*query.shape[:2], 1), torch.finfo(torch.bfloat16).min)
            for part in looked:
                most = torch.maximum(most, self._scores(query, self.keys, part).amax(-1, keepdim=True))
            lowered = _with_numbers(query, most)
            for part in parts:
                sums += self._scores(lowered, self.lowered, part).exp_() @ self.values[part.block][:, : part.keys]
            if bool((sums[..., -1] < _LARGE).all()):  # false for inf, where m_i came from no key
                break
        return sums, most

    def _scores(self, query: torch.Tensor, keys: list[torch.Tensor], part: "_Part") -> torch.Tensor:
        hidden = part.hidden
        if hidden is not None:
            # Copied for each head where it is used: the copies of a whole mask would take gigabytes.
            groups = self.groups if len(hidden) > 1 else 1
            hidden = hidden[:, :, None].expand(-1, groups, self.shared, -1, -1).flatten(0, 1).flatten(1, 2)
        return self._product(0, query, keys[part.block][:, : part.keys].mT, hidden)

    def _product(
        self, number: int, left: torch.Tensor, right: torch.Tensor, addend: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the product plus ``addend``, in memory 0 or 1 until its next use."""
        shape = *left.shape[:2], right.shape[-1]
        out = self.scratch[number, : math.prod(shape)].view(shape)
        return torch.bmm(left, right, out=out) if addend is None else torch.baddbmm(addend, left, right, out=out)


class _Part(NamedTuple):
    """Keys of one block that a block of queries attends to."""

    block: int
    keys: int  # the first ones
    hidden: torch.Tensor | None  # 0, or -inf for hidden keys [batch or 1, 1, queries, keys]; None: nothing is hidden

    def first(self, keys: int) -> "_Part":
        return _Part(self.block, min(keys, self.keys), None if self.hidden is None else self.hidden[..., :keys])


def _with_numbers(block: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return a bf16 block with two more columns: float32 ``numbers`` in bf16, and the rest in bf16."""
    high = numbers.bfloat16()
    return _with_columns(block, high, (numbers - high).bfloat16())


def _with_columns(block: torch.Tensor, *columns: torch.Tensor) -> torch.Tensor:
    return torch.cat((block, *columns), -1)


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Attend by blocks, or in float32, where that computes the same and is faster; an attention function of transformers."""
    queries, keys = query.shape[2], key.shape[2]
    # Under autocast queries and keys are float32 after RoPE, and cached values under transformers 5.10.
    cast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    low = query.device.type == "cpu" and cast == torch.bfloat16
    if low and queries == 1 and (attention_mask is None or attention_mask.dtype == torch.bool):
        # In bf16 torch's attention takes 3 to 9 times as long, and 1.3 to 6 times as long with casts of the cache.
        with torch.autocast("cpu", enabled=False):
            query, key, value = query.float(), key.float(), value.float()
            out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **more)
            return out.to(cast), None
    if attention_mask is None:
        fits = queries == keys and more.get("is_causal", getattr(module, "is_causal", True))
    else:
        shape = attention_mask.shape
        fits = attention_mask.dtype == torch.bool and shape[1] == 1 and shape[-1] == keys
    other = any(more.get(name) is not None and more[name] != 0 for name in ("dropout", "position_bias", "softcap"))
    if not low or not fits or other or queries < _LEAST_QUERIES or keys < _LEAST_KEYS:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **more)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(query, key, value, attention_mask, scale).transpose(1, 2).contiguous(), None


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
