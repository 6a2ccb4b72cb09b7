"""Causal attention on a CPU by blocks of bf16 matrix products, forward and backward.

On an AMD EPYC with AVX512-BF16 torch's fused attention reaches a fifth of the rate of matrix products; on a Xeon with AMX it has
a kernel of its own, which is faster than this one. Here one product gives the scores of a block of queries, of all heads that
share a key head, with a block of keys; exp is computed in place, and a second product sums the values (as FlashAttention does on
a GPU: Dao et al., 2022, whose backward pass this also is).

    out_i = sum_j exp(s_ij - m_i) v_j / sum_j exp(s_ij - m_i),   s_ij = scale q_i . k_j

A bf16 product is rounded to 8 bits. Two columns more keep that error small, and save passes over memory:

- keys end in -1, -1 and queries in the two halves of m_i, so that the product itself is s_ij - m_i, in float32 until it is
  rounded: near 0, where the weights are large, the error is small;
- values end in 1, 1, so that the second product also sums the weights as they were rounded.

m_i need only be near the largest score: it is the largest among the nearest keys and the first ones, where a language model's
attention is largest. Where a sum of weights shows that it was too low, all scores are looked through.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from skipwise.model.precision import choose_precision, cpu_features

NAME = "blocked"  # by which transformers knows it
_QUERIES, _KEYS = 256, 512  # tokens of a block, among the fastest of eight sizes at SmolLM2's shape
_LEAST_QUERIES, _LEAST_KEYS = 128, 512  # with fewer both are as fast
_FIRST = 64  # keys that are looked through for m_i besides the nearest ones
_LARGE = math.exp(16)  # of a sum of weights; if m_i is the largest of 64k scores, the sum is exp(11) at the most

Part = tuple[int, int, torch.Tensor | None]  # a block's first and last key; where it is hidden, [..., queries, keys]


@cache
def is_faster() -> bool:
    """Whether this CPU is faster by blocks: if it multiplies bf16 faster than float32, but without AMX, which torch's kernel uses."""
    return choose_precision("auto", "cpu") == "bf16" and "amx_bf16" not in cpu_features()


@contextmanager
def blocked_attention(model: PreTrainedModel) -> Iterator[None]:
    """In this context ``model`` attends by blocks where that is faster: on a CPU in bf16, in place of torch's fused attention."""
    config = model.config.get_text_config()
    used = config._attn_implementation
    if model.device.type != "cpu" or used != "sdpa" or not is_faster():
        yield
        return
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = used


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Return attention as ``scaled_dot_product_attention`` computes it, bf16 [batch, heads, queries, size of a value].

    Args:
        query: [batch, heads, queries, size].
        key: [batch, key heads, keys, size]; each serves ``heads / key heads`` query heads, in their order.
        value: [batch, key heads, keys, size of a value].
        mask: True where a query sees a key, bool [batch or 1, 1, queries, keys]; None: causal, as many queries as keys. A
            query that sees none gets zeros.
        scale: of the scores.
    """
    return _Attention.apply(query, key, value, mask, scale)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any, scale: float) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            blocks = _Blocks(query, key, value, mask, scale)
            out, log_sums = blocks.out()
            ctx.mask, ctx.scale = mask, scale
            ctx.save_for_backward(query, key, value, out, log_sums)
            return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        with torch.autocast("cpu", enabled=False):
            query, key, value, out, log_sums = ctx.saved_tensors
            blocks = _Blocks(query, key, value, ctx.mask, ctx.scale)
            of_inputs = blocks.gradients(out, log_sums, gradients[0])
            like = (query, key, value)
            return *(each.view(its.shape).to(its.dtype) for each, its in zip(of_inputs, like, strict=True)), None, None


class _Blocks:
    """Queries, keys and values with their two columns more, by key heads; and memory for two products of blocks."""

    def __init__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
    ) -> None:
        (self.batch, heads, self.queries, self.size), (self.groups, keys) = query.shape, key.shape[1:3]
        self.shared, self.width, self.scale, self.mask = heads // self.groups, value.shape[-1], scale, mask
        each = self.batch * self.groups
        self.asked = pad((query * scale).bfloat16().reshape(each, self.shared, self.queries, self.size), (0, 2))
        self.keys = pad(key.bfloat16().reshape(each, keys, self.size), (0, 2), value=-1.0)
        self.values = pad(value.bfloat16().reshape(each, keys, self.width), (0, 2), value=1.0)
        self.scratch = self.keys.new_empty(2, each * self.shared * _QUERIES * _KEYS)

    def out(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the attention, bf16 [batch, heads, queries, width], and the log of the sums of exp(s_ij), float32 without width."""
        out = self.values.new_empty(*self.asked.shape[:3], self.width)
        log_sums = self.values.new_empty(self.asked.shape[:3], dtype=torch.float32)
        for some, parts in self._rows():
            rows = self.asked[:, :, some].flatten(1, 2)
            sums, most = self._sums(rows, parts)
            weights = sums[..., self.width].clamp_min(torch.finfo(torch.float32).tiny)
            out[:, :, some] = (sums[..., : self.width] / weights[..., None]).unflatten(1, (self.shared, -1))
            log_sums[:, :, some] = (most + weights.log()).unflatten(1, (self.shared, -1))
        return out.view(self.batch, -1, self.queries, self.width), log_sums

    def gradients(self, out: torch.Tensor, log_sums: torch.Tensor, of_out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the gradients of query, key and value, float32.

        With P the weights, dV = P^T dO, dS = P * (dO V^T - sum(dO * O)), dQ = dS K and dK = dS^T Q.
        """
        of_out = of_out.reshape(*self.asked.shape[:3], self.width)
        means = (of_out * out.reshape(of_out.shape)).sum(-1, dtype=torch.float32)
        of_out = pad(of_out.bfloat16(), (0, 2))
        of_query = torch.empty(*self.asked.shape[:3], self.size)
        of_keys, of_values = (torch.zeros(each.shape, dtype=torch.float32) for each in (self.keys, self.values))
        for some, parts in self._rows():
            rows, lost = self.asked[:, :, some].flatten(1, 2), of_out[:, :, some].flatten(1, 2)
            _put(rows, log_sums[:, :, some].flatten(1, 2))
            _put(lost, -means[:, :, some].flatten(1, 2))
            of_rows = torch.zeros(rows.shape, dtype=torch.float32)
            for part in parts:
                keys, values = self.keys[:, part[0] : part[1]], self.values[:, part[0] : part[1]]
                weights = self._scores(rows, part).exp_()
                of_values[:, part[0] : part[1]] += weights.mT @ lost
                weights *= self._product(1, lost, values.mT)
                of_rows += weights @ keys
                of_keys[:, part[0] : part[1]] += weights.mT @ rows
            of_query[:, :, some] = self.scale * of_rows[..., : self.size].unflatten(1, (self.shared, -1))
        return of_query, of_keys[..., : self.size], of_values[..., : self.width]

    def _rows(self) -> Iterator[tuple[slice, list[Part]]]:
        """A block of queries after the other, and the blocks of keys that it sees."""
        for begin in range(0, self.queries, _QUERIES):
            some = slice(begin, min(begin + _QUERIES, self.queries))
            yield some, list(_causal(some) if self.mask is None else _seen(self.mask[..., some, :]))

    def _sums(self, rows: torch.Tensor, parts: list[Part]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sums of values and, behind them, of weights, and the m_i that they were computed with, float32."""
        first, last, hidden = parts[0] if parts else (0, 0, None)
        some = min(_FIRST, last - first)
        near = [(first, first + some, None if hidden is None else hidden[..., :some]), *parts[-1:]]
        for looked in (near, parts):
            _put(rows, torch.zeros(rows.shape[:2]))
            sums = torch.zeros(*rows.shape[:2], self.values.shape[-1])
            most = torch.full(rows.shape[:2], -math.inf)
            for part in looked:
                most = torch.maximum(most, self._scores(rows, part).amax(-1))
            _put(rows, most)
            for part in parts:
                sums += self._scores(rows, part).exp_() @ self.values[:, part[0] : part[1]]
            if bool((sums[..., -1] < _LARGE).all()):  # false of nan, where all that was looked at is hidden
                break
        return sums, most

    def _product(self, number: int, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return the product in the memory ``number``, 0 or 1, until that is used again."""
        shape = *left.shape[:2], right.shape[-1]
        return torch.bmm(left, right, out=self.scratch[number, : math.prod(shape)].view(shape))

    def _scores(self, rows: torch.Tensor, part: Part) -> torch.Tensor:
        first, last, hidden = part
        scores = self._product(0, rows, self.keys[:, first:last].mT)
        if hidden is not None:
            shape = self.batch, self.groups, self.shared, -1, last - first
            scores.view(shape).masked_fill_(hidden, -math.inf)
        return scores


def _put(rows: torch.Tensor, numbers: torch.Tensor) -> None:
    """Write float32 ``numbers`` into the last two columns of bf16 ``rows``, as what bf16 holds of them and of the rest."""
    rows[..., -2] = numbers
    rows[..., -1] = numbers - rows[..., -2]


def _causal(some: slice) -> Iterator[Part]:
    for first in range(0, some.start, _KEYS):
        yield first, min(first + _KEYS, some.start), None
    ahead = torch.ones(some.stop - some.start, some.stop - some.start, dtype=torch.bool).triu_(1)
    yield some.start, some.stop, ahead


def _seen(mask: torch.Tensor) -> Iterator[Part]:
    """The keys that any query sees by the mask [batch or 1, 1, queries, keys]."""
    for first in range(0, mask.shape[-1], _KEYS):
        some = mask[..., first : first + _KEYS]
        if bool(some.any()):
            yield first, first + some.shape[-1], None if bool(some.all()) else ~some[:, :, None]


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it: by blocks where ``attend`` computes the same and is faster."""
    queries, keys = query.shape[2], key.shape[2]
    # Under autocast queries and keys, which RoPE has turned, are float32, and cached values under transformers 5.10.
    cast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else value.dtype
    plain = attention_mask is None and queries == keys and more.get("is_causal", getattr(module, "is_causal", True))
    masked = (
        attention_mask is not None
        and attention_mask.dtype == torch.bool
        and attention_mask.shape[1] == 1  # of all heads
        and attention_mask.shape[-1] == keys
    )
    other = [name for name in ("dropout", "position_bias", "softcap") if more.get(name) is not None and more[name] != 0]
    if cast != torch.bfloat16 or other or queries < _LEAST_QUERIES or keys < _LEAST_KEYS or not (plain or masked):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **more)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(query, key, value, attention_mask, scale).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _forward)
AttentionMaskInterface.register(NAME, sdpa_mask)
