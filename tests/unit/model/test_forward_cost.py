"""Operations of a forward pass, beside PyTorch's own counter of what is run."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel, LlamaConfig, MixtralConfig

from skipwise.errors import ModelError
from skipwise.model.cost import ForwardCost, Speed, layer_step_seconds, training_seconds
from tests import families


@pytest.mark.parametrize(("family", "length"), [("llama", 8), ("qwen3", 64), ("phi", 64), ("gpt_neox", 8)])
def test_operations_are_those_that_pytorch_counts(family: str, length: int) -> None:
    model = families.model(family).eval()
    model.set_attn_implementation("eager")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.zeros(1, length, dtype=torch.long), use_cache=False)
    cost = ForwardCost.of(model)
    linear, attention = cost.of_token(length, scored=True)
    # Eager attention computes what a causal kernel leaves out: all pairs, where the closed form has half of them.
    rotations = counter.get_flop_counts()["Global"].get(torch.ops.aten.bmm, 0) - 2 * length * attention
    assert counter.get_total_flops() - rotations == pytest.approx(length * (linear + 2 * attention), rel=1e-9)
    assert 0 <= rotations <= length * attention
    assert ForwardCost.of_config(model.config) == cost


def test_of_experts_those_count_that_a_token_chooses() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    shared = {"num_key_value_heads": 2, "num_local_experts": 4, "vocab_size": 32}
    costs = [
        ForwardCost.of_config(MixtralConfig(**sizes, **shared, num_experts_per_tok=chosen)) for chosen in (1, 2, 4)
    ]
    one = 2.0 * 3 * 16 * 24  # an expert's three matrices
    assert costs[1].linear - costs[0].linear == one
    assert costs[2].linear - costs[0].linear == 3 * one


def test_training_takes_its_layers_and_the_products_outside_of_them(monkeypatch) -> None:
    timed, cost = [], ForwardCost(linear=100.0, output=50.0, pair=2.0)
    monkeypatch.setattr(ForwardCost, "of_config", lambda config: cost)
    monkeypatch.setattr(Speed, "measured", lambda *how: Speed(10.0, 20.0))
    monkeypatch.setattr("skipwise.model.cost.layer_step_seconds", lambda *how: timed.append(how[-1]) or 4.0)
    config, cpu = LlamaConfig(num_hidden_layers=3), torch.device("cpu")
    assert training_seconds(config, 1000, 64, "float32", cpu) == pytest.approx(1000 * (3 * 4 / 64 + 3 * 50 / 10))
    far = 1000 * (3 * 4 / 2048 + 3 * 50 / 10 + 3 * 2 * (8192 - 2048) / 2 / 20)
    assert training_seconds(config, 1000, 8192, "float32", cpu) == pytest.approx(far)
    assert timed == [64, 2048]


def test_speeds_of_this_machine_are_numbers() -> None:
    speed = Speed.measured(families.config("llama"), "float32", torch.device("cpu"))
    assert 0 < speed.linear < 1e16
    assert 0 < speed.attention < 1e16


@pytest.mark.parametrize(("family", "precision"), [("llama", "float32"), ("gemma3", "bf16"), ("mixtral", "float32")])
def test_a_layer_of_every_family_can_be_timed(family: str, precision: str) -> None:
    config = families.config(family)
    before = config.to_dict()
    assert 0 < layer_step_seconds(config, precision, torch.device("cpu"), 16) < 60
    assert config.to_dict() == before


@pytest.mark.parametrize(("said", "error"), [("can't allocate memory", RuntimeError), ("a shape", ModelError)])
def test_an_architecture_is_not_to_blame_for_a_full_memory(monkeypatch, said: str, error: type[Exception]) -> None:
    def fails(*_, **__):
        raise RuntimeError(said)

    monkeypatch.setattr(AutoModel, "from_config", fails)
    with pytest.raises(error):
        layer_step_seconds(families.config("llama"), "float32", torch.device("cpu"), 16)
