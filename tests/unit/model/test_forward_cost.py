"""Operations of a forward pass, beside PyTorch's own counter of what is run."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel, Gemma3nTextConfig, LlamaConfig, MixtralConfig

from skipwise.model.blocked_attention import blocked_attention
from skipwise.model.cost import ForwardCost, Speed, layer_step_seconds, training_seconds
from tests import families


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "olmo2", "phi", "gpt_neox"])
@pytest.mark.parametrize("length", [8, 64])
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


@pytest.mark.parametrize(("said", "chosen"), [({}, 4), ({"num_experts_per_tok": 1}, 1), ({"top_k_experts": 2}, 2)])
def test_how_many_experts_a_token_chooses_may_have_another_name(said: dict[str, int], chosen: int) -> None:
    """Gemma 4's config says ``top_k_experts``; where none is said, all count."""

    class Mixture(torch.nn.Module):
        config = LlamaConfig(num_experts=4, num_attention_heads=1, head_dim=2, num_hidden_layers=1, **said)

        def __init__(self) -> None:
            super().__init__()
            self.experts = torch.nn.Parameter(torch.zeros(4, 3, 5))

        def get_output_embeddings(self) -> torch.nn.Linear:
            return torch.nn.Linear(2, 3, bias=False)

    assert ForwardCost.of(Mixture()).linear == 2.0 * chosen * 15


def test_a_width_for_each_layer_is_timed() -> None:
    """As Gemma 3n's config lists them."""
    config = Gemma3nTextConfig(
        vocab_size=300,
        vocab_size_per_layer_input=300,
        hidden_size=32,
        hidden_size_per_layer_input=8,
        intermediate_size=[48, 48, 48, 48, 64],
        num_hidden_layers=5,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_kv_shared_layers=0,
        activation_sparsity_pattern=None,
        laurel_rank=4,
        altup_num_inputs=2,
    )
    cpu = torch.device("cpu")
    assert Speed.measured(config, "float32", cpu).linear > 0
    assert 0 < layer_step_seconds(config, "float32", cpu, 16) < 60


def test_a_prompt_needs_no_logits() -> None:
    cost = ForwardCost(linear=100.0, output=10.0, pair=2.0)
    assert cost.of_token(6, scored=True) == (110.0, 6.0)
    assert cost.of_token(6, scored=False) == (100.0, 6.0)


def test_an_architecture_is_not_to_blame_for_a_full_memory(monkeypatch) -> None:
    def full(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(AutoModel, "from_config", full)
    with pytest.raises(RuntimeError, match="can't allocate"):
        layer_step_seconds(families.config("llama"), "float32", torch.device("cpu"), 16)


def test_a_layer_is_timed_with_the_attention_of_a_run(monkeypatch) -> None:
    """Without it a forecast of what a base writes in bf16 is far too long on a CPU that attends by blocks."""
    entered = []

    @contextmanager
    def attending(model: torch.nn.Module) -> Iterator[None]:
        entered.append(model)
        with blocked_attention(model):
            yield

    monkeypatch.setattr("skipwise.model.cost.blocked_attention", attending)
    monkeypatch.setattr("skipwise.model.cost._seconds", lambda run, device: (run(), 1.0)[1])
    layer_step_seconds(families.config("llama"), "bf16", torch.device("cpu"), 16)
    assert len(entered) == 1


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


@pytest.mark.parametrize("family", families.NAMES)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_layer_of_every_family_can_be_timed(family: str, precision: str) -> None:
    config = families.config(family)
    before = config.to_dict()
    assert 0 < layer_step_seconds(config, precision, torch.device("cpu"), 16) < 60
    assert config.to_dict() == before
