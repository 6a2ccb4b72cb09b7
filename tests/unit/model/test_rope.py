"""What of a config is refused, what is kept, and that the frequencies are what was asked for."""

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BloomConfig,
    Gemma3Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    Qwen2Config,
)

from skipwise.errors import ModelError, RecipeError
from skipwise.method.interpolation import RopeSettings
from skipwise.model.config import load_config
from skipwise.model.extension import check_frequencies, extension_of, plan_extension, set_interpolation
from skipwise.model.loading import load_model
from skipwise.model.rope import original_length
from skipwise.recipes.loading import dump_recipe, load_recipe, parse_changes
from tests import families
from tests.tiny import checkpoint


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GPT2Config(), "model_type gpt2 has learned positions in its config; PoSE needs rotary"),
        (BertConfig(), "model_type bert has learned positions"),
        (BloomConfig(), "model_type bloom has ALiBi"),
    ],
)
def test_models_without_rope_are_refused(config, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        plan_extension(config)


def scaled(**rope: object) -> LlamaConfig:
    return LlamaConfig(max_position_embeddings=1024, rope_parameters={"rope_theta": 10000.0, **rope})


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 128,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (LLAMA3, r"already llama3 x8 \(original 128\): choose --existing-rope replace"),
        ({"rope_type": "linear", "factor": 4.0}, r"already linear x4 \(original 256\)"),
        ({"rope_type": "linear", "factor": 4.0}, r", with original_length if its true window is not 256, or"),
        ({"rope_type": "dynamic", "factor": 4.0}, "dynamic RoPE, whose frequencies switch"),
    ],
)
def test_scaled_models_are_refused_with_the_way_out(rope: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        plan_extension(scaled(**rope))


def test_a_margin_extends_beyond_the_target() -> None:
    config = scaled()
    extension = plan_extension(config, target_length="4k", interpolation="yarn", margin=0.125)
    assert (extension.target_length, extension.reach, extension.factor) == (4096, 4608, 4.5)
    set_interpolation(config, extension)
    assert config.max_position_embeddings == 4608
    assert config.rope_parameters["factor"] == 4.5
    recipe = load_recipe(None, {"target": "4k", "positions.margin": 0.125})
    assert extension_of(scaled(), recipe) == extension
    assert "margin" not in repr(plan_extension(scaled(), target_length="4k"))
    with pytest.raises(RecipeError, match=r"positions.margin = 2: .*less than or equal to 1"):
        plan_extension(scaled(), margin=2)
    with pytest.raises(ModelError, match=r"target 16,777,216 and its margin of 12.5% must be at most"):
        plan_extension(scaled(), target_length=2**24, margin=0.125)


def test_replacing_a_scaling_starts_from_the_original_window() -> None:
    with pytest.raises(RecipeError, match="existing_rope = 'replac'"):
        plan_extension(scaled(**LLAMA3), existing_rope="replac", interpolation="yarn")
    extension = plan_extension(scaled(**LLAMA3), existing_rope="replace", interpolation="yarn")
    assert extension.rope.original_length == 128
    assert extension.target_length == 1024
    assert extension.factor == 8


def test_linear_scaling_that_kept_the_window_is_told_its_original_length() -> None:
    config = scaled(rope_type="linear", factor=4.0)
    extension = plan_extension(config, existing_rope="replace", original_length=1024)
    assert (extension.rope.original_length, extension.target_length) == (1024, 8192)


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(max_position_embeddings=64, sliding_window=16),
        Qwen2Config(
            max_position_embeddings=64,
            sliding_window=511,
            use_sliding_window=True,
            max_window_layers=0,
            num_hidden_layers=2,
        ),
    ],
)
def test_a_sliding_window_below_the_target_is_refused(config) -> None:
    message = f"sliding_window {config.sliding_window}, below the target 512: .* set sliding_window to null"
    with pytest.raises(ModelError, match=message):
        plan_extension(config, target_length=512)


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(max_position_embeddings=64, sliding_window=None),
        MistralConfig(max_position_embeddings=64, sliding_window=512),
        Qwen2Config(max_position_embeddings=64, sliding_window=16, use_sliding_window=False),
        Qwen2Config(
            max_position_embeddings=64,
            sliding_window=16,
            use_sliding_window=True,
            max_window_layers=1,
            num_hidden_layers=2,
        ),
    ],
)
def test_attention_that_reaches_the_target_is_taken(config) -> None:
    assert plan_extension(config, target_length=512).target_length == 512


@pytest.mark.parametrize("target", [2048, 4096])
def test_targets_not_above_the_original_are_refused(target: int) -> None:
    with pytest.raises(ModelError, match=f"target {target:,} must exceed the model's 4,096"):
        plan_extension(LlamaConfig(max_position_embeddings=4096), target_length=target)


def test_a_cast_model_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, window=64)
    extension = plan_extension(load_config(str(folder)), interpolation="yarn")
    check_frequencies(load_model(str(folder), extension, dtype=torch.bfloat16), extension)
    with pytest.raises(ModelError, match=r"torch\.bfloat16, which rounds positions; load the model with dtype="):
        check_frequencies(load_model(str(folder), extension).to(torch.bfloat16), extension)


def test_other_frequencies_than_asked_for_are_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, window=64)
    linear = plan_extension(load_config(str(folder)), interpolation="linear")
    yarn = plan_extension(load_config(str(folder)), interpolation="yarn")
    with pytest.raises(ModelError, match="computes other rotary frequencies than yarn x8"):
        check_frequencies(load_model(str(folder), linear), yarn)
    model = load_model(str(folder), yarn)
    model.model.rotary_emb.attention_scaling = 1.0
    with pytest.raises(ModelError, match=r"scales attention by 1\.0"):
        check_frequencies(model, yarn)


def test_a_model_without_frequencies_is_refused(tmp_path) -> None:
    extension = plan_extension(load_config(str(checkpoint(tmp_path, window=64))))
    with pytest.raises(ModelError, match=r"no rotary frequencies \(inv_freq\)"):
        check_frequencies(torch.nn.Linear(2, 2), extension)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
    ],
)
def test_every_scaling_may_be_replaced(rope) -> None:
    assert plan_extension(scaled(**rope), existing_rope="replace", original_length=256).target_length == 2048


def longrope(long: float) -> LlamaConfig:
    rope = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 256}
    return scaled(**rope, short_factor=[1.0] * 64, long_factor=[long] * 64)


def test_longrope_switches_unless_its_factors_are_equal() -> None:
    with pytest.raises(ModelError, match="longrope RoPE, whose frequencies switch"):
        plan_extension(longrope(4.0))
    with pytest.raises(ModelError, match=r"already longrope x4 \(original 256\)"):
        plan_extension(longrope(1.0))
    assert plan_extension(longrope(1.0), existing_rope="replace").rope.original_length == 256


def test_a_scaling_of_another_kind_cannot_be_replaced() -> None:
    config = scaled()
    config.rope_parameters = {**config.rope_parameters, "rope_type": "spiral"}
    with pytest.raises(ModelError, match="already spiral, an unknown scaling that cannot be replaced"):
        plan_extension(config, existing_rope="replace")


def test_several_ropes_without_one_of_full_attention_are_refused() -> None:
    config = LlamaConfig()
    config.rope_parameters = {"chunked": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    wanted = r"several RoPEs \(chunked, sliding_attention\) and none for full_attention layers"
    with pytest.raises(ModelError, match=wanted):
        plan_extension(config)


def test_a_window_that_no_layer_slides_by_is_taken() -> None:
    config = Qwen2Config(max_position_embeddings=64, num_hidden_layers=2)
    config.sliding_window, config.use_sliding_window = 16, True
    config.layer_types = ["full_attention"] * 2
    assert plan_extension(config, target_length=512)
    config.layer_types, config.use_sliding_window = ["sliding_attention"] * 2, False
    assert plan_extension(config, target_length=512)


def test_head_dim_is_the_configs_own() -> None:
    assert plan_extension(LlamaConfig(hidden_size=64, num_attention_heads=2, head_dim=48)).rope.dim == 48


def test_frequencies_are_held_to_a_millionth(tmp_path) -> None:
    folder = checkpoint(tmp_path, window=64)
    extension = plan_extension(load_config(str(folder)), interpolation="yarn")
    model = load_model(str(folder), extension)
    model.model.rotary_emb.inv_freq[-1] *= 1 + 1e-5
    with pytest.raises(ModelError, match="computes other rotary frequencies"):
        check_frequencies(model, extension)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_position_embeddings": None}, "cannot be loaded|max_position_embeddings None"),
        ({"max_position_embeddings": "256"}, "cannot be loaded|max_position_embeddings '256'"),
        ({"num_attention_heads": 3, "head_dim": None}, "cannot be loaded"),
        ({"num_attention_heads": 0, "head_dim": None}, "cannot be loaded|0 dims to rotate"),
        ({"head_dim": 21}, "cannot be loaded|21 dims to rotate in each head, which must be an even number"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": None}}, "cannot be loaded|rope_theta None"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0.0}}, "rope_theta 0.0, which must be"),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 0.0}},
            "cannot be loaded|rope factor 0.0, which must be a number at least 1",
        ),
    ],
)
def test_a_config_that_makes_no_sense_is_explained(tmp_path, changes, words) -> None:
    folder = checkpoint(tmp_path, window=64)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ModelError, match=words):
        plan_extension(load_config(str(folder)), existing_rope="replace")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("recurrent_gemma", "max_position_embeddings None"),
        ("blt", "no head_dim, hidden_size or num_attention_heads that holds for all layers"),
        (
            "gemma4_text",
            "no head_dim, hidden_size or num_attention_heads that holds for all layers|already proportional",
        ),
    ],
)
def test_a_config_without_the_numbers_of_a_llama_is_explained(kind, words) -> None:
    if kind not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {kind}")
    with pytest.raises(ModelError, match=words):
        plan_extension(AutoConfig.for_model(kind), target_length="1024k", interpolation="yarn")


def test_what_a_class_cannot_hold_is_refused_before_training() -> None:
    longrope = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "rope_theta": 1e4}
    config = Phi3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
        original_max_position_embeddings=64,
        rope_parameters={**longrope, "original_max_position_embeddings": 64},
        pad_token_id=0,
    )
    asked = {"model": "x", "target": 256, "existing_rope": "replace", "method": None}
    with pytest.raises(
        ModelError,
        match=r"class Phi3Config cannot be built with yarn x4 .*must be one of .'longrope'.*choose --interpolation ntk or yarn-revised or power, or another",
    ):
        extension_of(config, load_recipe(None, {**asked, "interpolation": "yarn"}))
    assert extension_of(config, load_recipe(None, {**asked, "interpolation": "yarn-revised"})).factor == 4
    assert config.rope_parameters["rope_type"] == "longrope"  # it was tried on a copy


def test_a_head_dim_left_to_be_computed_is_written() -> None:
    """The YaRN of a class that reads it, as Mixtral's, would fail."""
    config = MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=2,
        max_position_embeddings=64,
    )
    assert config.head_dim is None
    extension = extension_of(config, load_recipe(None, {"model": "x", "target": 256, "interpolation": "yarn"}))
    set_interpolation(config, extension)
    assert config.head_dim == 16
    check_frequencies(AutoModelForCausalLM.from_config(config), extension)


def test_a_model_of_text_and_more_names_its_text_model() -> None:
    with pytest.raises(ModelError, match="gemma3 is a model of text and more; take its gemma3_text alone"):
        plan_extension(Gemma3Config())


def test_lengths_may_be_written_in_thousands() -> None:
    extension = plan_extension(LlamaConfig(max_position_embeddings=4096), target_length="2k", original_length="1k")
    assert (extension.target_length, extension.rope.original_length) == (2048, 1024)


def test_revised_yarn_for_one_of_several_layer_kinds_needs_newer_transformers(monkeypatch) -> None:
    config = families.config("gemma3")
    asked = {"model": "x", "target": 512, "interpolation": "yarn-revised", "method": None}
    monkeypatch.setattr("skipwise.model.extension.transformers.__version__", "5.20.2")
    with pytest.raises(
        ModelError, match=r"yarn-revised fails in transformers 5\.20\.2 .*install transformers 5\.21 or"
    ):
        extension_of(config, load_recipe(None, asked))
    assert extension_of(config, load_recipe(None, asked | {"interpolation": "yarn"})).factor == 8
    monkeypatch.setattr("skipwise.model.extension.transformers.__version__", "5.21.0")
    assert extension_of(config, load_recipe(None, asked)).factor == 8


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({"rope_type": "linear", "factor": float("nan")}, "rope factor nan, which must be a number at least 1"),
        ({"rope_type": "linear"}, "rope factor None, which must be a number at least 1"),
        ({"rope_type": "yarn", "original_max_position_embeddings": "x"}, "original_max_position_embeddings 'x', which"),
    ],
)
def test_a_scaling_that_gives_no_original_length_is_refused(tmp_path, rope, said) -> None:
    config = load_config(str(checkpoint(tmp_path, window=64)))
    config.rope_parameters = {"rope_theta": 1e4, **rope}
    with pytest.raises(ModelError, match=said):
        original_length(config)


def test_a_target_beyond_any_use_is_refused(tmp_path) -> None:
    config = load_config(str(checkpoint(tmp_path, window=64)))
    with pytest.raises(ModelError, match="target 999,999,999,999 must be at most 16,777,216 tokens; give a smaller"):
        plan_extension(config, target_length=999_999_999_999)
    config.max_position_embeddings = 10**12  # the default is 8 times as much
    with pytest.raises(ModelError, match="target 8,000,000,000,000 must be at most"):
        plan_extension(config)


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({"rope_type": "linear", "factor": 2.0}, "must give rope_theta, the base of the frequencies"),
        ({"full_attention": 3}, "must give rope_theta"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 0.0}, "partial_rotary_factor 0.0, which must be above 0"),
        ({"rope_theta": 1e4, "partial_rotary_factor": "x"}, "partial_rotary_factor 'x', which must be above 0"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 2}, "partial_rotary_factor 2, which must be .* at most 1"),
        ({"rope_theta": float("nan")}, "rope_theta nan, which must be a number above 1"),
        ({"rope_theta": 1e4, "rope_type": "linear", "factor": float("nan")}, "rope factor nan, which must be"),
        ({"rope_theta": 1e4, "rope_type": "linear", "factor": float("inf")}, "rope factor inf, which must be"),
        ({"rope_theta": 1e4, "rope_type": "linear", "factor": -2.0}, "rope factor -2.0, which must be"),
        (
            {"rope_theta": 1e4, "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": "x"},
            "original_max_position_embeddings 'x', which must be a number at least 1",
        ),
        ({"rope_theta": 1e4, "rope_type": [3]}, "already .3., an unknown scaling"),
        ({"rope_theta": 1e4, "rope_type": "nonsense"}, "already nonsense, an unknown scaling"),
    ],
)
def test_rope_parameters_that_give_no_frequencies_are_refused(tmp_path, rope, said) -> None:
    config = load_config(str(checkpoint(tmp_path, window=64)))
    config.rope_parameters = rope
    with pytest.raises(ModelError, match=said):
        plan_extension(config, existing_rope="replace")


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
    recipe = load_recipe(None, {"model": folder, "interpolation": interpolation, "rope": rope, "method": None})
    assert extension_of(config, recipe) == extension
    check_frequencies(load_model(folder, extension), extension)
    dump_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe
    other = {"rope_theta": 6e6, "beta_fast": 3, "factors": [8.0] * 8}
    first = next(iter(rope))
    changed = plan_extension(config, interpolation=interpolation, rope={**rope, first: other[first]})
    with pytest.raises(ModelError, match=f"other rotary frequencies than {interpolation} x8 asks for"):
        check_frequencies(load_model(folder, extension), changed)


@pytest.mark.parametrize(
    ("interpolation", "rope", "message"),
    [
        ("theta", {"rope_theta": 1e4}, "rope.rope_theta 10,000 must exceed the model's own rope_theta, 10,000; give a"),
        ("theta", {}, "rope.rope_theta is missing: interpolation theta needs it"),
        ("factors", {"factors": FACTORS[1:]}, "rope.factors has 7 numbers and must have 8, one for each rotated pair"),
        ("linear", {"beta_fast": 8}, "rope.beta_fast belongs to interpolation yarn or yarn-revised, not to linear"),
        ("yarn", {"beta": 8}, r"unknown key rope.beta \(did you mean beta_slow\?\); valid here: rope_theta, beta_fast"),
        ("yarn", {"beta_fast": "x"}, "rope.beta_fast = 'x': Input should be a valid number"),
        ("yarn", {"attention_factor": float("inf")}, "rope.attention_factor = inf: Input should be a finite number"),
        ("yam", {}, "interpolation = 'yam': interpolation 'yam' is unknown"),
    ],
)
def test_settings_that_do_not_fit_are_refused_at_once(tmp_path, interpolation, rope, message) -> None:
    config = load_config(str(checkpoint(tmp_path, window=64)))
    with pytest.raises(RecipeError, match=message):
        plan_extension(config, interpolation=interpolation, rope=rope)


def test_settings_are_read_from_the_command_line() -> None:
    recipe = load_recipe(None, parse_changes(["interpolation=theta", "rope.rope_theta=5e6"]))
    assert recipe.rope.settings == RopeSettings(rope_theta=5e6)
    recipe = load_recipe(None, parse_changes(["interpolation=factors", "rope.factors=[1, 2.5]"]))
    assert recipe.rope.settings == RopeSettings(factors=(1.0, 2.5))


def test_without_settings_an_extension_is_recognised_as_before() -> None:
    """Measurements that are there are found again by a digest of its repr."""
    extension = plan_extension(LlamaConfig(max_position_embeddings=1024), interpolation="yarn")
    assert repr(extension) == (
        "Extension(rope=Rope(theta=10000.0, dim=128, original_length=1024), target_length=8192, interpolation='yarn')"
    )
    config = LlamaConfig(max_position_embeddings=1024)
    told = plan_extension(config, interpolation="yarn", rope={"beta_fast": 16})
    assert "beta_fast=16.0" in repr(told)


def test_the_original_length_of_another_models_recipe_is_refused() -> None:
    config = LlamaConfig(max_position_embeddings=4096)
    recipe = load_recipe("recipes/qwen3-8b-24gb.yaml", {"model": "mine"})
    said = "original_length 32,768 exceeds the 4,096 positions .*--set original_length=null"
    with pytest.raises(ModelError, match=said):
        extension_of(config, recipe)
    assert plan_extension(config, target_length="128k", original_length="4k").factor == 32


@pytest.mark.parametrize("length", ["target_length", "original_length"])
def test_a_length_of_zero_is_no_default(length: str) -> None:
    with pytest.raises(RecipeError, match="0 is not a length"):
        plan_extension(scaled(), **{length: 0})
