"""A saved model is read only as it was saved."""

import json
import shutil
from pathlib import Path

import pytest

from skipwise.engines.check import model_folder
from skipwise.errors import ModelError, RunError
from skipwise.model.config import load_config
from skipwise.model.extension import plan_extension
from skipwise.model.loading import load_model, load_tokenizer
from skipwise.model.origin import Origin
from skipwise.model.saving import require_saved, save_extended
from skipwise.recipes.schema import Data
from tests.tiny import checkpoint

FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


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
    seal = json.loads((model / "skipwise.json").read_text())["files"]
    assert sorted(seal) == FILES
    for name in ("README.md", "perplexity.png"):  # of the model card, which every report writes anew
        (model / name).write_text("")
    load_model(str(model))
    require_saved(model)
    assert model_folder(str(model)) == str(model)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["changed", "lost"])
def test_a_file_that_was_changed_or_lost_is_refused_by_its_name(model: Path, name: str, how: str) -> None:
    content = bytearray((model / name).read_bytes())
    content[len(content) // 2] ^= 1
    (model / name).write_bytes(content) if how == "changed" else (model / name).unlink()
    for reader in (load_model, model_folder, lambda folder: require_saved(Path(folder))):
        with pytest.raises((RunError, ModelError), match=name):
            reader(str(model))


def test_rope_edited_from_yarn_to_linear_is_refused_until_the_seal_is_deleted(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    for name in ("rope_parameters", "rope_scaling"):
        config[name] = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match=r"config\.json.* without skipwise\.json"):
        load_model(str(model))
    (model / "skipwise.json").unlink()
    load_model(str(model))
    with pytest.raises(RunError, match=r"skipwise\.json"):
        require_saved(model)
