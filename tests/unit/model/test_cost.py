"""Planned bytes and operations against the allocator's events of a real step, and closed forms."""

from pathlib import Path

import pytest
import torch
from torch.profiler import profile
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from skipwise.model import cost as cost_module
from skipwise.model.attention import CACHE
from skipwise.model.cost import CHECKPOINTING, OPTIMIZER_BYTES, _Counted, fastest_batch, step_cost, token_bytes
from skipwise.model.forward import autocast
from skipwise.model.lora import adapt
from skipwise.recipes.schema import Lora
from tests import families

TOKENS, MICRO = 256, 2


def config(**changes: object) -> LlamaConfig:
    widths = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 12}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    return LlamaConfig(**(widths | heads | ids | {"max_position_embeddings": TOKENS} | changes))


def allocated(model: torch.nn.Module, precision: str) -> int:
    """Return the peak bytes of the CPU's allocator beyond weights and gradients, in a step of training."""
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


@pytest.mark.parametrize(
    ("precision", "checkpointing", "rules"),
    [("float32", False, None), ("bf16", True, None), ("bf16", False, Lora(r=4)), ("float32", True, Lora(r=4))],
)
def test_activations_are_those_of_the_allocator(precision, checkpointing: bool, rules) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(config()).train()
    if checkpointing:
        getattr(model, f"{CHECKPOINTING}_enable")()
    found = allocated(adapt(model, rules) if rules else model, precision)
    cost = step_cost(config(), TOKENS, MICRO, precision=precision, checkpointing=checkpointing, rules=rules)
    assert cost.activations == pytest.approx(found, rel=0.05)


def test_the_fewest_windows_within_3_percent_of_the_fastest_are_chosen(monkeypatch) -> None:
    seconds = iter([1.0, 1.9, 3.72])  # of one, two and four windows
    monkeypatch.setattr(cost_module, "_seconds", lambda run, device: next(seconds))
    assert fastest_batch(config(), TOKENS, [1, 2, 4], "float32") == 2


def test_operations_are_six_a_weight_and_token_and_those_of_attention() -> None:
    cost = step_cost(config(), TOKENS, MICRO)
    model = LlamaForCausalLM(config())
    matrices = sum(w.numel() for name, w in model.named_parameters() if w.ndim == 2 and "embed" not in name)
    tokens = TOKENS * MICRO
    # Two products forward and five backward over half of all pairs, of 2 operations each.
    attention = 12 * tokens * TOKENS * 64 * 7
    # Older transformers make the rotary angles by a product of matrices, 6e-6 of all operations.
    assert cost.operations == pytest.approx(6 * matrices * tokens + attention, rel=1e-5)
    assert cost.parameters == cost.trained == sum(w.numel() for w in model.parameters())
    assert cost.weights == 4 * cost.parameters


def test_capped_logits_are_planned_whole_and_others_in_slices() -> None:
    sizes = (config(vocab_size=2**20), config(vocab_size=2**20, final_logit_softcapping=30.0))
    sliced, planned = (step_cost(each, TOKENS) for each in sizes)
    assert planned.activations > 2 * (4 * TOKENS * 2**20) > sliced.activations
    assert sliced.operations == pytest.approx(planned.operations, rel=1e-4)


@pytest.mark.parametrize("optim", sorted(OPTIMIZER_BYTES))
def test_an_optimizer_keeps_the_planned_bytes(optim: str, tmp_path: Path) -> None:
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
    cost, (each, of_embedding) = step_cost(model.config, TOKENS), OPTIMIZER_BYTES[optim]
    expected = each * (cost.trained - cost.embedded) + of_embedding * cost.embedded
    assert kept / cost.trained == pytest.approx(expected / cost.trained, abs=0.05)


@pytest.mark.parametrize("family", ["llama", "llama2", "gpt_neox", "gemma3"])
def test_keys_and_values_are_those_of_the_stock_cache_and_a_pass_holds_the_planned_bytes(family: str) -> None:
    model = families.model(family).eval()
    held = _Counted()
    with torch.inference_mode(), held:
        model(input_ids=torch.ones(1, 32, dtype=torch.long), use_cache=False, logits_to_keep=1)
    assert held.most / 6 < 32 * token_bytes(model.config, 4, cached=False) <= held.most
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(input_ids=torch.ones(1, 12, dtype=torch.long), use_cache=True, **{CACHE: cache})
    layers = [layer for layer in cache.layers if not layer.is_sliding]
    kept = sum(one.nbytes for layer in layers for one in (layer.keys, layer.values))
    config = model.config
    assert 12 * (token_bytes(config, 4, cached=True) - token_bytes(config, 4, cached=False)) == kept
