"""Complete checkpoints are resumed from; torn ones are ignored, damaged ones refused and named."""

import errno
import shutil
from pathlib import Path

import pytest
from safetensors import SafetensorError

from skipwise.errors import RunError, TrainingError
from skipwise.training import checkpoints

FILES = ["config.json", "model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json"]


def written(folder: Path, step: int, names=FILES) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    for name in names:
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(f"{name} of step {step}")
    return checkpoint


def complete(folder: Path, step: int, names=FILES, **written_by) -> Path:
    checkpoint = written(folder, step, names)
    checkpoints.mark_complete(checkpoint, **written_by)
    return checkpoint


@pytest.mark.parametrize("name", [FILES[1], "global_step5/states.pt"])
@pytest.mark.parametrize(
    "change", [None, lambda text: text[:-1], lambda text: text[:-1] + "!"], ids=["lost", "cut", "other"]
)
def test_a_lost_or_changed_file_is_refused_and_named(tmp_path, name, change):
    complete(tmp_path, 5)
    path = complete(tmp_path, 10, [*FILES, name]) / name
    assert checkpoints.latest_complete(tmp_path) == tmp_path / "checkpoint-10"
    path.write_text(change(path.read_text())) if change else path.unlink()
    with pytest.raises(RunError, match=name):
        checkpoints.latest_complete(tmp_path)


def test_a_checkpoint_without_whole_weights_is_refused_when_it_is_written(tmp_path):
    """Or the run would train to its end and have no model to show."""
    with pytest.raises(TrainingError, match=r"model\.safetensors"):
        complete(tmp_path, 5, ["pytorch_model_fsdp_0/.metadata", *FILES[2:]])
    assert checkpoints.latest_complete(tmp_path) is None
    for step, weights in enumerate(("adapter_model.safetensors", "model-00001-of-00002.safetensors")):
        complete(tmp_path, step, [weights, *FILES[2:]])
        assert checkpoints.latest_complete(tmp_path) == tmp_path / f"checkpoint-{step}"


@pytest.mark.parametrize("text", ['{"model.safetensors"', '{"files": {}}'])
def test_a_damaged_marker_is_refused_and_named(tmp_path, text):
    (complete(tmp_path, 5) / checkpoints.MARKER).write_text(text)
    with pytest.raises(RunError, match=r"complete\.json"):
        checkpoints.latest_complete(tmp_path)


def test_a_torn_checkpoint_is_ignored(tmp_path):
    complete(tmp_path, 90)
    written(tmp_path, 100)
    (tmp_path / "checkpoint-last").mkdir()
    assert checkpoints.latest_complete(tmp_path) == tmp_path / "checkpoint-90"
    assert "90" in checkpoints.intact(tmp_path)
    assert checkpoints.latest_complete(tmp_path / "none") is None


def test_rotation_keeps_the_newest_and_the_best_and_removes_torn_ones(tmp_path):
    for step in (3, 9, 10, 100):
        complete(tmp_path, step)
    written(tmp_path, 11)
    checkpoints.rotate(tmp_path, keep=2, best=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-100", "checkpoint-3"]


def test_a_removal_cut_short_leaves_no_marker(tmp_path, monkeypatch):
    checkpoint = complete(tmp_path, 5)
    monkeypatch.setattr(shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        checkpoints.discard(checkpoint)
    assert (checkpoint / "optimizer.pt").exists()
    assert checkpoints.latest_complete(tmp_path) is None


def test_another_engine_or_number_of_processes_may_not_resume(tmp_path):
    checkpoint = complete(tmp_path, 5, engine="ddp", processes=2)
    checkpoints.require_same_setup(checkpoint, "ddp", 2)
    for engine, processes in (("zero3", 2), ("ddp", 1)):
        with pytest.raises(RunError, match=f"ddp in 2 .*{engine} in {processes}"):
            checkpoints.require_same_setup(checkpoint, engine, processes)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: Disk quota exceeded (os error 122)"),
    ],
)
def test_a_full_disk_is_explained_with_the_checkpoint_that_is_intact(tmp_path, error):
    complete(tmp_path, 400)
    with pytest.raises(TrainingError, match=r"500.*400"), checkpoints.disk_errors("checkpoint-500", tmp_path):
        raise error
    with pytest.raises(RuntimeError, match=r"^a shape$"), checkpoints.disk_errors("the model", tmp_path):
        raise RuntimeError("a shape")
