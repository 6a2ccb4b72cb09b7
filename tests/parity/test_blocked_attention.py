"""Attention by blocks beside torch's own: outputs and gradients against float64, and where transformers calls it."""

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from skipwise.evaluation.perplexity import inference
from skipwise.model import blocked_attention as blocked
from skipwise.model.blocked_attention import attend, keeps_float32
from tests.tiny import llama

QUERIES, KEYS = 200, 640
MASKS = {
    "cached keys": lambda queries, keys: keys <= queries,
    "sliding window": lambda queries, keys: (keys <= queries) & (queries - keys < 100),
    # Of the second example the first queries see nothing.
    "left padding": lambda queries, keys: (keys <= queries) & (keys >= torch.tensor([0, 530])[:, None, None]),
    # Most queries see no key among those that are looked at for the largest score.
    "far": lambda queries, keys: (keys >= 80) & (keys < 90) | (keys == 600) & (queries >= 630),
}


def drawn(heads: int, groups: int, queries: int, size: int, width: int) -> list[torch.Tensor]:
    """Queries, keys and values of two examples."""
    draws = torch.Generator().manual_seed(0)
    shapes = (heads, queries, size), (groups, KEYS, size), (groups, KEYS, width)
    query, key, value = (torch.randn(2, *shape, generator=draws) for shape in shapes)
    return [2 * query, key, value]


def computed(attention: Any, inputs: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """Return what ``attention`` computes of the inputs in ``dtype``, and the gradients of a sum with fixed weights."""
    leaves = [each.to(dtype).requires_grad_() for each in inputs]
    out = attention(*leaves)
    (out.double() * torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).double()).sum().backward()
    return [out.detach().double(), *(leaf.grad.double() for leaf in leaves)]


def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Torch's own attention."""
    return scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, scale=0.3, enable_gqa=True)


@pytest.mark.parametrize(
    ("kind", "heads", "groups", "size", "width", "no_skip"),  # beyond so many keys blocks are larger
    [
        ("causal", 4, 2, 16, 16, blocked._SHORT),
        ("causal", 4, 2, 16, 16, 0),
        ("cached keys", 3, 3, 24, 8, blocked._SHORT),
        ("sliding window", 6, 1, 8, 16, 0),
        ("left padding", 4, 2, 16, 16, blocked._SHORT),
        ("far", 4, 2, 16, 16, blocked._SHORT),
    ],
)
def test_outputs_and_gradients_are_as_exact_as_torchs_in_bf16(monkeypatch, kind, heads, groups, size, width, short):
    monkeypatch.setattr(blocked, "_SHORT", short)
    queries = KEYS if kind == "causal" else QUERIES
    given = torch.arange(KEYS - queries, KEYS)[:, None], torch.arange(KEYS)
    mask = MASKS[kind](*given).view(-1, 1, queries, KEYS) if kind in MASKS else None
    inputs = drawn(heads, groups, queries, size, width)
    exact, theirs = (computed(lambda *each: fused(*each, mask), inputs, t) for t in (torch.float64, torch.bfloat16))
    ours = computed(lambda *each: attend(*each, mask, 0.3), inputs, torch.bfloat16)
    for true, their, our in zip(exact, theirs, ours, strict=True):
        assert (our - true).norm() <= 2 * (their - true).norm() + 1e-4 * true.norm()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """On a machine that is faster by blocks, the number of queries of each call."""
    made: list[int] = []
    monkeypatch.setattr(blocked, "attend", lambda query, *rest: made.append(query.shape[2]) or attend(query, *rest))
    monkeypatch.setattr(blocked, "is_faster", lambda: True)
    return made


def test_a_model_in_bf16_attends_by_blocks_and_is_as_it_was_afterwards(calls) -> None:
    """In training, of a padded batch of two, whose gradients reach attention with heads behind tokens; and measured."""
    model = llama(640, num_attention_heads=4, initializer_range=0.05).train()
    ids = torch.randint(1, 257, (2, 600), generator=torch.Generator().manual_seed(0))
    seen = torch.ones_like(ids).index_put_((torch.tensor(1), torch.arange(100)), torch.tensor(0))

    def gradients(low: bool) -> torch.Tensor:
        model.zero_grad()
        with blocked.blocked_attention(model), torch.autocast("cpu", torch.bfloat16, enabled=low):
            model(input_ids=ids, attention_mask=seen, labels=ids.where(seen > 0, -100)).loss.backward()
            assert (keeps_float32(model), model.config._attn_implementation) == (low, "sdpa")
        return torch.cat([weight.grad.flatten() for weight in model.parameters()])

    exact = gradients(False)
    assert not calls
    assert (gradients(True) - exact).norm() / exact.norm() < 0.02
    assert calls == [600, 600]
    with pytest.raises(IndexError), inference(model, "bf16"):
        model(input_ids=torch.full((1, 600), 999))
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
    model.set_attn_implementation("eager")
    with inference(model, "bf16"):
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward


@pytest.mark.parametrize("kind", ["one query", "a mask of each head", "another device", "few queries"])
def test_what_blocks_do_not_compute_or_not_faster_is_left_to_torch(calls, kind: str) -> None:
    queries = {"one query": 1, "few queries": 100}.get(kind, QUERIES)  # one attends in float32
    query, key, value = (each.bfloat16() for each in drawn(2, 2, queries, 16, 16))
    heads = 2 if kind == "a mask of each head" else 1
    mask = torch.rand(1, heads, queries, KEYS, generator=torch.Generator().manual_seed(0)) < 0.5
    exact = fused(query.double(), key.double(), value.double(), mask).transpose(1, 2)
    if kind == "another device":
        query, key, value, mask = (each.to("meta") for each in (query, key, value, mask))
    out, _ = blocked._forward(llama(640).model.layers[0].self_attn, query, key, value, mask, scaling=0.3)
    assert (out.dtype, out.shape) == (torch.bfloat16, exact.shape)
    assert out.is_meta or (out - exact).norm() / exact.norm() < (2e-3 if kind == "one query" else 0.02)
    assert not calls
