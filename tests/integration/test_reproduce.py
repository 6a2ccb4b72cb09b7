"""``python -m reproduction`` as users run it: each arm is trained once, pages come from records, a killed run goes on."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from reproduction import costs, measured, reproduce
from reproduction.__main__ import main
from skipwise.results.records import read_records
from tests import command_line
from tests.tiny import checkpoint, corpus

SMALL = {
    "data.held_out": 0.3,
    "training.max_steps": 2,
    "training.batch_size": 2,
    "training.per_device_train_batch_size": 2,
    "training.precision": "float32",
    "evaluation.documents": 1,
    "evaluation.windows": "[256, 512]",
    "evaluation.segment_lengths": "[512]",
    "evaluation.prompt_trials": 0,
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
        "data.min_tokens": 300,
        "evaluation.source": tmp_path / "text",
    }
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ["--out", str(tmp_path / "out"), *changes]


def arms(folder: Path) -> dict[str, bytes]:
    """The records of each arm."""
    return {arm.name: (arm / "results.jsonl").read_bytes() for arm in sorted((folder / "out" / "arms").iterdir())}


def test_a_stopped_reproduction_goes_on_and_measures_nothing_twice(words, monkeypatch, capsys, tmp_path) -> None:
    def stop_at_the_second(made, *rest):
        if (tmp_path / "out" / "arms").exists():
            raise KeyboardInterrupt
        return measured.make(made, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(reproduce, "make", stop_at_the_second)
        with pytest.raises(SystemExit):
            run(patch, "content", *words)
    first = arms(tmp_path)
    run(monkeypatch, "content", *words)
    whole = arms(tmp_path)
    assert len(first) == 1
    assert len(whole) == 3
    assert first.items() <= whole.items()
    out = tmp_path / "out"
    for arm in whole:
        assert not (out / "arms" / arm / "checkpoints").exists()
        kinds = {record.kind for record in read_records(out / "arms" / arm / "results.jsonl")}
        assert kinds == {"training", "reading", "coverage"}
        shutil.rmtree(out / "arms" / arm / "model")  # what is measured needs it no more
    table = (out / "content.md").read_bytes()
    run(monkeypatch, "content", *words)
    assert arms(tmp_path) == whole
    assert (out / "content.md").read_bytes() == table
    run(monkeypatch, "coverage", *words)
    page = (out / "reproduction.md").read_text()
    assert all(f"[{name}]({name}.md)" in page for name in ("content", "coverage"))
    for file in (tmp_path / "text").iterdir():
        file.write_text(file.read_text().swapcase())
    refused(monkeypatch, capsys, "content", *words)
    assert arms(tmp_path) == whole


def test_perplexity_by_step_comes_from_training_itself(words, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(costs, "FACTORS", (2,))
    monkeypatch.setattr(costs, "_ROUNDS", {"pose": 1, "full": 1})
    monkeypatch.setattr(costs, "in_own_process", lambda function, *args: function(*args))
    run(monkeypatch, "efficiency", *words, "--set", "evaluation.steps=[1, 2]")
    for arm in (tmp_path / "out" / "arms").iterdir():
        records = read_records(arm / "results.jsonl")
        readings = [r for r in records if r.kind == "reading" and r.mode == "sliding" and r.window == 512]
        (last,) = [r for r in readings if r.step == 2]
        (final,) = [r for r in readings if r.step is None]
        assert last.nll == pytest.approx(final.nll, rel=1e-6)
        assert (last.tokens, last.document) == (final.tokens, final.document)
    assert (tmp_path / "out" / "figures" / "efficiency-time.svg").exists()


def test_arms_and_settings_are_planned_by_name(words, monkeypatch, capsys) -> None:
    for asked, named in (
        (["main", "--scale", "paper"], "linear, 8x, pose"),
        (["main", "--arm", "pose", "--setting", "linear, 16x", *words], "linear, 16x, pose, seed 0"),
        (["families", "--setting", "GPT-J", *words], "GPT-J, linear, seed 0"),
    ):
        run(monkeypatch, *asked, "--dry-run")
        assert named in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (["contnet"], "content"),
        (["main", "--scale", "papre"], "paper"),
        (["main", "--arm", "posse"], "pose"),
        (["main", "--setting", "linear, 9x"], "linear, 8x"),
        (["main", "content", "--set", "training.batch_size=16"], "4,096"),
        (["all", "--page-only", "--seeds", "2"], "--seeds"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(words, monkeypatch, capsys, tmp_path, asked, named) -> None:
    more = [] if "--scale" in asked or "all" in asked else words
    at = 2 if "content" in asked else 1
    assert named in refused(monkeypatch, capsys, *asked[:at], *more, *asked[at:])
    assert not (tmp_path / "out").exists()
