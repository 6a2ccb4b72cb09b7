"""A fingerprint changes with every byte of a model."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from skipwise.errors import ModelError
from skipwise.model import fingerprint, lora
from skipwise.model.fingerprint import weights_fingerprint
from skipwise.model.loading import load_model
from skipwise.model.sealed import write_seal
from skipwise.recipes.schema import Lora
from skipwise.results.files import file_digest
from tests.tiny import byte_tokenizer, checkpoint, llama


def large(folder: Path, last: float) -> Path:
    """20 MiB of safetensors that differ from another in the last tensor alone."""
    folder.mkdir()
    weights = {"a": torch.zeros(5 * 2**20), "z": torch.full((4,), last)}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def test_models_that_differ_in_their_last_tensor_alone_differ(tmp_path: Path) -> None:
    first, second = large(tmp_path / "first", 0.0), large(tmp_path / "second", 1.0)
    heads = [(folder / "model.safetensors").read_bytes()[: 2**24] for folder in (first, second)]
    assert heads[0] == heads[1]
    assert weights_fingerprint(str(first)) != weights_fingerprint(str(second))
    assert weights_fingerprint(str(first)) == weights_fingerprint(str(large(tmp_path / "third", 0.0)))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"])
def test_one_changed_byte_is_noticed_in_the_same_process(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path / "model")
    before = weights_fingerprint(str(folder))
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    assert weights_fingerprint(str(folder)) != before
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    assert weights_fingerprint(str(folder)) == before


def test_weights_in_a_folder_below_count_too(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model")
    (folder / "w").mkdir()
    weights = (folder / "model.safetensors").rename(folder / "w" / "m.safetensors")
    index = {"weight_map": dict.fromkeys(load_file(weights), "w/m.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    before = weights_fingerprint(str(folder))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert weights_fingerprint(str(folder)) != before


def test_an_adapter_changes_with_its_base(tmp_path: Path) -> None:
    base = checkpoint(tmp_path / "base")
    lora.save_adapter(lora.adapt(load_model(str(base)), Lora(rank=2)), tmp_path / "adapter", str(base), None)
    before = weights_fingerprint(str(tmp_path / "adapter"))
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    assert weights_fingerprint(str(tmp_path / "adapter")) != before


def test_pickled_weights_count_too(tmp_path: Path) -> None:
    llama().config.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"one")
    before = weights_fingerprint(str(tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(b"two")
    assert weights_fingerprint(str(tmp_path)) != before


def test_a_model_of_the_hub_is_known_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = llama().config
    monkeypatch.setattr(fingerprint, "load_config", lambda name: config)
    with pytest.raises(ModelError, match="has no commit hash; download it and give its folder"):
        weights_fingerprint("somebody/model")
    config._commit_hash = "ab12"
    assert weights_fingerprint("somebody/model") == "ab12"


def test_a_file_of_a_manifest_counts_by_its_hash_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(tmp_path / "model")
    write_seal(folder, {})
    before = weights_fingerprint(str(folder))
    with monkeypatch.context() as patch:
        patch.setattr(
            fingerprint, "file_digest", lambda path: "0" if path.name != "skipwise.json" else file_digest(path)
        )
        assert weights_fingerprint(str(folder)) == before
    (folder / "tokenizer_config.json").write_text("{}")
    write_seal(folder, {})
    assert weights_fingerprint(str(folder)) != before
