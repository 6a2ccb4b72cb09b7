"""What training leaves to be measured and saved."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from skipwise.results.records import TrainingRecord, append_record
from skipwise.results.run_folder import RunFolder
from skipwise.training import extended, processes


@pytest.mark.parametrize(("engine", "whole"), [("zero3", True), ("fsdp", True), ("ddp", False)])
def test_after_sharded_training_the_whole_model_is_taken_from_its_checkpoint(monkeypatch, engine, whole) -> None:
    """The engine is known by variables that are gone once the processes are finished."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(processes.ENGINE, engine)

    def finish() -> None:
        monkeypatch.delenv("WORLD_SIZE")
        monkeypatch.delenv(processes.ENGINE)

    monkeypatch.setattr(processes, "is_first", lambda: True)
    monkeypatch.setattr(processes, "finish", finish)
    for name in ("_written", "_recorder", "check_frequencies"):
        monkeypatch.setattr(extended, name, lambda *_: None)
    monkeypatch.setattr(extended, "train", lambda *_, **__: SimpleNamespace(tokens_per_second=1.0, tokens=8))
    monkeypatch.setattr(extended, "_whole", lambda *_: "whole")
    recipe = SimpleNamespace(training=None, seed=0)
    prepared = SimpleNamespace(
        recipe=recipe, extension=None, precision="bf16", teacher=lambda _: None, dataset=lambda _: None
    )
    run = SimpleNamespace(
        checkpoints=None, identity="", record=lambda **_: None, results=Path("results.jsonl"), read=lambda: {}
    )
    model = extended.train_run(prepared, "shard", run, resume=False, console=None)
    assert model == ("whole" if whole else "shard")


def test_a_run_is_timed_by_its_records_with_the_part_before_a_resume(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert extended._timed(run, 300) == {}
    for step, tokens, speed in ((1, 100, 50.0), (2, 200, 25.0), (3, 300, 100.0)):
        append_record(run.results, TrainingRecord("pose", step, 1.0, 1e-3, 1.0, tokens, speed))
    assert extended._timed(run, 300) == {"seconds": 7.0, "tokens_per_second": 300 / 7}
    assert extended._timed(run, 400) == {}  # the last record is lost
