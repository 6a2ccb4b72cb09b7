import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import Qwen3Config

from skipwise.engines.check import model_folder
from skipwise.errors import ModelError, RunError
from skipwise.model import config as subject
from skipwise.model.config import (
    Origin,
    load_config,
    promised_length,
    read_origin,
    require_unchanged,
    weights_fingerprint,
)
from skipwise.model.extension import plan_extension
from skipwise.model.loading import load_model, load_tokenizer, save_extended
from skipwise.recipes.schema import Data
from tests.tiny import checkpoint, llama

FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
MADE = Origin("base", 64, Data(source="mine", held_out=0.4), np.array([2**63, 1, 7], dtype="<u8"), "ab12", 512)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    base = str(checkpoint(folder / "base"))
    extension = plan_extension(load_config(base), target_length=64, interpolation="yarn")
    origin = Origin(base, 32, Data(source="mine"))
    save_extended(load_model(base, extension), load_tokenizer(base), extension, folder / "model", origin=origin)
    return folder / "model"


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "model")


def test_a_copy_is_the_same_model(model: Path) -> None:
    assert sorted(json.loads((model / "skipwise.json").read_text())["files"]) == FILES
    for name in ("README.md", "perplexity.png"):  # of the model card, which every report writes again
        (model / name).write_text("")
    load_model(model)
    require_unchanged(model)
    assert model_folder(str(model)) == str(model)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_or_lost_file_is_refused_by_its_name(model: Path, name: str) -> None:
    content = bytearray((model / name).read_bytes())
    content[len(content) // 2] ^= 1
    (model / name).write_bytes(content)
    for reader in (load_model, model_folder, lambda folder: require_unchanged(Path(folder))):
        with pytest.raises(RunError, match=name):
            reader(str(model))
    (model / name).unlink()
    with pytest.raises((RunError, ModelError), match=name):
        load_model(str(model))


def test_an_origin_is_read_as_written(tmp_path) -> None:
    MADE.write(tmp_path)
    read = read_origin(str(tmp_path))
    assert (read.base, read.original_length, read.data) == ("base", 64, Data(source="mine", held_out=0.4))
    assert (read.base_fingerprint, read.target_length) == ("ab12", 512)
    np.testing.assert_array_equal(read.documents, [1, 7, 2**63])
    (tmp_path / "skipwise.json").write_text("{")
    with pytest.raises(ModelError, match=r"skipwise\.json"):
        read_origin(str(tmp_path))
    assert read_origin("nano") is None


@pytest.mark.parametrize(
    ("rope", "tokens"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, 40960),  # already raised
        ({"rope_type": "linear", "factor": 4.0}, 40960),  # raised or not
        ({"rope_type": "default"}, 40960),
    ],
)
def test_yarn_added_to_a_config_promises_its_factor_times_the_original_length(tmp_path, rope, tokens) -> None:
    Qwen3Config(max_position_embeddings=40960, rope_parameters={"rope_theta": 1e6, **rope}).save_pretrained(tmp_path)
    assert promised_length(str(tmp_path)) == tokens


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_changed_byte_changes_the_fingerprint(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path / "model")
    before = weights_fingerprint(str(folder))
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    assert weights_fingerprint(str(folder)) != before


def test_a_model_on_the_hub_has_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    config = llama().config
    monkeypatch.setattr(subject, "load_config", lambda name: config)
    config._commit_hash = "ab12"
    assert weights_fingerprint("somebody/model") == "ab12"
