"""Progress in a log file: lines at times, also while nothing ends, and one at the end."""

import io
import re
import threading
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace

import pytest
from rich.console import Console

from skipwise import progress as subject
from skipwise.progress import Work, doing, progress


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


def test_words_beside_stay_until_others_are_said() -> None:
    work = Work(4.0, 0.0)
    work.reach(1.0, told="1 document")
    work.advance(1.0)
    assert (work.done, work.told) == (2.0, "1 document")


def test_a_log_file_has_lines_also_while_nothing_ends(log: io.StringIO) -> None:
    with progress("measuring x", 8.0, Console(file=log)) as work:
        until(log, r"measuring x: 0%, 0:00:00 elapsed\n")
        work.advance(2.0)
        until(log, r"measuring x: 25%, 0:00:0\d elapsed, 0:00:\d\d left\n")
        work.advance(6.0)
    assert re.search(r"measuring x: 100% done in 0:00:0\d\n$", log.getvalue())


def test_the_share_is_told_once_the_total_is_known(log: io.StringIO) -> None:
    with progress("tokenising x", None, Console(file=log), transient=True) as work:
        until(log, r"tokenising x: 0:00:00 elapsed\n")
        work.reach(0.0, told="1 document")
        until(log, r"tokenising x: 1 document, 0:00:0\d elapsed\n")
        work.reach(
            0.5, total=1.0, told="5 documents"
        )  # of a build that is continued: nothing was done in this time yet
        until(log, r"tokenising x: 50%, 5 documents, 0:00:0\d elapsed\n")
        work.reach(0.75, total=1.0, told="6 documents")
        until(log, r"tokenising x: 75%, 6 documents, 0:00:0\d elapsed, 0:00:0\d left\n")
    assert "done in" not in log.getvalue()


def test_the_time_left_is_by_what_was_done_in_this_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(subject.time, "monotonic", lambda: now[0])
    begun, unknown = Work(100.0, 60.0), Work(None, 0.0)
    now[0] = 110.0
    begun.advance(10.0)
    unknown.reach(0.5, total=1.0)
    assert (begun.share, begun.elapsed, begun.left) == ("70%", timedelta(seconds=10), timedelta(seconds=30))
    assert unknown.left is None
    now[0] = 120.0
    assert begun.left == timedelta(seconds=20)  # the next part is still under way
    begun.reach(begun.done, told="words")
    assert begun.left == timedelta(seconds=20)
    assert (begun.left_told, unknown.left_told) == ("0:00:20 left", "")
    unknown.reach(0.75, total=1.0)
    assert (unknown.elapsed, unknown.left) == (timedelta(seconds=20), timedelta(seconds=10))
    now[0] = 200.0
    assert (begun.left, unknown.left) == (timedelta(0), timedelta(0))
    assert begun.left_told == "longer than forecast"
    now[0] = 165.0
    assert begun.left_told == "0:00:00 left"  # not yet late enough to speak of


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
    def fail(work: Work) -> None:
        work.advance(1)
        raise KeyError

    threads = threading.active_count()
    with pytest.raises(KeyError), progress("x", 4, Console(file=log)) as work:
        fail(work)
    assert log.getvalue().splitlines()[-1] == "x: 25% done in 0:00:00"
    assert threading.active_count() == threads


def test_a_terminal_has_a_bar(log: io.StringIO) -> None:
    with progress("[measuring]", 4, Console(file=log, force_terminal=True, width=80)) as work:
        work.advance(4)
    assert "[measuring]" in log.getvalue()
    assert "100%" in log.getvalue()


def test_words_take_the_place_of_the_share_beside_a_bar(log: io.StringIO) -> None:
    with progress("training", None, Console(file=log, force_terminal=True, width=80)) as work:
        work.reach(4, total=8, told="step [4]/8")
    assert "step [4]/8" in log.getvalue()
    assert "50%" not in log.getvalue()
