"""Bounds of memory from below: they must never exceed what a pass really holds."""

import pytest
import torch
from transformers import DbrxConfig, DeepseekV3Config, DynamicCache, Gemma3nTextConfig, MistralConfig, PretrainedConfig

from skipwise.model import memory
from skipwise.model.cache_argument import CACHE
from skipwise.model.memory import experts_of, machine_memory, parameters_of, token_bytes
from skipwise.model.step_cost import _Counted
from tests import families, tiny


def test_experts_are_counted_wherever_a_config_names_them() -> None:
    assert experts_of(families.config("llama")) == 0
    assert experts_of(DbrxConfig(ffn_config={"moe_num_experts": 8})) == 8
    assert experts_of(DeepseekV3Config(n_routed_experts=4)) == 4


@pytest.mark.parametrize("family", families.NAMES)
def test_keys_and_values_are_those_of_the_stock_cache(family: str) -> None:
    model = families.model(family).eval()
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(input_ids=torch.ones(1, 12, dtype=torch.long), use_cache=True, **{CACHE: cache})
    layers = [layer for layer in cache.layers if not layer.is_sliding]
    held = sum(one.nbytes for layer in layers for one in (layer.keys, layer.values))
    config = model.config
    assert 12 * (token_bytes(config, 4, cached=True) - token_bytes(config, 4, cached=False)) == held


def test_of_latent_attention_no_more_is_said_than_a_cache_may_hold() -> None:
    """transformers 5.10 keeps whole keys and values, 5.24 what both are made from."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 16, "num_hidden_layers": 2}
    heads = {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
    }
    config = DeepseekV3Config(vocab_size=97, kv_lora_rank=16, q_lora_rank=16, **sizes, **heads)
    assert token_bytes(config, 4, cached=True) - token_bytes(config, 4, cached=False) == 2 * (16 + 8) * 4


@pytest.mark.parametrize("family", families.DENSE)
def test_a_pass_holds_at_least_what_is_said(family: str) -> None:
    model = families.model(family).eval()
    held = _Counted()
    with torch.inference_mode(), held:
        model(input_ids=torch.ones(1, 32, dtype=torch.long), use_cache=False, logits_to_keep=1)
    said = 32 * token_bytes(model.config, 4, cached=False)
    assert said <= held.most
    assert said > held.most / 6


def test_of_layers_of_several_widths_the_widest_counts() -> None:
    """As Gemma 3n's config lists them."""
    config = Gemma3nTextConfig(
        hidden_size=32,
        num_hidden_layers=2,
        intermediate_size=[48, 96],
        layer_types=["sliding_attention", "full_attention"],
    )
    assert token_bytes(config, 4, cached=False) == 4 * (2 * 32 + 2 * 96)


def test_experts_are_not_counted_whole() -> None:
    config = tiny.llama(64).config
    config.num_local_experts = 8
    assert token_bytes(config, 4, cached=False) == 4 * 2 * config.hidden_size


def test_sliding_layers_keep_nothing_that_grows() -> None:
    config = tiny.llama(64).config
    sliding = MistralConfig(**{**config.to_dict(), "model_type": "mistral", "sliding_window": 16})
    assert token_bytes(sliding, 4, cached=True) == token_bytes(sliding, 4, cached=False)


def test_parameters_are_counted_without_weights() -> None:
    model = tiny.llama(64)
    assert parameters_of(model.config) == model.num_parameters()
    assert parameters_of(PretrainedConfig()) is None  # loading says why


def test_the_memory_of_this_machine_is_known_and_of_others_not(monkeypatch, tmp_path) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_LIMIT", limit)
    whole = machine_memory(torch.device("cpu"))
    assert whole is not None
    assert 2**28 < whole < 2**50
    limit.write_text("max\n")
    assert machine_memory(torch.device("cpu")) == whole
    limit.write_text("1000000\n")
    assert machine_memory(torch.device("cpu")) == 1_000_000
    assert machine_memory(torch.device("meta")) is None
