"""Chunks attend to each other: the whole perturbation matrix, per attention kernel and way of running.

Each case is shown to fail when the mask is left out, which is how frameworks cut chunks from each other.
"""

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainingArguments

from skipwise.data.examples import collate
from skipwise.errors import ModelError
from skipwise.keys import Keys
from skipwise.model.probe import Probe, _require_causal_connection, probe_connectivity
from skipwise.positions import pose
from tests.tiny import llama

TOKENS = 12


def batch() -> dict[str, torch.Tensor]:
    plans = pose(Keys.of(3, 0, [0]), TOKENS, 96, np.array([TOKENS]), chunks=3)
    ids = np.arange(TOKENS) * 5 + 1
    example = {"input_ids": ids, "position_ids": plans.position_ids()[0], "labels": ids}
    return collate([{**example, "attention_mask": np.ones_like(ids)}])


def influence(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> np.ndarray:
    """[changed token, looking token]: whether the logits changed."""

    def logits(ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(**{**inputs, "input_ids": ids}, use_cache=False).logits[0]

    base, rows = logits(inputs["input_ids"]), []
    for token in range(TOKENS):
        other = inputs["input_ids"].clone()
        other[0, token] += 1
        rows.append((logits(other) - base).abs().amax(dim=1) > 0)
    return torch.stack(rows).numpy()


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_token_sees_all_before_it(attention: str, train: bool, checkpointing: bool) -> None:
    model = llama(96, attn_implementation=attention)
    if checkpointing:
        model.gradient_checkpointing_enable()
    model.train(train)
    whole = np.triu(np.ones((TOKENS, TOKENS), dtype=bool))
    inputs = batch()
    assert (influence(model, inputs) == whole).all()
    inputs.pop("attention_mask")
    assert (influence(model, inputs) != whole).any()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_probe_passes_with_the_mask_and_refuses_without(attention: str) -> None:
    model = llama(96, attn_implementation=attention, attention_dropout=0.1).train()
    probe = probe_connectivity(model, 96)
    assert probe.forward > 0
    assert probe.backward == 0
    assert model.training
    assert probe_connectivity(model, 96, precision=torch.bfloat16).precision == "bfloat16"
    with pytest.raises(ModelError, match=f"do not attend to each other under {attention} attention"):
        probe_connectivity(model, 96, attention_mask=False)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_called_so(value: float) -> None:
    model = llama(96).train()
    torch.nn.init.constant_(model.model.layers[0].mlp.up_proj.weight, value)
    with pytest.raises(ModelError, match="logits are not finite; its weights hold NaN or infinity"):
        probe_connectivity(model, 96)
    assert model.training


def test_a_model_that_looks_ahead_is_refused() -> None:
    model = llama(96, attn_implementation="eager")
    for layer in model.model.layers:
        layer.self_attn.forward = _bidirectional(layer.self_attn.forward)
    with pytest.raises(ModelError, match="not causal"):
        probe_connectivity(model, 96)


def _bidirectional(forward):
    def call(*args, attention_mask=None, **kwargs):
        return forward(*args, attention_mask=None, **kwargs)

    return call


def test_trainer_passes_the_mask_on_to_a_causal_kernel(tmp_path, monkeypatch) -> None:
    """The spy sees scaled_dot_product_attention called without a mask and with is_causal: the fast path."""
    seen: list[tuple[bool, bool]] = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def spy(*args, attn_mask=None, is_causal=False, **kwargs):
        seen.append((attn_mask is None, is_causal))
        return attention(*args, attn_mask=attn_mask, is_causal=is_causal, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    example = {key: value[0].numpy() for key, value in batch().items()}
    arguments = TrainingArguments(tmp_path, max_steps=1, use_cpu=True, report_to="none", disable_tqdm=True)
    Trainer(llama(96, attn_implementation="sdpa"), arguments, collate, [example] * 8).train()
    assert seen
    assert set(seen) == {(True, True)}


def test_every_pair_of_chunks_is_judged() -> None:
    _require_causal_connection(Probe("sdpa", "float32", forward=0.1, backward=0.0))
    with pytest.raises(ModelError, match="do not attend to each other"):
        _require_causal_connection(Probe("sdpa", "float32", forward=0.0, backward=0.0))


def test_the_probe_leaves_mode_and_generator_alone() -> None:
    model, state = llama(96).eval(), torch.get_rng_state()
    probe_connectivity(model, 96)
    assert not model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_the_probe_runs_as_training_does() -> None:
    model, seen = llama(96).eval(), []
    model.lm_head.register_forward_hook(lambda m, args, out: seen.append((m.training, out.dtype)))
    probe_connectivity(model, 96, precision=torch.bfloat16)
    assert set(seen) == {(True, torch.bfloat16)}


def test_two_chunks_that_are_cut_off_are_enough_to_refuse(monkeypatch) -> None:
    model = llama(96, attn_implementation="eager")
    for layer in model.model.layers:
        forward = layer.self_attn.forward

        def cut(*args, attention_mask=None, forward=forward, **given):
            attention_mask = attention_mask.clone()
            attention_mask[..., 16:, :8] = torch.finfo(
                attention_mask.dtype
            ).min  # the third sees not the first
            return forward(*args, attention_mask=attention_mask, **given)

        layer.self_attn.forward = cut
    for layer in model.model.layers[1:]:
        layer.forward = lambda hidden, *a, **k: hidden
    with pytest.raises(ModelError, match="do not attend to each other"):
        probe_connectivity(model, 96)
