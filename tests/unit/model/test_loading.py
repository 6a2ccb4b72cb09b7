"""Weights and tokenizers that load or are refused, and what an interpolation leaves in a loaded model."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

from skipwise.errors import ModelError
from skipwise.method.interpolation import rope_parameters
from skipwise.model.config import load_config
from skipwise.model.extension import check_frequencies, plan_extension
from skipwise.model.loading import load_model, load_tokenizer
from tests.tiny import checkpoint, llama, with_config


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
    with pytest.raises(ModelError, match="neither nano nor smollm2, nor a folder here, nor reachable"):
        load_config("no-such/model-anywhere")
    llama().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("name", ["", " "])
@pytest.mark.parametrize("load", [load_config, load_model, load_tokenizer])
def test_an_empty_name_is_explained(load, name) -> None:
    with pytest.raises(ModelError, match=f"model = '{name}' names none; give nano or smollm2, a folder or a name"):
        load(name)


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


@pytest.mark.parametrize("kind", ["linear", "dynamic"])
def test_the_way_out_of_a_scaled_model_works_in_python(tmp_path: Path, kind: str) -> None:
    folder = with_config(tmp_path, rope_parameters={"rope_theta": 10000.0, "rope_type": kind, "factor": 2.0})
    way_out = r'give load_model an extension of plan_extension\(\.\.\., existing_rope="replace"\)'
    with pytest.raises(ModelError, match=way_out):
        load_model(folder, target_length=512)
    extension = plan_extension(
        load_config(folder), target_length=512, existing_rope="replace", interpolation="yarn", original_length=64
    )
    assert load_model(folder, extension).config.rope_parameters["rope_type"] == "yarn"


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


def test_files_are_not_to_blame_for_a_full_memory(tmp_path: Path, monkeypatch) -> None:
    def full(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", full)
    with pytest.raises(RuntimeError, match="can't allocate"):
        load_model(checkpoint(tmp_path))


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
    linear = rope_parameters("linear", extension.rope, extension.factor)
    monkeypatch.setattr("skipwise.model.extension.rope_parameters", lambda *_: linear)
    with pytest.raises(ModelError, match="computes other rotary frequencies than yarn x8"):
        load_model(str(folder), extension)


def test_dtype_is_the_weights_own(tmp_path) -> None:
    folder = checkpoint(tmp_path, window=64)
    assert load_model(str(folder), dtype=torch.bfloat16).dtype == torch.bfloat16
    assert load_model(str(folder)).dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (None, "has no tokenizer that transformers can load"),
        ("[]", "has no tokenizer that transformers can load"),
        ("[" * 100_000, "has no tokenizer that transformers can load"),
        ({"merges": ["zz"]}, "has no tokenizer that transformers can load"),
        ({"merges": "a b"}, "has no tokenizer that transformers can load"),
        ({"vocab": {}}, "tokens, and not those of text; fetch the tokenizer's files again"),
    ],
)
def test_a_broken_tokenizer_is_explained(tmp_path, changes, said) -> None:
    path = checkpoint(tmp_path, window=64) / "tokenizer.json"
    if isinstance(changes, dict):
        values = json.loads(path.read_text())
        changes = json.dumps(values | {"model": values["model"] | changes})
    path.unlink()
    if changes is not None:
        path.write_text(changes)
    with pytest.raises(ModelError, match=said):
        load_tokenizer(str(tmp_path))


def test_the_home_folder_holds_models(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    checkpoint(tmp_path / "base", window=64)
    assert load_config("~/base").vocab_size == 257
    assert load_tokenizer("~/base")
    assert load_model("~/base")


def test_weights_of_other_shapes_than_the_config_says_are_named(tmp_path) -> None:
    with pytest.raises(
        ModelError, match=r"other shapes than its config says: \S+ is \[257, 32\] in the file, and \[97, 32\]"
    ):
        load_model(with_config(tmp_path, vocab_size=97))


def test_a_path_is_a_name_too(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    assert load_config(folder).max_position_embeddings == 32
    assert load_tokenizer(folder).vocab_size == 257
    assert load_model(folder, target_length=64).config.max_position_embeddings == 64
    with pytest.raises(ModelError, match=r"there is no folder .*nowhere"):
        load_model(tmp_path / "nowhere")


def test_an_interpolation_needs_a_target(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match="interpolation 'linear' without a target_length would leave the model as it is"
    ):
        load_model(str(checkpoint(tmp_path / "m")), interpolation="linear")


@pytest.mark.parametrize("wrong", ["x", "auto", "int8", torch.int8, "nn"])
def test_weights_have_a_dtype_of_floating_point_or_its_name(tmp_path: Path, wrong: str | torch.dtype) -> None:
    folder = checkpoint(tmp_path / "m")
    assert load_model(folder, dtype="bfloat16").dtype == torch.bfloat16
    with pytest.raises(ModelError, match=r"is not one of weights; give torch\.float32"):
        load_model(folder, dtype=wrong)
