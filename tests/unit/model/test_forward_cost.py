"""Operations of a forward pass, beside PyTorch's own counter of what is run."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import MixtralConfig

from skipwise.model.cost import ForwardCost, Speed, meta_model
from tests import families


@pytest.mark.parametrize(("family", "length"), [("llama", 8), ("qwen3", 64), ("phi", 64), ("gpt_neox", 8)])
def test_operations_are_those_that_pytorch_counts(family: str, length: int) -> None:
    model = families.model(family).eval()
    model.set_attn_implementation("eager")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.zeros(1, length, dtype=torch.long), use_cache=False)
    cost = ForwardCost.of(model)
    linear, attention = cost.token_seconds(0, Speed(1, 1)), cost.token_seconds(length, Speed(float("inf"), 1))
    # Eager attention computes what a causal kernel leaves out: all pairs, where the closed form has half of them.
    rotations = counter.get_flop_counts()["Global"].get(torch.ops.aten.bmm, 0) - 2 * length * attention
    assert counter.get_total_flops() - rotations == pytest.approx(length * (linear + 2 * attention), rel=1e-9)
    assert 0 <= rotations <= length * attention
    assert ForwardCost.of(meta_model(model.config)) == cost


def test_of_experts_those_count_that_a_token_chooses() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    shared = {"num_key_value_heads": 2, "num_local_experts": 4, "vocab_size": 32}
    costs = [
        ForwardCost.of(meta_model(MixtralConfig(**sizes, **shared, num_experts_per_tok=chosen))) for chosen in (1, 2, 4)
    ]
    one = 2.0 * 3 * 16 * 24  # an expert's three matrices
    assert costs[1].linear - costs[0].linear == one
    assert costs[2].linear - costs[0].linear == 3 * one


@pytest.mark.parametrize(("family", "precision"), [("llama", "float32"), ("gemma3", "bf16"), ("mixtral", "float32")])
def test_a_layer_of_every_family_can_be_timed(family: str, precision: str) -> None:
    config = families.config(family)
    before = config.to_dict()
    speed = Speed.measured(config, precision, torch.device("cpu"))
    assert 0 < speed.linear < 1e16
    assert 0 < speed.attention < 1e16
    assert config.to_dict() == before
