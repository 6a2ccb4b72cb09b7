"""Names, folders and weights that load or are refused, and what an interpolation leaves in a loaded model."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, GPTNeoXConfig, GPTNeoXForCausalLM

from skipwise.errors import ModelError
from skipwise.model import rope
from skipwise.model.loading import load_config, load_model, load_tokenizer, resolve
from skipwise.model.rope import check_frequencies, plan_extension
from tests.tiny import checkpoint, llama


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
    linear = rope.rope_parameters("linear", extension.rope, extension.factor)
    monkeypatch.setattr(rope, "rope_parameters", lambda *_: linear)
    with pytest.raises(ModelError, match="computes other rotary frequencies than yarn x8"):
        load_model(str(folder), extension)


def test_dtype_is_the_weights_own(tmp_path) -> None:
    folder = checkpoint(tmp_path, window=64)
    assert load_model(str(folder), dtype=torch.bfloat16).dtype == torch.bfloat16
    assert load_model(str(folder)).dtype == torch.float32


def test_a_blank_name_is_explained() -> None:
    with pytest.raises(ModelError, match="model = ' ' names none"):
        resolve(" ")


def test_what_must_be_converted_first_says_so(tmp_path) -> None:
    from tests.parity.test_conversion import baichuan, gptj

    gptj(32).save_pretrained(tmp_path / "gptj")
    with pytest.raises(ModelError, match=r"gptj has rotary positions .* skipwise convert \S+/gptj OUT"):
        plan_extension(load_config(str(tmp_path / "gptj")))
    baichuan(tmp_path / "baichuan")
    with pytest.raises(ModelError, match=r"baichuan has rotary positions .* skipwise convert \S+/baichuan OUT"):
        load_config(str(tmp_path / "baichuan"))
    authors = checkpoint(tmp_path / "authors", rope_parameters=None)
    raw = json.loads((authors / "config.json").read_text())
    scaling = {"rope_scaling": {"type": "vanilla_ntk", "factor": 8.0}, "rope_parameters": None}
    (authors / "config.json").write_text(json.dumps(raw | scaling))
    with pytest.raises(ModelError, match=r"vanilla_ntk x8, by which PoSE's authors mean NTK: skipwise convert"):
        plan_extension(load_config(str(authors)))


def test_remote_code_is_neither_run_nor_asked_about(tmp_path, monkeypatch) -> None:
    """Transformers asks on the terminal, unless it is told no."""
    from tests.parity.test_conversion import baichuan

    baichuan(tmp_path / "source")
    path = tmp_path / "source" / "config.json"
    auto_map = {"AutoConfig": "configuration_baichuan.BaichuanConfig"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": auto_map}))
    (tmp_path / "source" / "configuration_baichuan.py").write_text("import os; os.mkdir('executed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *question: "y")
    with pytest.raises(ModelError, match="skipwise convert"):
        load_config(str(tmp_path / "source"))
    assert not (tmp_path / "executed").exists()
