"""TensorBoard's events of a run, also resumed: training, measured steps and results, in the run folder."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from skipwise.errors import RunError
from skipwise.report import trackers
from skipwise.report.folder import read_folder
from skipwise.results.records import ReadingRecord, TrainingRecord, read_records
from skipwise.results.statistics import loss, perplexity_of
from tests.command_line import run
from tests.integration.test_extend import command
from tests.tiny import checkpoint, corpus

pytestmark = pytest.mark.usefixtures("frozen_imports")


def events(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder / "events"))
    found.Reload()
    return found


def test_a_runs_events_hold_what_its_records_hold(tmp_path: Path, monkeypatch) -> None:
    model, text = checkpoint(tmp_path / "base", window=400), corpus(tmp_path / "text", documents=24, words=200)
    out = tmp_path / "out"
    changes = {"training.report_to": "tensorboard", "evaluation.steps": "[2, 4]", "evaluation.documents": 2}
    run(monkeypatch, *command(model, text, out, **changes))
    assert [path.name for path in out.rglob("events.out.*") if path.parent.name != "events"] == []
    found, records = events(out), list(read_records(out / "results.jsonl"))
    logged = {event.step: event.value for event in found.Scalars("train/loss")}
    trained = {record.step: record.loss for record in records if isinstance(record, TrainingRecord)}
    assert logged == pytest.approx(trained, rel=1e-3)
    steps = {event.step: event.value for event in found.Scalars("evaluation/perplexity sliding 512")}
    for step in (2, 4):
        read = [r for r in records if isinstance(r, ReadingRecord) and r.step == step and r.mode == "sliding"]
        assert steps[step] == pytest.approx(perplexity_of(loss(read).mean), rel=1e-5)
    assert {"results/perplexity 512/PoSE", "results/passkey 512/original"} <= set(found.Tags()["scalars"])
    count = len(list((out / "events").iterdir()))
    run(monkeypatch, *command(model, text, out, "--resume", **changes))  # finished: nothing is logged twice
    assert len(list((out / "events").iterdir())) == count


@pytest.mark.usefixtures("undrawn")
def test_a_tracker_that_fails_stops_nothing_and_is_told_again(tmp_path, monkeypatch, capsys) -> None:
    model, text = checkpoint(tmp_path / "base", window=400), corpus(tmp_path / "text", documents=24, words=200)
    out = tmp_path / "out"
    changes = {"training.report_to": "tensorboard"}
    whole = trackers._log

    def fails(*_: object) -> None:
        raise RunError("no account")

    monkeypatch.setattr(trackers, "_log", fails)
    run(monkeypatch, *command(model, text, out, **changes))
    assert read_folder(out).info.get("logged", []) == []
    monkeypatch.setattr(trackers, "_log", whole)
    run(monkeypatch, *command(model, text, out, "--resume", **changes))
    assert read_folder(out).info["logged"] == ["tensorboard"]
    assert "results/perplexity 512/PoSE" in events(out).Tags()["scalars"]
