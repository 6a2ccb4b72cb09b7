"""Attention by blocks beside torch's own: outputs and gradients against float64, and where transformers calls it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, DeepseekV3Config, FalconConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from skipwise.evaluation.perplexity import inference, sliding_scores
from skipwise.evaluation.retrieval import Reader, go_on_together
from skipwise.model import blocked_attention as blocked
from skipwise.model.blocked_attention import attend, roomy_cache
from skipwise.model.probe import probe_connectivity
from skipwise.model.teacher import Teacher
from skipwise.recipes.schema import Training
from skipwise.training.trainer import train
from tests.tiny import llama

CAUSAL = "as many queries as keys"
QUERIES, KEYS = 200, 640  # of what is read behind cached keys


def mask_of(kind: str) -> torch.Tensor | None:
    """Return a mask [batch or 1, 1, queries, keys] of ``kind`` for two examples."""
    if kind == CAUSAL:
        return None
    queries, keys = torch.arange(KEYS - QUERIES, KEYS)[:, None], torch.arange(KEYS)
    causal = (keys <= queries)[None, None]
    if kind == "behind cached keys":
        return causal
    if kind == "a sliding window":
        return causal & (queries - keys < 100)
    left = torch.tensor([0, 530])  # of the second example the first queries see nothing
    return causal & (keys >= left[:, None, None, None])


@pytest.fixture
def drawn() -> Any:
    """Return a function that draws queries, keys and values of two examples, float32."""
    draws = torch.Generator().manual_seed(0)

    def draw(heads: int, groups: int, queries: int, keys: int, size: int, width: int) -> list[torch.Tensor]:
        shapes = (heads, queries, size), (groups, keys, size), (groups, keys, width)
        query, key, value = (torch.randn(2, *shape, generator=draws) for shape in shapes)
        return [2 * query, key, value]

    return draw


def computed(attention: Any, inputs: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """Return what ``attention`` computes of the inputs in ``dtype``, and the gradients of a sum with fixed weights."""
    leaves = [each.to(dtype).requires_grad_() for each in inputs]
    out = attention(*leaves)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    (out.float() * weights).sum().backward() if dtype != torch.float64 else (out * weights.double()).sum().backward()
    return [out.detach().double(), *(leaf.grad.double() for leaf in leaves)]


def fused(mask: torch.Tensor | None, scale: float) -> Any:
    """Torch's own attention; it has more heads of keys where several query heads share one."""

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        return scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, scale=scale)

    return attention


@pytest.mark.parametrize("kind", [CAUSAL, "behind cached keys", "a sliding window", "left padding"])
@pytest.mark.parametrize(("heads", "groups", "size", "width"), [(4, 2, 16, 16), (3, 3, 24, 8), (6, 1, 8, 16)])
@pytest.mark.parametrize("short", [blocked._SHORT, 0])
def test_outputs_and_gradients_are_as_exact_as_torchs_in_bf16(
    drawn, monkeypatch, kind, heads, groups, size, width, short
) -> None:
    monkeypatch.setattr(blocked, "_SHORT", short)  # beyond it blocks of keys are larger
    queries = KEYS if kind == CAUSAL else QUERIES
    inputs, mask, scale = drawn(heads, groups, queries, KEYS, size, width), mask_of(kind), 0.3
    exact = computed(fused(mask, scale), inputs, torch.float64)
    theirs = computed(fused(mask, scale), inputs, torch.bfloat16)
    ours = computed(lambda *each: attend(*each, mask, scale), inputs, torch.bfloat16)
    for what, true, their, our in zip(("out", "query", "key", "value"), exact, theirs, ours, strict=True):
        error = (our - true).norm() / true.norm()
        assert error <= 2 * (their - true).norm() / true.norm() + 1e-4, what
        assert error < 0.02, what


def test_float32_queries_and_keys_are_those_of_autocast(drawn) -> None:
    """RoPE makes queries and keys float32 there; their gradients are float32 then, and that of the values bf16."""
    query, key, value = drawn(2, 1, KEYS, KEYS, 16, 16)
    leaves = [query.requires_grad_(), key.requires_grad_(), value.bfloat16().requires_grad_()]
    with torch.autocast("cpu", torch.bfloat16):
        out = attend(*leaves, None, 0.25)
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16
    assert [leaf.grad.dtype for leaf in leaves] == [torch.float32, torch.float32, torch.bfloat16]


@pytest.mark.parametrize("factor", [20.0, 60.0])
def test_large_scores_that_are_neither_near_nor_first_count(drawn, factor: float) -> None:
    """Had m_i not been looked for again, the difference of two would be rounded, and exp of 240 be infinite."""
    query, key, value = drawn(1, 1, KEYS, KEYS, 16, 16)
    query[..., 0], key[..., 0] = 4, 0
    key[:, :, 300:302] = 0
    key[:, :, 300:302, 0] = torch.tensor([factor, factor * (1 + 2**-7)])  # as near as bf16 can tell apart
    query, key, value = query.bfloat16(), key.bfloat16(), value.bfloat16()
    exact = fused(None, 1.0)(query.double(), key.double(), value.double())
    out = attend(query, key, value, None, 1.0)
    assert (out - exact).norm() / exact.norm() < 0.01


def test_scores_far_below_zero_count_where_all_looked_at_are_hidden(drawn) -> None:
    query, key, value = drawn(1, 1, QUERIES, KEYS, 16, 16)
    query, key = query.abs() * 10, -key.abs()  # scores of -100 and less
    mask = torch.zeros(1, 1, QUERIES, KEYS, dtype=torch.bool)
    mask[..., 80:90] = True  # behind the first 64, and in no block of the nearest
    mask[..., :QUERIES, 600] = torch.arange(QUERIES) >= 190
    exact = fused(mask, 1.0)(query.double(), key.double(), value.double())
    assert (attend(query, key, value, mask, 1.0) - exact).norm() / exact.norm() < 0.02


def test_a_query_that_sees_nothing_gets_zeros(drawn) -> None:
    mask = mask_of("left padding")
    out = attend(*drawn(2, 1, QUERIES, KEYS, 16, 16), mask, 1.0)
    blind = ~mask[1, 0].any(-1)
    assert blind.any()
    assert not out[1][:, blind].any()
    assert out[1][:, ~blind].abs().sum(-1).all()


def test_a_block_of_queries_that_sees_nothing_gets_zeros_and_gives_no_gradient(drawn) -> None:
    mask = torch.ones(1, 1, KEYS, KEYS, dtype=torch.bool).tril_()
    mask[..., :300, :] = False  # the first block of queries and a part of the next
    out, *gradients = computed(lambda *each: attend(*each, mask, 0.3), drawn(4, 2, KEYS, KEYS, 16, 16), torch.bfloat16)
    assert not out[:, :, :300].any()
    assert out[:, :, 300:].abs().sum(-1).all()
    assert not gradients[0][:, :, :300].any()
    assert all(each.isfinite().all() for each in gradients)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """On a machine that is faster by blocks, the number of queries of each call."""
    made: list[int] = []

    def counted(query: torch.Tensor, *rest: Any) -> torch.Tensor:
        made.append(query.shape[2])
        return attend(query, *rest)

    monkeypatch.setattr(blocked, "attend", counted)
    monkeypatch.setattr(blocked, "is_faster", lambda: True)
    return made


def test_a_model_in_bf16_is_measured_by_blocks_and_is_as_it_was_afterwards(calls, monkeypatch, tmp_path) -> None:
    model = llama(640, num_attention_heads=4)
    document = np.random.default_rng(0).integers(1, 257, 900)

    def losses(precision: str) -> np.ndarray:
        [scores] = sliding_scores(model, [document], window=600, stride=300, precision=precision)
        return scores.nll

    exact = losses("float32")
    assert not calls
    ours = losses("bf16")
    assert calls == [600, 600] * 2 or calls == [600, 600]  # both windows in one batch, or each alone
    monkeypatch.setattr(blocked, "is_faster", lambda: False)
    theirs = losses("bf16")
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
    assert np.abs(ours - exact).mean() <= 1.5 * np.abs(theirs - exact).mean()
    assert np.abs(ours - theirs).max() > 0  # the two are not the same path

    monkeypatch.setattr(blocked, "is_faster", lambda: True)
    with inference(model, "bf16"):
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is blocked._forward
        model.save_pretrained(tmp_path)
    with pytest.raises(IndexError), inference(model, "bf16"):
        model(input_ids=torch.full((1, 600), 999))
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"


def test_what_is_read_behind_cached_tokens_is_read_by_blocks_too(calls) -> None:
    model = llama(1024, num_attention_heads=4)
    ids = np.random.default_rng(0).integers(1, 257, 800).tolist()
    with inference(model, "bf16"):
        reader = Reader(model)
        reader.begin(ids[:600], [])
        behind = reader._read(ids[600:], 200)
        assert calls == [600, 600, 200, 200]
    with inference(model, "float32"):
        exact = Reader(model)._read(ids, 200)
    assert np.mean(np.array(behind) == np.array(exact)) > 0.95


@pytest.mark.parametrize("mask", [None, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("queries", [1, 2])
def test_a_single_query_attends_in_float32(calls, drawn, queries: int, mask: torch.dtype | None) -> None:
    query, key, value = drawn(4, 2, queries, KEYS, 16, 16)
    key, value = key.bfloat16(), value.bfloat16()  # as a cache holds them
    seen = torch.ones(2, 1, queries, KEYS, dtype=torch.bool)
    if mask:
        seen = torch.rand(seen.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    added = seen if mask == torch.bool else torch.where(seen, 0.0, -torch.inf).to(mask) if mask else None
    layer = llama(640, num_attention_heads=4).model.layers[0]
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = blocked._forward(layer.self_attn, query, key, value, added, 0.3, is_causal=False)
    exact = fused(seen, 0.3)(query.double(), key.double(), value.double()).transpose(1, 2).bfloat16().double()
    error = (out - exact).norm() / exact.norm()
    assert out.dtype == torch.bfloat16
    assert error < 3e-4 if queries == 1 and mask != torch.bfloat16 else 5e-4 < error < 0.02
    assert not calls


@pytest.mark.parametrize(("by_blocks", "kept"), [(True, torch.float32), (False, torch.bfloat16)])
def test_answers_that_are_written_together_are_kept_in_float32(calls, monkeypatch, by_blocks: bool, kept) -> None:
    """Kept in bf16 all of a prompt would be cast for each token: four times the time at 2k."""
    caches = []
    monkeypatch.setattr(blocked, "is_faster", lambda: by_blocks)
    monkeypatch.setattr(
        "skipwise.evaluation.retrieval.roomy_cache", lambda *how: caches.append(roomy_cache(*how)) or caches[-1]
    )
    model, ids = llama(640), [number % 250 + 1 for number in range(40)]
    with inference(model, "bf16"):
        reader = Reader(model)
        begun = [reader.keep(ids, reader.begin(ids, []), 4, lambda ids: len(ids) == 4) for _ in range(2)]
        together = go_on_together(model, begun)
        alone = reader.go_on(ids, reader.begin(ids, []), lambda ids: len(ids) == 4)
    assert {layer.keys.dtype for layer in caches[-1].layers} == {kept}
    assert together == [alone, alone]


@pytest.mark.parametrize("held", [torch.float32, torch.bfloat16])
def test_the_teacher_writes_with_keys_and_values_in_float32(calls, monkeypatch, held: torch.dtype) -> None:
    caches: list[Any] = []
    autocast: list[bool] = []

    def kept(*args: Any) -> Any:
        autocast.append(torch.is_autocast_enabled("cpu"))
        caches.append(roomy_cache(*args))
        return caches[-1]

    monkeypatch.setattr("skipwise.model.teacher.roomy_cache", kept)
    model, starts = llama(640).to(held), np.arange(5)[:, None] + 1
    with torch.autocast("cpu", torch.bfloat16, enabled=held == torch.float32):
        Teacher(model, 640).write(starts, 40, 0)
    assert {layer.keys.dtype for layer in caches[0].layers} == {torch.float32}
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
    model.set_attn_implementation("eager")
    with torch.autocast("cpu", torch.bfloat16, enabled=held == torch.float32):
        Teacher(model, 640).write(starts, 40, 0)
    assert {layer.keys.dtype for layer in caches[1].layers} == {torch.bfloat16}
    assert autocast == [True, held == torch.float32]  # by torch's own attention a model in bf16 writes as it is


def test_a_teacher_in_bf16_writes_where_the_model_itself_multiplies_what_is_kept(calls) -> None:
    """Multi-head latent attention unfolds cached states by its own weights."""
    sizes = {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "q_lora_rank": None,
        "kv_lora_rank": 16,
    }
    heads = {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "intermediate_size": 32}
    config = DeepseekV3Config(vocab_size=64, num_hidden_layers=1, first_k_dense_replace=1, **sizes, **heads)
    model = AutoModelForCausalLM.from_config(config).bfloat16()
    assert Teacher(model, 640).write(np.arange(60).reshape(3, 20), 30, 0).shape == (3, 30)


@pytest.mark.parametrize("changed", ["eager", "short"])
def test_other_models_and_short_texts_are_left_alone(calls, changed: str) -> None:
    model = llama(640)
    if changed == "eager":
        model.set_attn_implementation("eager")
    length = 300 if changed == "short" else 600
    with inference(model, "bf16"):
        model(input_ids=torch.ones(1, length, dtype=torch.long))
    assert not calls
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward


def test_a_mask_of_each_head_is_left_to_torch(calls, drawn) -> None:
    query, key, value = (each.bfloat16() for each in drawn(2, 2, QUERIES, KEYS, 16, 16))
    mask = torch.rand(1, 2, QUERIES, KEYS, generator=torch.Generator().manual_seed(0)) < 0.5
    out, _ = blocked._forward(torch.nn.Module(), query, key, value, mask, scaling=1.0)
    exact = fused(mask, 1.0)(query.double(), key.double(), value.double()).transpose(1, 2)
    assert (out - exact).norm() / exact.norm() < 0.02
    assert not calls


def test_a_model_that_asks_for_the_name_of_its_attention_stays_causal(calls) -> None:
    """Falcon takes its mask as one of True and False only where the name is sdpa."""
    sizes = {"vocab_size": 257, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = AutoModelForCausalLM.from_config(FalconConfig(**sizes, alibi=False, new_decoder_architecture=True)).eval()
    ids = torch.randint(257, (1, 600), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        stock = model(input_ids=ids).logits
        eager = llama(640)
        eager.set_attn_implementation("eager")
        with blocked.blocked_attention(model):
            assert blocked.attends_by_blocks(model)
            assert not blocked.attends_by_blocks(eager)
            torch.testing.assert_close(model(input_ids=ids).logits, stock)
            assert probe_connectivity(model, 2048, precision="float32").backward == 0


def test_attention_elsewhere_is_left_to_torch(calls) -> None:
    """On a GPU; here on tensors without data."""
    query = torch.empty(1, 2, QUERIES, 16, dtype=torch.bfloat16, device="meta")
    key = torch.empty(1, 2, KEYS, 16, dtype=torch.bfloat16, device="meta")
    mask = torch.empty(1, 1, QUERIES, KEYS, dtype=torch.bool, device="meta")
    out, _ = blocked._forward(torch.nn.Module(), query, key, key, mask, scaling=1.0)
    assert out.shape == (1, QUERIES, 2, 16)
    assert not calls


@pytest.mark.parametrize("padded", [False, True])
def test_a_model_in_training_has_the_gradients_of_the_stock_one(calls, padded: bool) -> None:
    """Of a batch of two, whose gradients reach attention with heads behind tokens."""
    model = llama(640, num_attention_heads=4, initializer_range=0.05).train()
    ids = torch.randint(1, 257, (2, 600), generator=torch.Generator().manual_seed(0))
    seen = torch.ones_like(ids)
    seen[1, : 100 * padded] = 0

    def gradients(precision: torch.dtype | None) -> torch.Tensor:
        model.zero_grad()
        with blocked.blocked_attention(model), torch.autocast("cpu", precision, enabled=precision is not None):
            loss = model(input_ids=ids, attention_mask=seen, labels=ids.where(seen > 0, -100), use_cache=False).loss
        loss.backward()
        return torch.cat([weight.grad.flatten() for weight in model.parameters()])

    exact = gradients(None)
    assert not calls
    ours = gradients(torch.bfloat16)
    assert calls == [600, 600]
    assert (ours - exact).norm() / exact.norm() < 0.02


def test_training_and_the_teacher_read_by_blocks(calls, tmp_path) -> None:
    """A step reads its window once, in two layers; the model is as it was afterwards."""
    model, ids = llama(640), torch.arange(600) % 257
    example = {
        "input_ids": ids,
        "labels": ids,
        "position_ids": torch.arange(600),
        "attention_mask": torch.ones_like(ids),
    }
    settings = Training(max_steps=1, batch_size=1, precision="bf16")

    def collate(examples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {name: torch.stack([one[name] for one in examples]) for name in example}

    train(model, [example], collate, settings, folder=tmp_path, seed=0, resume=False, progress=False)  # type: ignore[arg-type]
    assert calls == [600, 600]
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
    with torch.autocast("cpu", torch.bfloat16):
        Teacher(model, 640).taught(ids[None], torch.ones(1, 600))
    assert calls == [600] * 4
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
