"""The weights of the best step: written whole, brought back bit for bit, refused when they are not what was saved."""

import errno

import pytest
import torch
from safetensors.torch import load_file

from skipwise.errors import RunError, TrainingError
from skipwise.model import lora
from skipwise.recipes.schema import Lora
from skipwise.training import best_checkpoint, checkpoints
from tests.tiny import llama


def changed(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(1.0)


def copied(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def test_the_least_loss_is_the_best_and_of_equal_ones_the_earlier() -> None:
    assert best_checkpoint.best_step({100: 2.0, 300: 1.5, 200: 1.5}) == 200


@pytest.mark.parametrize("tied", [False, True])
def test_weights_come_back_to_the_bit(tmp_path, tied) -> None:
    model = llama(tie_word_embeddings=tied)
    before = copied(model)
    best_checkpoint.save(model, tmp_path, 7)
    changed(model)
    best_checkpoint.restore(model, tmp_path, 7)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert model.get_output_embeddings().weight.requires_grad


def test_with_lora_the_additions_alone_are_kept(tmp_path) -> None:
    model = lora.adapt(llama(), Lora(also=["norms"]))
    changed(model)
    before = copied(model)
    best_checkpoint.save(model, tmp_path, 7)
    changed(model)
    best_checkpoint.restore(model, tmp_path, 7)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    names = load_file(tmp_path / "best-7" / "trained.safetensors")
    assert names
    assert all("lora_" in name or "norm" in name for name in names)


def test_an_incomplete_checkpoint_is_overwritten_and_others_are_removed(tmp_path) -> None:
    model = llama()
    incomplete = tmp_path / "best-9"
    incomplete.mkdir()
    (incomplete / "trained.safetensors").write_bytes(b"half")
    (tmp_path / "checkpoint-9").mkdir()
    best_checkpoint.save(model, tmp_path, 5)
    with pytest.raises(RunError, match="best-9, the best checkpoint by the records, is missing or incomplete"):
        best_checkpoint.require(tmp_path, 9)
    best_checkpoint.save(model, tmp_path, 9)
    best_checkpoint.drop_others(tmp_path, 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-9", "checkpoint-9"]
    best_checkpoint.require(tmp_path, 9)


def test_a_missing_or_changed_best_checkpoint_is_refused_and_named(tmp_path) -> None:
    model = llama()
    with pytest.raises(RunError, match=r"best-5, .* is missing .*; restore it, or begin a run with another"):
        best_checkpoint.restore(model, tmp_path, 5)
    for step in (5, 10):  # the first incomplete
        (tmp_path / f"best-{step}").mkdir()
    with pytest.raises(RunError, match=r"best-5, .* the records by which best-10 was the best; restore it"):
        best_checkpoint.restore(model, tmp_path, 5)
    best_checkpoint.save(model, tmp_path, 5)
    file = tmp_path / "best-5" / "trained.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(RunError, match=r"trained\.safetensors is not the file .*; restore it"):
        best_checkpoint.restore(model, tmp_path, 5)
    file.unlink()
    with pytest.raises(RunError, match=r"best-5 has lost trained\.safetensors; restore it"):
        best_checkpoint.restore(model, tmp_path, 5)


def test_a_full_disk_is_said_and_the_previous_best_checkpoint_stays(tmp_path, monkeypatch) -> None:
    model = llama()
    best_checkpoint.save(model, tmp_path, 5)

    def full(*args) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(best_checkpoint, "save_file", full)
    with pytest.raises(
        TrainingError, match=r"the disk ran full while writing the best checkpoint so far \(step 9\) of .* free some"
    ):
        best_checkpoint.save(model, tmp_path, 9)
    assert [path.name for path in tmp_path.iterdir()] == ["best-5"]
    assert checkpoints.complete_checkpoints(tmp_path) == []
    best_checkpoint.require(tmp_path, 5)
