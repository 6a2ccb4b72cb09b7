"""Complete checkpoints are resumed from; incomplete ones are ignored, damaged ones refused and named."""

import json
import shutil
from pathlib import Path

import pytest

from skipwise.errors import RunError, TrainingError
from skipwise.results.files import read_json, write_json
from skipwise.training import checkpoints

FILES = ["config.json", "model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json"]


def written(folder: Path, step: int, names=FILES) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    for name in names:
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(f"{name} of step {step}")
    return checkpoint


def complete(folder: Path, step: int, names=FILES) -> Path:
    checkpoint = written(folder, step, names)
    checkpoints.mark_complete(checkpoint)
    return checkpoint


def test_marker_lists_every_file_with_size_and_hash(tmp_path):
    checkpoint = complete(tmp_path, 5)
    entries = json.loads((checkpoint / checkpoints.MARKER).read_text())["files"]
    assert sorted(entries) == FILES
    assert entries["optimizer.pt"]["bytes"] == len("optimizer.pt of step 5")
    assert len(entries["optimizer.pt"]["digest"]) == 64
    assert sorted(path.name for path in checkpoint.iterdir()) == sorted([*FILES, checkpoints.MARKER])
    checkpoints.verify(checkpoint)


@pytest.mark.parametrize("part", FILES[1:])
def test_a_checkpoint_without_a_part_is_not_marked(tmp_path, part):
    checkpoint = written(tmp_path, 5, [name for name in FILES if name != part])
    with pytest.raises(TrainingError, match=f"without {part}.*there is no checkpoint yet"):
        checkpoints.mark_complete(checkpoint)
    assert checkpoints.latest_complete(tmp_path) is None


@pytest.mark.parametrize(
    "names",
    [
        ["adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"],
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", *FILES[2:]],
        [
            "model.safetensors",
            "pytorch_model_fsdp_0/.metadata",
            "optimizer_0/.metadata",
            "scheduler.pt",
            "rng_state_0.pth",
            FILES[-1],
        ],
        [
            "model.safetensors",
            "global_step5/mp_rank_00_model_states.pt",
            "global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "rng_state_0.pth",
            "trainer_state.json",
        ],
    ],
    ids=["adapter", "shards", "fsdp", "deepspeed"],
)
def test_other_layouts_are_complete_too(tmp_path, names):
    complete(tmp_path, 5, names)
    assert checkpoints.latest_complete(tmp_path) == tmp_path / "checkpoint-5"


@pytest.mark.parametrize("shards", ["pytorch_model_fsdp_0/.metadata", "global_step5/mp_rank_00_model_states.pt"])
def test_shards_without_whole_weights_are_refused_when_they_are_written(tmp_path, shards):
    """Or the run would train to its end and have no model to show."""
    with pytest.raises(TrainingError, match=r"without model\.safetensors.*FULL_STATE_DICT.*stage3_gather_16bit"):
        complete(tmp_path, 5, [shards, "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "trainer_state.json"])


@pytest.mark.parametrize(
    ("names", "engine"),
    [
        (["optimizer.pt"], "ddp"),
        (["optimizer.bin"], "fsdp"),
        (["optimizer_0/.metadata"], "fsdp"),
        (["global_step5/mp_rank_00_model_states.pt"], "zero3"),
    ],
)
def test_another_engine_may_not_resume(tmp_path, names, engine):
    checkpoint = complete(tmp_path, 5, [*names, *FILES])
    for other in {"ddp", "fsdp", "zero3"} - {engine}:
        with pytest.raises(RunError, match=f"written under {engine} and cannot be resumed exactly under {other}"):
            checkpoints.require_engine(checkpoint, other)
    checkpoints.require_engine(checkpoint, engine)


@pytest.mark.parametrize("name", FILES)
def test_a_lost_file_is_refused_and_named(tmp_path, name):
    complete(tmp_path, 5)
    (complete(tmp_path, 10) / name).unlink()
    with pytest.raises(RunError, match=rf"has lost {name}.*resume from checkpoint 5$"):
        checkpoints.latest_complete(tmp_path)


@pytest.mark.parametrize("change", [lambda text: text[:-1], lambda text: text[:-1] + "!"], ids=["cut", "changed"])
def test_a_changed_file_is_refused_and_named(tmp_path, change):
    path = complete(tmp_path, 5) / "optimizer.pt"
    path.write_text(change(path.read_text()))
    with pytest.raises(RunError, match=r"optimizer.pt is not the file that was written.*from the start$"):
        checkpoints.latest_complete(tmp_path)


def test_an_incomplete_checkpoint_is_ignored(tmp_path):
    complete(tmp_path, 90)
    written(tmp_path, 100)
    (tmp_path / "checkpoint-last").mkdir()
    assert checkpoints.latest_complete(tmp_path) == tmp_path / "checkpoint-90"
    assert checkpoints.intact(tmp_path) == "checkpoint 90 is intact"


def test_nothing_there_is_no_checkpoint(tmp_path):
    assert checkpoints.latest_complete(tmp_path / "none") is None
    assert checkpoints.intact(tmp_path) == "there is no checkpoint yet"


@pytest.mark.parametrize("text", ["", "[1]", '{"model.safetensors"', '"text"', '{"run": ""}', '{"files": [1]}'])
def test_a_broken_marker_is_refused(tmp_path, text):
    (complete(tmp_path, 5) / checkpoints.MARKER).write_text(text)
    with pytest.raises(RunError, match=r"complete.json is not a list of files"):
        checkpoints.latest_complete(tmp_path)


def test_a_marker_that_forgets_a_part_is_refused(tmp_path):
    marker = complete(tmp_path, 5) / checkpoints.MARKER
    entries = read_json(marker)["files"]
    del entries["optimizer.pt"]
    write_json(marker, {"files": entries})
    with pytest.raises(RunError, match=r"does not list optimizer.pt"):
        checkpoints.verify(marker.parent)


def test_a_marker_with_another_digest_is_refused(tmp_path):
    marker = complete(tmp_path, 5) / checkpoints.MARKER
    text = marker.read_text()
    marker.write_text(text.replace(read_json(marker)["files"]["optimizer.pt"]["digest"], "0" * 64))
    with pytest.raises(RunError, match=r"optimizer\.pt"):
        checkpoints.verify(marker.parent)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    checkpoint = written(tmp_path, 5)
    checkpoints.mark_complete(checkpoint, "abc")
    checkpoints.require_run(checkpoint, "abc")
    checkpoints.seal(written(tmp_path, 6))  # of no run
    for other, run in ((checkpoint, "abd"), (tmp_path / "checkpoint-6", "abc")):
        with pytest.raises(RunError, match="belongs to a run of another recipe, text or base model"):
            checkpoints.require_run(other, run)


def test_rotation_keeps_the_newest_complete_and_removes_incomplete_ones(tmp_path):
    for step in (9, 10, 100):
        complete(tmp_path, step)
    written(tmp_path, 11)
    checkpoints.rotate(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-100"]


def test_a_removal_cut_short_leaves_no_marker(tmp_path, monkeypatch):
    checkpoint = complete(tmp_path, 5)
    monkeypatch.setattr(shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        checkpoints.discard(checkpoint)
    assert (checkpoint / "optimizer.pt").exists()
    assert checkpoints.latest_complete(tmp_path) is None


def test_another_number_of_processes_is_refused(tmp_path):
    checkpoint = complete(tmp_path, 5, [*FILES, "rng_state_1.pth"])
    checkpoints.require_processes(checkpoint, 2)
    with pytest.raises(RunError, match=r"written by 2 processes.*by 1; launch 2 processes"):
        checkpoints.require_processes(checkpoint, 1)
    (checkpoint / "rng_state_1.pth").unlink()
    with pytest.raises(RunError, match=r"written by 1 process and .*by 2; launch 1 process$"):
        checkpoints.require_processes(checkpoint, 2)
