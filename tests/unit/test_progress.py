"""Progress in a log file: lines at times, also while nothing ends, and one at the end."""

import io
import re
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from rich.console import Console

from skipwise import progress as subject
from skipwise.progress import doing, progress


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    monkeypatch.setattr(subject, "EVERY", 0.001)
    return io.StringIO()


def until(log: io.StringIO, said: str) -> None:
    """Wait until the thread has printed it."""
    for _ in range(5000):
        if re.search(said, log.getvalue()):
            return
        threading.Event().wait(0.001)
    pytest.fail(f"{said!r} was not printed: {log.getvalue()}")


def test_a_log_file_has_lines_also_while_nothing_ends(log: io.StringIO) -> None:
    with progress("measuring x", 8.0, Console(file=log)) as advance:
        until(log, r"measuring x: 0%, 0:00:00 elapsed\n")
        advance(2.0)
        until(log, r"measuring x: 25%, 0:00:0\d elapsed, 0:00:\d\d left\n")
        advance(6.0)
    assert re.search(r"measuring x: 100% done in 0:00:0\d\n$", log.getvalue())


def test_in_a_log_file_what_is_done_is_said_before_it_is_done() -> None:
    log = io.StringIO()
    with doing("starting", Console(file=log)) as say:
        assert log.getvalue() == "starting ...\n"
        say("trying [x]")
    assert log.getvalue() == "starting ...\ntrying [x] ...\n"


def test_in_a_terminal_one_line_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    spinner = SimpleNamespace(update=said.append)
    monkeypatch.setattr(Console, "status", lambda self, words: said.append(words) or nullcontext(spinner))
    with doing("starting", Console(file=io.StringIO(), force_terminal=True)) as say:
        say("trying x")
    assert said == ["starting", "trying x"]


def test_work_that_fails_says_how_far_it_came_and_stops_its_thread(log: io.StringIO) -> None:
    def fail(advance: Callable[[float], None]) -> None:
        advance(1)
        raise KeyError

    threads = threading.active_count()
    with pytest.raises(KeyError), progress("x", 4, Console(file=log)) as advance:
        fail(advance)
    assert log.getvalue().splitlines()[-1] == "x: 25% done in 0:00:00"
    assert threading.active_count() == threads


def test_a_terminal_has_a_bar(log: io.StringIO) -> None:
    with progress("[measuring]", 4, Console(file=log, force_terminal=True, width=80)) as advance:
        advance(4)
    assert "[measuring]" in log.getvalue()
    assert "100%" in log.getvalue()
