"""What a step is said to hold and compute against the allocator's own events of a real step, and closed forms."""

from pathlib import Path

import pytest
import torch
from torch.profiler import profile
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from skipwise.model.checkpointing import NAME
from skipwise.model.lora import adapt
from skipwise.model.memory import _KEPT, optimizer_bytes
from skipwise.model.precision import autocast
from skipwise.model.step_cost import StepSettings, step_cost
from skipwise.recipes.schema import Lora
from tests import families

TOKENS, MICRO = 256, 2


def config(**changes: object) -> LlamaConfig:
    widths = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    return LlamaConfig(**(widths | heads | ids | {"max_position_embeddings": TOKENS} | changes))


def allocated(model: torch.nn.Module, precision: str) -> int:
    """The most bytes that the CPU's allocator gave out beyond weights and gradients, in a step like training's."""
    ids = torch.zeros(MICRO, TOKENS, dtype=torch.long)
    batch = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}

    def step() -> None:
        with autocast("cpu", precision):
            loss = model(**batch).loss
        loss.backward()

    step()
    with profile(profile_memory=True) as seen:
        step()
    now = most = 0
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("rules", [None, Lora(rank=4)])
def test_activations_are_what_the_allocator_gives_out(precision, checkpointing: bool, rules) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(config()).train()
    if checkpointing:
        getattr(model, f"{NAME}_enable")()
    found = allocated(adapt(model, rules) if rules else model, precision)
    cost = step_cost(config(), StepSettings(TOKENS, MICRO, precision, checkpointing=checkpointing, lora=rules))
    assert cost.activations == pytest.approx(found, rel=0.05)


def test_operations_are_six_a_weight_and_token_and_attentions_own() -> None:
    cost = step_cost(config(), StepSettings(TOKENS, MICRO))
    model = LlamaForCausalLM(config())
    matrices = sum(w.numel() for name, w in model.named_parameters() if w.ndim == 2 and "embed" not in name)
    tokens = TOKENS * MICRO
    # Two products forward and five backward over half of all pairs, of 2 operations each.
    attention = 3 * tokens * TOKENS * 64 * 7
    # Older transformers make the rotary angles by a product of matrices, 6e-6 of all operations.
    assert cost.operations == pytest.approx(6 * matrices * tokens + attention, rel=1e-5)
    assert cost.parameters == cost.trained == sum(w.numel() for w in model.parameters())
    assert cost.weights == 4 * cost.parameters


def test_what_is_set_is_in_the_figures() -> None:
    plain = step_cost(config(), StepSettings(TOKENS))
    saved = step_cost(config(), StepSettings(TOKENS, checkpointing=True))
    adapted = step_cost(config(), StepSettings(TOKENS, lora=Lora(rank=4), weights=torch.bfloat16))
    assert saved.activations < 0.7 * plain.activations
    assert 1.2 * plain.operations < saved.operations < 4 / 3 * plain.operations
    assert adapted.trained < plain.parameters / 4
    assert adapted.weights < 0.7 * plain.weights
    assert adapted.operations < 0.85 * plain.operations
    layer = sum(w.numel() for w in LlamaForCausalLM(config()).model.layers[0].parameters())
    assert plain.block == 4 * layer


@pytest.mark.parametrize(
    ("setting", "whole"), [({"final_logit_softcapping": 30.0}, True), ({"logit_scale": 0.0625}, False)]
)
def test_capped_logits_are_planned_whole_and_scaled_ones_in_slices_as_they_are_trained(setting, whole: bool) -> None:
    plain, changed = config(), config(**setting)
    plain.vocab_size = changed.vocab_size = 2**20
    logits = 4 * TOKENS * 2**20
    sliced, planned = (step_cost(each, StepSettings(TOKENS)).activations for each in (plain, changed))
    assert 2 * logits > sliced
    assert (planned > 2 * logits) == whole


def test_tied_embeddings_that_are_trained_beside_lora_are_planned() -> None:
    tied, rules = config(tie_word_embeddings=True), Lora(rank=4, also=["embeddings"])
    trained = sum(w.numel() for w in adapt(LlamaForCausalLM(tied), rules).parameters() if w.requires_grad)
    assert step_cost(tied, StepSettings(TOKENS, lora=rules)).trained == trained


@pytest.mark.parametrize("family", families.DENSE)
def test_every_family_is_planned(family: str) -> None:
    before = families.config(family)
    cost = step_cost(before, StepSettings(64))
    assert cost.parameters == sum(w.numel() for w in families.model(family).parameters())
    assert cost.activations > 0
    assert before.to_dict() == families.config(family).to_dict()


@pytest.mark.parametrize("optim", sorted(_KEPT))
def test_an_optimizer_keeps_as_many_bytes_as_is_said(optim: str, tmp_path: Path) -> None:
    """In its tables of 256 values, one for each tensor, an optimizer in 8 bits keeps 0.04 bytes a weight more here."""
    if "bit" in optim:
        pytest.importorskip("bitsandbytes", minversion="0.50", reason="older releases step on a GPU alone")
    model = LlamaForCausalLM(config(hidden_size=256, intermediate_size=512))
    trainer = Trainer(model, TrainingArguments(str(tmp_path), optim=optim, use_cpu=True, report_to="none"))
    optimizer = trainer.create_optimizer()
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    kept = sum(one.nbytes for state in optimizer.state.values() for one in state.values() if torch.is_tensor(one))
    cost, said = step_cost(model.config, StepSettings(TOKENS)), optimizer_bytes(optim)
    assert said is not None
    assert cost.embedded == model.get_input_embeddings().weight.numel()
    expected = said[0] * (cost.trained - cost.embedded) + said[1] * cost.embedded
    assert kept / cost.trained == pytest.approx(expected / cost.trained, abs=0.05)
