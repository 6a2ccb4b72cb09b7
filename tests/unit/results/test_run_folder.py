"""The run folder: one writer, the command as it was called, and damaged facts."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from skipwise.errors import RunError
from skipwise.results.run_folder import BASE_MODEL, LAUNCHED_BY, TRAINING_TEXT, RunFolder


def test_the_second_command_in_a_folder_is_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")  # its lock lasts as long as the object
    run.lock()
    program = "import sys; from skipwise.results.run_folder import *; RunFolder(Path(sys.argv[1])).lock()"
    words = [sys.executable, "-c", program, tmp_path / "run"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "RunError" in done.stderr


@pytest.mark.parametrize(
    ("called", "command"),
    [
        ("/venv/bin/skipwise", "skipwise extend --data 'my corpus/'"),
        ("/checkout/reproduction/__main__.py", "python -m reproduction extend --data 'my corpus/'"),
    ],
)
def test_the_command_can_be_pasted_into_a_shell(tmp_path: Path, monkeypatch, called: str, command: str) -> None:
    monkeypatch.setattr(sys, "argv", [called, *shlex.split("extend --data 'my corpus/'")])
    run = RunFolder(tmp_path / "run")
    run.begin()
    assert run.read()["command"] == command
    run.begin(seed=1)  # an existing run keeps its facts
    assert "seed" not in run.read()


def test_a_launched_process_records_the_command_that_launched_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(LAUNCHED_BY, "skipwise extend --launch ddp")
    run = RunFolder(tmp_path / "run")
    run.begin()
    assert run.read()["command"] == "skipwise extend --launch ddp"


def test_a_run_is_known_by_settings_text_and_base(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    found = set()
    for settings, text, base in (
        ({"seed": 0}, "a", "b"),
        ({"seed": 1}, "a", "b"),
        ({"seed": 0}, "c", "b"),
        ({}, "a", "d"),
    ):
        run.record(settings=settings, fingerprints={TRAINING_TEXT: text, BASE_MODEL: base, "evaluation text": "x"})
        found.add(run.identity)
    assert len(found) == 4
    run.require_same({TRAINING_TEXT: "a", "a new text": "y"})
    with pytest.raises(RunError, match=r"base model.*other"):
        run.require_same({BASE_MODEL: "other"})


@pytest.mark.parametrize("text", ["{bad", "[1]"])
def test_damaged_facts_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError, match=r"run\.json"):
        RunFolder(tmp_path).read()
