"""Room on the disk is asked for before training and before each save; a disk that runs full costs no checkpoint."""

import errno
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from skipwise.errors import RunError, TrainingError
from skipwise.model.config import load_config
from skipwise.model.memory import parameters_of
from skipwise.recipes.loading import load_recipe
from skipwise.training import checkpoints
from skipwise.training.disk import checkpoint_bytes, disk_space, require_room
from tests.tiny import checkpoint as tiny_checkpoint


def written(folder: Path, step: int) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_text(f"weights of step {step}")
    return checkpoint


def free_bytes(monkeypatch, free: int) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 0, free))


def test_a_full_disk_is_said_before_the_save(tmp_path, monkeypatch):
    checkpoints.seal(written(tmp_path, 400))
    free_bytes(monkeypatch, 2_100_000_000)
    message = r"the checkpoint needs 13.5 GB, 2.1 GB free; free some space.*; checkpoint 400 is intact"
    with pytest.raises(TrainingError, match=message), disk_space(tmp_path / "checkpoint-500", 13_500_000_000):
        pytest.fail("must not begin to write")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("PytorchStreamWriter: No space left on device"),
        SafetensorError("Error while serializing: I/O error: Disk quota exceeded (os error 122)"),
        SafetensorError("Error while serializing: I/O error: File too large (os error 27)"),
    ],
)
def test_a_disk_that_runs_full_while_writing_leaves_no_incomplete_checkpoint(tmp_path, error):
    checkpoints.seal(written(tmp_path, 400))
    with (
        pytest.raises(
            TrainingError, match=r"ran full while writing the checkpoint of 3.0 kB.*checkpoint 400 is intact"
        ),
        disk_space(written(tmp_path, 500), 3000),
    ):
        raise error
    assert not (tmp_path / "checkpoint-500").exists()


def test_other_errors_of_a_save_pass_through(tmp_path):
    with pytest.raises(RuntimeError, match=r"^something else$"), disk_space(written(tmp_path, 5), 30):
        raise RuntimeError("something else")


def test_checkpoint_bytes_counts_parameters_and_optimizer_state():
    model = torch.nn.Linear(10, 20, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    assert checkpoint_bytes(model, optimizer) == 800
    model(torch.ones(10)).sum().backward()
    optimizer.step()
    assert checkpoint_bytes(model, optimizer) == 3 * 800 + 4  # two moments and a step count
    model.peft_config = {}
    model.weight.requires_grad_(False)
    assert checkpoint_bytes(model, optimizer) == 2 * 800 + 4


# Bytes for each parameter: a checkpoint has 4 of the weight and 8 of AdamW's moments, the model 4.
@pytest.mark.parametrize(
    ("changes", "each"),
    [
        ({}, 3 * 12),  # the third is whole before the first is removed
        ({"training.save_total_limit": 1}, 2 * 12),
        ({"training.max_steps": 100}, 12 + 4),  # one checkpoint, and then the model
        ({"training.max_steps": 100, "training.save_dtype": "bfloat16"}, 12 + 2),
        ({"training.max_steps": 100, "training.optim": "sgd"}, 4 + 4),
        ({"lora": {}}, 4),
        ({"lora": {"saved": "adapter"}}, 0),
    ],
)
def test_a_run_that_does_not_fit_the_disk_is_refused_before_it_begins(tmp_path, monkeypatch, changes, each):
    model = tiny_checkpoint(tmp_path / "base")
    settings = {
        "model": str(model),
        "training.max_steps": 1000,
        "training.save_steps": 100,
        "training.save_dtype": "float32",
    }
    recipe, needed = load_recipe(None, settings | changes), each * parameters_of(load_config(str(model)))
    free_bytes(monkeypatch, needed)
    require_room(recipe, tmp_path / "runs" / "new")
    free_bytes(monkeypatch, needed - 1)
    if needed:
        with pytest.raises(RunError, match=r"runs/new: the run takes .* of the disk, for .*; make room, or give --out"):
            require_room(recipe, tmp_path / "runs" / "new")


def test_the_refusal_says_what_takes_the_disk_and_what_takes_less(tmp_path, monkeypatch):
    recipe = load_recipe(None, {"model": str(tiny_checkpoint(tmp_path / "base")), "training.max_steps": 1000})
    free_bytes(monkeypatch, 0)
    with pytest.raises(
        RunError, match=r"for 3 checkpoints of [\d.]+ kB, and .*; .*, or set training.save_total_limit=1$"
    ):
        require_room(recipe, tmp_path)
    one = recipe.model_copy(update={"training": recipe.training.model_copy(update={"save_total_limit": 1})})
    with pytest.raises(RunError, match=r"for 2 checkpoints of [\d.]+ kB, and .*larger disk$"):
        require_room(one, tmp_path)
    short = load_recipe(None, {"model": recipe.model, "training.max_steps": 100})
    with pytest.raises(RunError, match=r"for 1 checkpoint of [\d.]+ kB and a model of [\d.]+ kB, and .*larger disk$"):
        require_room(short, tmp_path)
    with pytest.raises(RunError, match=r"of the disk, for a model of .*larger disk$"):
        require_room(load_recipe(None, {"model": recipe.model, "lora": {}}), tmp_path)
