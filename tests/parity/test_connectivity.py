"""Chunks attend to each other: the whole perturbation matrix, per attention kernel and way of running.

Each case is shown to fail when the mask is left out, which is how frameworks cut chunks from each other.
"""

import tempfile

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Trainer, TrainingArguments

from skipwise.data.examples import collate
from skipwise.errors import ModelError
from skipwise.method.positions import ChunkRules, pose
from skipwise.method.rng import Rng
from skipwise.model.lora import adapt
from skipwise.model.probe import Probe, _require_causal_connection, _rounding, probe_connectivity
from skipwise.recipes.schema import Lora
from tests import families
from tests.tiny import llama

TOKENS = 12
NO_SDPA = {"gemma2"}  # its soft cap on attention
CASES = [
    (family, attention)
    for family in families.DENSE
    for attention in ("eager", "sdpa")
    if attention == "eager" or family not in NO_SDPA
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


def by_trainer(model: torch.nn.Module, batches: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
    """As Trainer feeds the model, at a learning rate of zero."""
    seen: list[torch.Tensor] = []
    head = model.get_output_embeddings()
    head.register_forward_hook(lambda module, args, out: seen.append(out[0].detach().clone()))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=len(batches),
            learning_rate=0.0,
            per_device_train_batch_size=1,
            train_sampling_strategy="sequential",
            remove_unused_columns=False,
            save_strategy="no",
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        )
        Trainer(model, arguments, lambda rows: rows[0], batches).train()
    return seen


@pytest.mark.parametrize("way", ["evaluation", "training", "checkpointing", "lora", "trainer"])
@pytest.mark.parametrize(("family", "attention"), CASES)
def test_every_token_sees_all_before_it(family: str, attention: str, way: str) -> None:
    model = families.model(family, attention)
    model.train(way != "evaluation")
    if way == "checkpointing":
        model.gradient_checkpointing_enable()
    if way == "lora":
        model = adapt(model, Lora(rank=2))
    run = by_trainer if way == "trainer" else by_hand
    batches = [collate([example]) for example in examples()]
    whole = np.triu(np.ones((TOKENS, TOKENS), dtype=bool))
    assert (influence(run(model, batches)) == whole).all()
    for batch in batches:
        batch.pop("attention_mask")
    assert (influence(run(model, batches)) != whole).any()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_probe_passes_with_the_mask_and_refuses_without(attention: str) -> None:
    model = llama(96, attn_implementation=attention, attention_dropout=0.1).train()
    probe = probe_connectivity(model, 96)
    assert probe.forward > 0
    assert probe.backward == 0
    assert model.training
    assert probe_connectivity(model, 96, precision="bf16").precision == "bf16"
    model.base_model.register_forward_pre_hook(
        lambda decoder, args, given: (args, given | {"attention_mask": None}), with_kwargs=True
    )
    with pytest.raises(ModelError, match=f"do not attend to each other under {attention} attention"):
        probe_connectivity(model, 96)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_called_so(value: float) -> None:
    model = llama(96).train()
    torch.nn.init.constant_(model.model.layers[0].mlp.up_proj.weight, value)
    with pytest.raises(ModelError, match="not finite"):
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
    example = examples()[0]
    arguments = TrainingArguments(tmp_path, max_steps=1, use_cpu=True, report_to="none", disable_tqdm=True)
    Trainer(llama(96, attn_implementation="sdpa"), arguments, collate, [example] * 8).train()
    assert seen
    assert set(seen) == {(True, True)}


def mixture(kind: str, **changes: object) -> PreTrainedModel:
    """A tiny mixture of experts of a stock class."""
    sizes = {"vocab_size": 257, "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 128}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
    experts = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2}
    config = AutoConfig.for_model(kind, **sizes, **heads, **experts, initializer_range=0.2)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, **changes)


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_mixture_of_experts_may_round_otherwise_and_is_refused_if_it_looks_ahead(kind: str, precision: str) -> None:
    """Another chunk changes how many tokens an expert reads, and so how its products are rounded."""
    assert probe_connectivity(mixture(kind), 96, precision=precision).forward > 0
    model = mixture(kind, attn_implementation="eager")
    for layer in model.model.layers:
        layer.self_attn.forward = _bidirectional(layer.self_attn.forward)
    with pytest.raises(ModelError, match="not causal"):
        probe_connectivity(model, 96, precision=precision)


def test_only_a_mixture_of_experts_may_round_otherwise() -> None:
    logits = torch.randn(9, 257, generator=torch.Generator().manual_seed(0))
    assert _rounding(mixture("mixtral"), logits) == pytest.approx(0.02 * logits.std().item())
    assert _rounding(llama(96), logits) == 0


@pytest.mark.parametrize("rounding", [0.0, 0.02])
def test_every_pair_of_chunks_is_judged(rounding: float) -> None:
    _require_causal_connection(Probe("sdpa", "float32", forward=0.1, backward=rounding / 2), rounding)
    with pytest.raises(ModelError, match="do not attend to each other"):
        _require_causal_connection(Probe("sdpa", "float32", forward=rounding / 5, backward=0.0), rounding)
    with pytest.raises(ModelError, match="not causal"):
        _require_causal_connection(Probe("sdpa", "float32", forward=0.1, backward=rounding + 0.01), rounding)


def test_the_probe_leaves_mode_and_generator_alone() -> None:
    model, state = llama(96).eval(), torch.get_rng_state()
    probe_connectivity(model, 96)
    assert not model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_the_probe_runs_as_training_does() -> None:
    model, seen = llama(96).eval(), []
    model.lm_head.register_forward_hook(lambda m, args, out: seen.append((m.training, out.dtype)))
    probe_connectivity(model, "96", precision="bf16")
    assert set(seen) == {(True, torch.bfloat16)}


def test_two_chunks_that_are_cut_off_are_enough_to_refuse(monkeypatch) -> None:
    model = llama(96, attn_implementation="eager")
    for layer in model.model.layers:
        forward = layer.self_attn.forward

        def cut(*args, attention_mask=None, forward=forward, **given):
            attention_mask = attention_mask.clone()
            attention_mask[..., 16:, :8] = torch.finfo(attention_mask.dtype).min  # the third sees not the first
            return forward(*args, attention_mask=attention_mask, **given)

        layer.self_attn.forward = cut
    for layer in model.model.layers[1:]:
        layer.forward = lambda hidden, *a, **k: hidden
    with pytest.raises(ModelError, match="do not attend to each other"):
        probe_connectivity(model, 96)
