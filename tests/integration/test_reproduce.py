"""``python -m reproduction`` as users run it: each run is trained once, pages come from records, a killed run goes on."""

from functools import partial
from pathlib import Path

import pytest

from reproduction.__main__ import main
from skipwise.results.records import read_records
from tests import command_line
from tests.tiny import checkpoint, corpus

SMALL = {
    "data.held_out": 0.3,
    "training.max_steps": 2,
    "training.global_batch_size": 8,
    "training.per_device_train_batch_size": 4,
    "training.precision": "float32",
    "evaluation.documents": 1,
    "evaluation.windows": "[256, 512]",
    "evaluation.num_prompts": 0,
}

pytestmark = pytest.mark.usefixtures("frozen_imports", "undrawn")
run = partial(command_line.run, program=str(Path(__file__).parents[2] / "reproduction" / "__main__.py"), main=main)
refused = partial(command_line.refused, program="reproduction", main=main)


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    settings = {
        **SMALL,
        "model": checkpoint(tmp_path / "base", window=256),
        "data.source": corpus(tmp_path / "text", documents=16, words=500),
        "evaluation.source": tmp_path / "text",
    }
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ["--out", str(tmp_path / "out"), *changes]


def contents(out: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sorted(out.glob("arms/*/results.jsonl"))}


def test_runs_are_trained_once_and_a_second_command_does_nothing(words, monkeypatch, capsys, tmp_path) -> None:
    out = tmp_path / "out"
    run(monkeypatch, "content", *words)
    assert "| v = 0 |" in (out / "content.md").read_text()
    assert "[content](content.md)" in (out / "reproduction.md").read_text()
    before = contents(out)
    assert len(before) == 3
    assert not list(out.glob("arms/*/checkpoints"))
    run(monkeypatch, "content", *words)
    assert contents(out) == before
    run(monkeypatch, "content", "--dry-run", *words)
    assert capsys.readouterr().out.count("done ") == 3
    run(monkeypatch, "chunks", *words, "--arm", "N = 2", "--arm", "original")  # N = 2 is v uniform
    assert len(contents(out)) == 4
    assert "[content](content.md)" in (out / "reproduction.md").read_text()


def test_a_stopped_reproduction_goes_on(words, monkeypatch, tmp_path) -> None:
    from reproduction import measured, reproduce

    out, calls = tmp_path / "out", []

    def stop_at_the_second(made, *rest):
        calls.append(made)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measured.make(made, *rest)

    monkeypatch.setattr(reproduce, "make", stop_at_the_second)
    with pytest.raises(SystemExit):
        run(monkeypatch, "content", *words)
    [(first, before)] = contents(out).items()
    monkeypatch.setattr(reproduce, "make", measured.make)
    run(monkeypatch, "content", *words)
    whole = contents(out)
    assert (len(whole), whole[first]) == (3, before)
    results = out / "arms" / first / "results.jsonl"
    readings = {record.key: record.nll for record in _readings(results)}
    lines = before.decode().splitlines(keepends=True)
    results.write_text("".join(line for line in lines if '"window": 512' not in line))
    run(monkeypatch, "content", *words)
    assert {record.key: record.nll for record in _readings(results)} == readings


def _readings(results: Path) -> list:
    return [record for record in read_records(results) if record.kind == "reading"]


def test_perplexity_by_step_comes_from_training_itself(words, monkeypatch, tmp_path) -> None:
    from reproduction import costs

    monkeypatch.setattr(costs, "FACTORS", (2,))
    monkeypatch.setattr(costs, "_ROUNDS", {"pose": 1, "full_length": 1})
    monkeypatch.setattr(costs, "in_own_process", lambda function, *args: function(*args))
    run(monkeypatch, "efficiency", *words, "--arm", "pose")
    text = (tmp_path / "out" / "efficiency.md").read_text()
    assert "| perplexity after steps | 2 | paper 10 |" in text
    assert "| seconds a step, target | 512 |" in text
    readings = _readings(next((tmp_path / "out").glob("arms/*/results.jsonl")))
    (last,) = [r for r in readings if r.step == 2 and r.window == 512]
    (final,) = [r for r in readings if r.step is None and r.window == 512]
    assert last.nll == pytest.approx(final.nll, rel=1e-6)


def test_what_cannot_be_reproduced_is_refused_before_any_training(words, monkeypatch, capsys, tmp_path) -> None:
    for wrong in (["contnet"], ["main", "--scale", "papre"], ["main", "--arm", "posse"], ["main", "--set", "seed=3"]):
        refused(monkeypatch, capsys, *wrong, *words)
    refused(monkeypatch, capsys, "content", *words, "--set", "data.min_tokens=100k")  # longer than any document
    assert not (tmp_path / "out").exists()


def test_changed_text_is_refused_and_not_mixed(words, monkeypatch, capsys, tmp_path) -> None:
    command = ["content", "--arm", "v = 0", *words]
    run(monkeypatch, *command)
    (tmp_path / "text" / "more.txt").write_text("the sky is blue " * 200)
    refused(monkeypatch, capsys, *command)
