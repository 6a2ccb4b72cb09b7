"""The run folder: what cannot be written or read is explained."""

import shlex
import sys
from pathlib import Path

import pytest

from skipwise.errors import RunError
from skipwise.results.run_folder import LAUNCHED_BY, RunFolder


def test_a_folder_that_cannot_be_written_is_explained(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot be written: .*; give another --out"):
        RunFolder(tmp_path / "file" / "run").begin(seed=0)


@pytest.mark.parametrize(
    ("called", "command"),
    [
        ("/venv/bin/skipwise", "skipwise main --seeds 2"),
        ("/checkout/reproduction/__main__.py", "python -m reproduction main --seeds 2"),
        ("mine.py", "mine.py main --seeds 2"),
    ],
)
def test_the_command_is_kept_as_it_was_called(tmp_path: Path, monkeypatch, called, command) -> None:
    monkeypatch.setattr(sys, "argv", [called, "main", "--seeds", "2"])
    run = RunFolder(tmp_path / "run")
    run.begin()
    assert run.read()["command"] == command


def test_a_process_that_was_launched_records_the_command_that_launched_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(LAUNCHED_BY, "skipwise extend --launch ddp --data 'my corpus/'")
    run = RunFolder(tmp_path / "run")
    run.begin()
    assert run.read()["command"] == "skipwise extend --launch ddp --data 'my corpus/'"


def test_the_command_can_be_pasted_into_a_shell(tmp_path: Path, monkeypatch) -> None:
    words = ["extend", "--data", "my corpus/", "--set", "evaluation.windows=[1k, 2k]"]
    monkeypatch.setattr(sys, "argv", ["skipwise", *words])
    run = RunFolder(tmp_path / "run")
    run.begin()
    assert shlex.split(run.read()["command"]) == ["skipwise", *words]


@pytest.mark.parametrize("text", ["{bad", "[1]", "[" * 100_000])
def test_damaged_facts_are_explained(tmp_path, text) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(
        RunError,
        match=r"run\.json is damaged \(.*; restore it. Of a run, remove it, and extend --resume writes it again",
    ):
        RunFolder(tmp_path).read()
