"""What is refused, what is kept, and that the frequencies are what was asked for."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    BertConfig,
    BloomConfig,
    GPT2Config,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
)

from skipwise.errors import ModelError
from skipwise.model import loading
from skipwise.model.loading import (
    check_frequencies,
    load_config,
    load_model,
    load_tokenizer,
    plan_extension,
    resolve,
)
from tests.tiny import checkpoint, llama


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GPT2Config(), "model_type gpt2 has learned positions; PoSE needs rotary"),
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
        (
            {"rope_type": "linear", "factor": 4.0},
            r"replace \(with original_length, if its true window is not 256",
        ),
        ({"rope_type": "dynamic", "factor": 4.0}, "dynamic RoPE, whose frequencies switch"),
    ],
)
def test_scaled_models_are_refused_with_the_way_out(rope: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        plan_extension(scaled(**rope))


def test_replacing_a_scaling_starts_from_the_original_window() -> None:
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
            max_window_layers=1,
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
    ],
)
def test_attention_that_reaches_the_target_is_taken(config) -> None:
    assert plan_extension(config, target_length=512).target_length == 512


def test_targets_not_above_the_original_are_refused() -> None:
    with pytest.raises(ModelError, match="target 2,048 must exceed the model's 4,096"):
        plan_extension(LlamaConfig(max_position_embeddings=4096), target_length=2048)


@pytest.mark.parametrize("interpolation", ["linear", "ntk", "yarn", "yarn-revised"])
def test_partial_rotary_and_theta_are_kept(tmp_path: Path, interpolation: str) -> None:
    """Dropped from ``rope_parameters``, GPT-NeoX would rotate all 32 dims of a head, without a word."""
    config = GPTNeoXConfig(
        vocab_size=32,
        hidden_size=64,
        num_attention_heads=2,
        num_hidden_layers=1,
        intermediate_size=8,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 50_000.0, "partial_rotary_factor": 0.25},
    )
    GPTNeoXForCausalLM(config).save_pretrained(tmp_path)
    extension = plan_extension(load_config(str(tmp_path)), interpolation=interpolation)
    assert extension.rope.dim == 8
    assert extension.rope.theta == 50_000.0
    model = load_model(str(tmp_path), extension)
    assert model.gpt_neox.rotary_emb.inv_freq.shape == (4,)
    assert model.config.rope_parameters["partial_rotary_factor"] == 0.25


def test_a_name_that_is_nowhere_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="neither nano, nor a folder here, nor reachable"):
        load_config("no-such/model-anywhere")
    llama().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("load", [load_config, load_model, load_tokenizer])
def test_an_empty_name_is_explained(load) -> None:
    with pytest.raises(ModelError, match="model = '' names none; give nano, a folder or a name"):
        load("")


@pytest.mark.parametrize("keep", [None, 0, 4, 1000])
def test_weights_cut_off_or_missing_name_the_folder(tmp_path: Path, keep: int | None) -> None:
    weights = checkpoint(tmp_path, window=64) / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    if keep is not None:
        weights.write_bytes(content[:keep])
    with pytest.raises(ModelError, match=f"model folder {re.escape(str(tmp_path))} cannot be loaded: "):
        load_model(str(tmp_path))


def test_pickled_weights_that_are_none_are_refused(tmp_path: Path) -> None:
    (checkpoint(tmp_path, window=64) / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"not weights")
    with pytest.raises(ModelError, match="cannot be loaded: "):
        load_model(str(tmp_path))


@pytest.mark.parametrize("interpolation", ["none", "linear", "ntk", "yarn", "yarn-revised"])
def test_loading_sets_the_interpolation_and_stores_it(tmp_path: Path, interpolation: str) -> None:
    folder = checkpoint(tmp_path / "base", window=64)
    extension = plan_extension(load_config(str(folder)), interpolation=interpolation)
    model = load_model(str(folder), extension)
    check_frequencies(model, extension)
    model.save_pretrained(tmp_path / "saved")
    config = AutoConfig.from_pretrained(tmp_path / "saved")
    assert config.max_position_embeddings == 512
    if interpolation.startswith("yarn"):
        assert config.rope_parameters["original_max_position_embeddings"] == 64
    check_frequencies(load_model(str(tmp_path / "saved")), extension)


def test_a_cast_model_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, window=64)
    extension = plan_extension(load_config(str(folder)), interpolation="yarn")
    check_frequencies(load_model(str(folder), extension, dtype=torch.bfloat16), extension)
    with pytest.raises(
        ModelError, match=r"torch\.bfloat16, which rounds positions; load the model with dtype="
    ):
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


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 of its weights \(model\.layers\.1\.mlp\.up_proj"):
        load_model(str(folder))


def test_a_model_that_ignores_its_rope_parameters_is_refused_on_loading(tmp_path, monkeypatch) -> None:
    folder = checkpoint(tmp_path, window=64)
    extension = plan_extension(load_config(str(folder)), interpolation="yarn")
    linear = loading.rope_parameters("linear", extension.rope, extension.factor)
    monkeypatch.setattr(loading, "rope_parameters", lambda *_: linear)
    with pytest.raises(ModelError, match="computes other rotary frequencies than yarn x8"):
        load_model(str(folder), extension)


def test_a_model_without_frequencies_is_refused(tmp_path) -> None:
    extension = plan_extension(load_config(str(checkpoint(tmp_path, window=64))))
    with pytest.raises(ModelError, match=r"no rotary frequencies \(inv_freq\)"):
        check_frequencies(torch.nn.Linear(2, 2), extension)


def test_dtype_is_the_weights_own(tmp_path) -> None:
    folder = checkpoint(tmp_path, window=64)
    assert load_model(str(folder), dtype=torch.bfloat16).dtype == torch.bfloat16
    assert load_model(str(folder)).dtype == torch.float32


@pytest.mark.parametrize(
    ("rope", "replaced"),
    [
        ({"rope_type": "dynamic", "factor": 4.0}, True),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, True),
    ],
)
def test_every_scaling_may_be_replaced(rope, replaced) -> None:
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
    with pytest.raises(ModelError, match="already spiral, a scaling that is not known here"):
        plan_extension(config, existing_rope="replace")


def test_several_ropes_are_refused() -> None:
    config = LlamaConfig()
    config.rope_parameters = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    with pytest.raises(ModelError, match=r"several RoPEs \(full_attention, sliding_attention\)"):
        plan_extension(config)


def test_a_target_of_the_original_length_is_refused() -> None:
    with pytest.raises(ModelError, match="target 4,096 must exceed"):
        plan_extension(LlamaConfig(max_position_embeddings=4096), target_length=4096)


def test_a_window_that_no_layer_slides_by_is_taken() -> None:
    config = Qwen2Config(max_position_embeddings=64, num_hidden_layers=2)
    config.sliding_window, config.use_sliding_window = 16, True
    config.layer_types = ["full_attention"] * 2
    assert plan_extension(config, target_length=512)
    config.layer_types, config.use_sliding_window = ["sliding_attention"] * 2, False
    assert plan_extension(config, target_length=512)


def test_head_dim_is_the_configs_own() -> None:
    assert plan_extension(LlamaConfig(hidden_size=64, num_attention_heads=2, head_dim=48)).rope.dim == 48


def test_a_blank_name_is_explained() -> None:
    with pytest.raises(ModelError, match="model = ' ' names none"):
        resolve(" ")


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
        ({"num_attention_heads": 0, "head_dim": None}, "cannot be loaded|no dims to rotate"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
            "cannot be loaded|rope_theta None",
        ),
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


def test_what_must_be_converted_first_says_so(tmp_path) -> None:
    from tests.parity.test_conversion import baichuan, gptj

    gptj(32).save_pretrained(tmp_path / "gptj")
    with pytest.raises(ModelError, match=r"gptj has rotary positions .* skipwise convert CHECKPOINT OUT"):
        plan_extension(load_config(str(tmp_path / "gptj")))
    baichuan(tmp_path / "baichuan")
    with pytest.raises(ModelError, match=r"baichuan has rotary positions .* skipwise convert CHECKPOINT OUT"):
        load_config(str(tmp_path / "baichuan"))
    authors = checkpoint(tmp_path / "authors", rope_parameters=None)
    raw = json.loads((authors / "config.json").read_text())
    scaling = {"rope_scaling": {"type": "vanilla_ntk", "factor": 8.0}, "rope_parameters": None}
    (authors / "config.json").write_text(json.dumps(raw | scaling))
    with pytest.raises(
        ModelError, match=r"vanilla_ntk x8, by which PoSE's authors mean NTK: skipwise convert"
    ):
        plan_extension(load_config(str(authors)))
