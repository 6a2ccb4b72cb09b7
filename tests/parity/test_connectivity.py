"""Chunks attend to each other: the whole perturbation matrix, per attention kernel and way of running.

Each case is shown to fail when the mask is left out, which is how frameworks cut chunks from each other.
"""

import numpy as np
import pytest
import torch

from skipwise.data.examples import collate
from skipwise.errors import ModelError
from skipwise.method.positions import ChunkRules, pose
from skipwise.method.rng import Rng
from skipwise.model.lora import adapt
from skipwise.model.probe import _rounding, probe_connectivity
from skipwise.recipes.schema import Lora
from tests import families
from tests.tiny import llama

TOKENS = 12
CASES = [
    *((family, None, "training") for family in families.DENSE),  # with its own kernel
    ("llama", "eager", "training"),
    ("gemma3", "eager", "training"),
    *(("qwen2", "sdpa", way) for way in ("evaluation", "checkpointing", "lora")),
]


def examples() -> list[dict[str, np.ndarray]]:
    """One example of three chunks, then the same with each token changed in turn."""
    plans = pose(Rng.of(3, 0, [0]), TOKENS, 96, np.array([TOKENS]), ChunkRules(chunks=3))
    ids = np.arange(TOKENS) * 5 + 1
    changed = [ids, *(ids + (np.arange(TOKENS) == token) for token in range(TOKENS))]
    return [
        {"input_ids": row, "position_ids": plans.position_ids()[0], "labels": row, "attention_mask": np.ones_like(row)}
        for row in changed
    ]


def influence(logits: list[torch.Tensor]) -> np.ndarray:
    """[changed token, looking token]: whether the logits changed."""
    return torch.stack([(row - logits[0]).abs().amax(dim=-1) > 0 for row in logits[1:]]).numpy()


def by_hand(model: torch.nn.Module, batches: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
    with torch.no_grad():
        return [model(**batch, use_cache=False).logits[0] for batch in batches]


@pytest.mark.parametrize(("family", "attention", "way"), CASES)
def test_every_token_sees_all_before_it(family: str, attention: str | None, way: str) -> None:
    model = families.model(family, attention)
    model.train(way != "evaluation")
    if way == "checkpointing":
        model.gradient_checkpointing_enable()
    if way == "lora":
        model = adapt(model, Lora(r=2))
    batches = [collate([example]) for example in examples()]
    whole = np.triu(np.ones((TOKENS, TOKENS), dtype=bool))
    assert (influence(by_hand(model, batches)) == whole).all()
    for batch in batches:
        batch.pop("attention_mask")
    assert (influence(by_hand(model, batches)) != whole).any()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_probe_passes_with_the_mask_and_refuses_without(attention: str) -> None:
    model, state, seen = (
        llama(96, attn_implementation=attention, attention_dropout=0.1).eval(),
        torch.get_rng_state(),
        [],
    )
    model.lm_head.register_forward_hook(lambda m, args, out: seen.append((m.training, out.dtype)))
    probe = probe_connectivity(model, 96, precision="bf16")
    assert (probe.precision, probe.forward > 0, probe.backward) == ("bf16", True, 0)
    assert set(seen) == {(True, torch.bfloat16)}  # as in training
    assert not model.training
    assert torch.equal(torch.get_rng_state(), state)
    model.base_model.register_forward_pre_hook(
        lambda decoder, args, given: (args, given | {"attention_mask": None}), with_kwargs=True
    )
    with pytest.raises(ModelError, match=attention):
        probe_connectivity(model, "96")
    torch.nn.init.constant_(model.model.layers[0].mlp.up_proj.weight, float("nan"))
    with pytest.raises(ModelError):
        probe_connectivity(model, 96)
    assert not model.training


def _bidirectional(forward):
    def call(*args, attention_mask=None, **kwargs):
        return forward(*args, attention_mask=None, **kwargs)

    return call


@pytest.mark.parametrize(("kind", "precision"), [("mixtral", "float32"), ("mixtral", "bf16"), ("llama", "float32")])
def test_a_model_that_looks_ahead_is_refused_and_a_mixture_of_experts_may_round_otherwise(kind, precision) -> None:
    """Another chunk changes how many tokens an expert reads, and so how its products are rounded."""
    model, logits = families.model(kind, "eager"), torch.randn(9, 257)
    assert _rounding(model, logits) == (0 if kind == "llama" else pytest.approx(0.02 * logits.std().item()))
    assert probe_connectivity(model, 96, precision=precision).forward > 0
    for layer in model.model.layers:
        layer.self_attn.forward = _bidirectional(layer.self_attn.forward)
    with pytest.raises(ModelError):
        probe_connectivity(model, 96, precision=precision)


def test_two_chunks_that_are_cut_off_are_enough_to_refuse() -> None:
    model = llama(96, attn_implementation="eager", num_hidden_layers=1)
    forward = model.model.layers[0].self_attn.forward

    def cut(*args, attention_mask=None, **given):
        attention_mask = attention_mask.clone()
        attention_mask[..., 16:, :8] = torch.finfo(attention_mask.dtype).min  # the third sees not the first
        return forward(*args, attention_mask=attention_mask, **given)

    model.model.layers[0].self_attn.forward = cut
    with pytest.raises(ModelError):
        probe_connectivity(model, 96)
