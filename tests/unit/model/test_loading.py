from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from skipwise.errors import ModelError
from skipwise.method.interpolation import rope_parameters
from skipwise.model.config import load_config
from skipwise.model.extension import plan_extension
from skipwise.model.loading import load_model, load_tokenizer
from tests.tiny import checkpoint, llama


@pytest.mark.parametrize("keep", [None, 1000])
def test_weights_cut_off_or_missing_name_the_folder(tmp_path: Path, keep: int | None) -> None:
    weights = checkpoint(tmp_path / "broken") / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    if keep is not None:
        weights.write_bytes(content[:keep])
    with pytest.raises(ModelError, match="broken"):
        load_model(tmp_path / "broken")


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    """transformers would draw them at random."""
    folder = checkpoint(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj"):
        load_model(folder)


def test_a_model_that_ignores_its_rope_parameters_is_refused(tmp_path, monkeypatch) -> None:
    folder = checkpoint(tmp_path, window=64)
    extension = plan_extension(load_config(folder), interpolation="yarn")
    linear = rope_parameters("linear", extension.rope, extension.factor)
    monkeypatch.setattr("skipwise.model.extension.rope_parameters", lambda *_: linear)
    with pytest.raises(ModelError, match="yarn x8"):
        load_model(folder, extension)


def test_a_missing_or_broken_tokenizer_is_refused(tmp_path) -> None:
    llama().save_pretrained(tmp_path / "none")
    (checkpoint(tmp_path / "broken") / "tokenizer.json").write_text("[]")
    for name in ("none", "broken"):
        with pytest.raises(ModelError, match=name):
            load_tokenizer(tmp_path / name)


def test_a_path_a_target_and_a_dtype_by_name(tmp_path: Path, monkeypatch) -> None:
    folder = checkpoint(tmp_path / "m")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_tokenizer("~/m").vocab_size == load_config("~/m").vocab_size == 257
    assert load_model(folder).dtype == torch.float32
    model = load_model("~/m", target_length=64, dtype="bfloat16")
    assert (model.config.max_position_embeddings, model.dtype) == (64, torch.bfloat16)
    assert load_model(folder, interpolation="linear").config.rope_parameters["factor"] == 8.0
