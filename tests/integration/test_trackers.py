"""TensorBoard's events of a run, also resumed: training, measured steps and results, in the run folder."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from skipwise.errors import RunError
from skipwise.report import sharing
from skipwise.report.rows import read_folder
from skipwise.results.records import ReadingRecord, TrainingRecord, read_records
from skipwise.results.statistics import loss, perplexity_of
from tests.command_line import run
from tests.integration.test_extend import command, files  # noqa: F401

pytestmark = pytest.mark.usefixtures("frozen_imports")


@pytest.mark.usefixtures("undrawn")
def test_a_runs_events_hold_what_its_records_hold(files, tmp_path: Path, monkeypatch) -> None:  # noqa: F811
    """Also if the tracker failed at first: that stops nothing, and a resume tells it again."""
    out, whole = tmp_path / "out", sharing._log
    changes = {"training.report_to": "tensorboard", "evaluation.eval_steps": "[2, 4]", "evaluation.documents": 2}

    def fails(*_: object) -> None:
        raise RunError("no account")

    monkeypatch.setattr(sharing, "_log", fails)
    run(monkeypatch, *command(*files, out, **changes))
    assert read_folder(out).info.get("logged", []) == []
    monkeypatch.setattr(sharing, "_log", whole)
    counts: list[int] = []
    for _ in range(2):  # the second time nothing is logged
        run(monkeypatch, *command(*files, out, "--resume", **changes))
        assert read_folder(out).info["logged"] == ["tensorboard"]
        counts.append(len(list((out / "events").iterdir())))
    assert counts[0] == counts[1] > 0
    found, records = EventAccumulator(str(out / "events")).Reload(), list(read_records(out / "results.jsonl"))
    logged = {event.step: event.value for event in found.Scalars("train/loss")}
    trained = {record.step: record.loss for record in records if isinstance(record, TrainingRecord)}
    assert logged == pytest.approx(trained, rel=1e-3)
    steps = {event.step: event.value for event in found.Scalars("evaluation/perplexity sliding 512")}
    for step in (2, 4):
        read = [r for r in records if isinstance(r, ReadingRecord) and r.step == step and r.mode == "sliding"]
        assert steps[step] == pytest.approx(perplexity_of(loss(read).mean), rel=1e-5)
    assert {"results/perplexity 512/PoSE", "results/passkey 512/original"} <= set(found.Tags()["scalars"])
