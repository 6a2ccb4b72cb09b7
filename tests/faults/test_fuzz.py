"""60 broken inputs in every run of the tests; ``python -m tests.faults.fuzz`` runs thousands."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import fuzz
from tests.faults.fuzz import is_clear, outcome
from tests.faults.inputs import CASES, Case, World, make


def test_every_broken_input_ends_in_a_clear_message() -> None:
    """In a process of its own, because every case is a fork of it."""
    words = [sys.executable, "-m", "tests.faults.fuzz", "--cases", "60", "--seed", "1", "--quick"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def test_a_case_depends_on_seed_and_number_alone(world: World) -> None:
    first = [repr(make(world, 3, index)) for index in range(20)]
    assert [repr(make(world, 3, index)) for index in reversed(range(20))] == first[::-1]
    assert len(set(first)) == 20
    assert repr(make(world, 4, 0)) != first[0]


def test_every_kind_of_input_is_broken(world: World) -> None:
    cases = [make(world, 0, index) for index in range(200)]
    assert {case.kind for case in cases} == set(CASES)
    assert all("--dry-run" in case.words for case in cases if case.words[0] == "extend")


def ends(world: World, monkeypatch: pytest.MonkeyPatch, command: Callable, limit: float = 30) -> fuzz.Outcome:
    monkeypatch.setattr(fuzz, "run", lambda patch, *words: command())
    return outcome(Case("command", ["plan"], []), world, limit)


def refuse(message: str) -> Callable:
    def end() -> None:
        print(message, file=sys.stderr)
        raise SystemExit(1)

    return end


@pytest.mark.parametrize(
    ("command", "end"),
    [
        (lambda: None, "done"),
        (refuse("skipwise: x is 3, and must be 4; set it"), "message"),
        (refuse("skipwise: it failed because:"), "poor"),
        (refuse("something else"), "poor"),
        (lambda: [][1], "traceback"),
        (lambda: os.abort(), "killed"),
        (lambda: os.mkdir("executed"), "killed"),
        (lambda: bytearray(2**34), "traceback"),  # beyond the memory of a case
    ],
)
def test_ends_are_told_apart(world: World, monkeypatch, command: Callable, end: str) -> None:
    assert ends(world, monkeypatch, command).end == end


def test_a_hang_is_killed_and_says_where_it_was(world: World, monkeypatch) -> None:
    found = ends(world, monkeypatch, lambda: time.sleep(60), limit=0.5)
    assert found.end == "hang"
    assert Path(__file__).name in found.text


@pytest.mark.parametrize(
    "message",
    [
        "it failed because:",
        "short",
        "x" * 2000,
        "set trust_remote_code=True to go on with it",
        "set weights_only=False to go on with it",
        "for details look at the above report, please",
    ],
)
def test_messages_that_are_not_clear(message: str) -> None:
    assert not is_clear(message)
    assert is_clear("target 3 must exceed the model's 4 tokens; give a larger target")
