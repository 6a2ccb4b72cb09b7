from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BloomConfig,
    Gemma3Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
)

from skipwise.errors import ModelError, RecipeError
from skipwise.model.config import load_config
from skipwise.model.extension import check_frequencies, extension_of, plan_extension, set_interpolation
from skipwise.model.loading import load_model
from skipwise.recipes.loading import dump_recipe, load_recipe
from tests.tiny import checkpoint


def scaled(**rope: object) -> LlamaConfig:
    return LlamaConfig(max_position_embeddings=1024, rope_parameters={"rope_theta": 10000.0, **rope})


def longrope(long: float) -> LlamaConfig:
    rope = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 256}
    return scaled(**rope, short_factor=[1.0] * 64, long_factor=[long] * 64)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 128,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "pad_token_id": 0,
}


@pytest.mark.parametrize("config", [GPT2Config(), BertConfig(), BloomConfig(), Gemma3Config()])
def test_models_without_one_rope_are_refused(config) -> None:
    with pytest.raises(ModelError, match=config.model_type):
        plan_extension(config)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (scaled(**LLAMA3), r"llama3 x8 .*128.* --interpolation yarn"),
        (scaled(rope_type="linear", factor=4.0), r"linear x4 .*256.* original_length"),
        (scaled(rope_type="dynamic", factor=4.0), "dynamic"),
        (longrope(4.0), "longrope"),
        (longrope(1.0), "longrope x4 .*256"),
    ],
)
def test_scaled_models_are_refused_with_the_way_out(config, named: str) -> None:
    with pytest.raises(ModelError, match=named):
        plan_extension(config)
    assert plan_extension(config, interpolation="none", original_length=256).target_length == 2048


def test_replacing_a_scaling_starts_from_the_original_length() -> None:
    extension = plan_extension(scaled(**LLAMA3), interpolation="yarn")
    assert (extension.rope.original_length, extension.target_length, extension.factor) == (128, 1024, 8)
    kept = plan_extension(scaled(rope_type="linear", factor=4.0), interpolation="yarn", original_length="1k")
    assert (kept.rope.original_length, kept.target_length) == (1024, 8192)
    recipe = {"model": "x", "target": "2k"}
    assert extension_of(scaled(**LLAMA3), load_recipe(None, {**recipe, "interpolation": "fitted"})).factor == 16
    with pytest.raises(ModelError):
        extension_of(scaled(**LLAMA3), load_recipe(None, recipe))  # auto is no choice


@pytest.mark.parametrize(
    ("config", "window"),
    [
        (LlamaConfig(max_position_embeddings=4096), 4096),
        (scaled(**LLAMA3), 1024),
        (longrope(4.0), 1024),
        (scaled(rope_type="yarn", factor=4.0, original_max_position_embeddings=1024), 4096),  # as model cards advise
    ],
)
def test_a_model_that_keeps_its_window_keeps_its_rope(config: LlamaConfig, window: int) -> None:
    before = config.to_dict()
    extension = extension_of(config, load_recipe(None, {"model": "x", "target": "window"}))
    assert (extension.rope.original_length, extension.target_length) == (window, window)
    set_interpolation(config, extension)
    assert config.to_dict() == before
    with pytest.raises(RecipeError, match="yarn"):
        plan_extension(config, target_length="window", interpolation="yarn")
    with pytest.raises(ModelError, match=f"{window:,} tokens"):
        plan_extension(config, target_length=window)


SLIDING = {"sliding_window": 16, "use_sliding_window": True, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("config", "taken"),
    [
        (MistralConfig(max_position_embeddings=64, sliding_window=16), False),
        (Qwen2Config(max_position_embeddings=64, **SLIDING, max_window_layers=0), False),
        (MistralConfig(max_position_embeddings=64, sliding_window=None), True),
        (Qwen2Config(max_position_embeddings=64, **SLIDING, max_window_layers=1), True),
    ],
)
def test_a_sliding_window_in_all_layers_must_reach_the_target(config, taken: bool) -> None:
    if taken:
        assert plan_extension(config, target_length=512).target_length == 512
    else:
        with pytest.raises(ModelError, match="sliding_window"):
            plan_extension(config, target_length=512)


@pytest.mark.parametrize("target", [2048, 4096, 2**25])
def test_targets_not_above_the_original_or_beyond_any_use_are_refused(target: int) -> None:
    with pytest.raises(ModelError, match=f"{target:,}"):
        plan_extension(LlamaConfig(max_position_embeddings=4096), target_length=target)


def test_the_original_length_of_another_models_recipe_is_refused() -> None:
    config = LlamaConfig(max_position_embeddings=4096)
    with pytest.raises(ModelError, match="original_length 32,768"):
        extension_of(config, load_recipe("recipes/qwen3-8b-24gb.yaml", {"model": "mine"}))
    assert plan_extension(config, target_length="128k", original_length="4k").factor == 32


def test_frequencies_are_float32_and_held_to_a_millionth(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, window=64)
    yarn = plan_extension(load_config(folder), interpolation="yarn")
    check_frequencies(load_model(folder, yarn, dtype=torch.bfloat16), yarn)
    with pytest.raises(ModelError, match=r"torch\.bfloat16"):
        check_frequencies(load_model(folder, yarn).to(torch.bfloat16), yarn)
    model = load_model(folder, yarn)
    model.model.rotary_emb.attention_scaling = 1.0
    with pytest.raises(ModelError, match=r"1\.0"):
        check_frequencies(model, yarn)
    model = load_model(folder, yarn)
    model.model.rotary_emb.inv_freq[-1] *= 1 + 1e-5
    with pytest.raises(ModelError, match="yarn x8"):
        check_frequencies(model, yarn)
    with pytest.raises(ModelError, match="inv_freq"):
        check_frequencies(torch.nn.Linear(2, 2), yarn)


def test_a_head_dim_left_to_be_computed_is_written() -> None:
    """The YaRN of a class that reads it, as Mixtral's, would fail."""
    config = MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=2, max_position_embeddings=64)
    extension = extension_of(config, load_recipe(None, {"model": "x", "target": 256, "interpolation": "yarn"}))
    set_interpolation(config, extension)
    assert config.head_dim == 16
    check_frequencies(AutoModelForCausalLM.from_config(config), extension)
    assert plan_extension(LlamaConfig(hidden_size=64, num_attention_heads=2, head_dim=48)).rope.dim == 48


FACTORS = [0.998, 1.5, 2.5, 4.0, 4.5, 6.0, 8.0, 8.0]


@pytest.mark.parametrize(
    ("interpolation", "rope"),
    [
        ("theta", {"rope_theta": 5e6}),
        ("yarn", {"beta_fast": 6, "beta_slow": 2, "attention_factor": 1.5}),
        ("factors", {"factors": FACTORS}),
    ],
)
def test_settings_reach_the_loaded_model_from_python_and_from_a_recipe(tmp_path, interpolation, rope) -> None:
    folder = str(checkpoint(tmp_path / "base", window=64))
    config = load_config(folder)
    extension = plan_extension(config, interpolation=interpolation, rope=rope)
    recipe = load_recipe(None, {"model": folder, "interpolation": interpolation, "rope": rope})
    assert extension_of(config, recipe) == extension
    check_frequencies(load_model(folder, extension), extension)
    dump_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe
    other = {"rope_theta": 6e6, "beta_fast": 3, "factors": [8.0] * 8}
    first = next(iter(rope))
    changed = plan_extension(config, interpolation=interpolation, rope={**rope, first: other[first]})
    with pytest.raises(ModelError, match=f"{interpolation} x8"):
        check_frequencies(load_model(folder, extension), changed)
