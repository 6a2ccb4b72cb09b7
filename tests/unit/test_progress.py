"""Progress in a log file: lines at times, also while nothing ends, and one at the end."""

import io
import re
import threading

import pytest
from rich.console import Console

from skipwise import progress as subject
from skipwise.progress import doing, progress


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    monkeypatch.setattr(subject, "EVERY", 0.001)
    return io.StringIO()


def until(log: io.StringIO, line: str) -> None:
    """Wait until the thread has printed a line."""
    for _ in range(5000):
        if re.search(line, log.getvalue()):
            return
        threading.Event().wait(0.001)
    pytest.fail(f"{line!r} was not printed: {log.getvalue()}")


def test_a_log_file_has_lines_also_while_nothing_ends(log: io.StringIO) -> None:
    with progress("measuring x", 8.0, Console(file=log)) as work:
        until(log, r"measuring x: 0%, 0:00:00 elapsed\n")
        work.advance(2.0)
        work.reach(3.0, status="1 document")
        until(log, r"measuring x: 38%, 1 document, 0:00:0\d elapsed, 0:00:\d\d left\n")
        work.advance(5.0)
    assert re.search(r"measuring x: 100%, 1 document, 0:00:0\d elapsed\n$", log.getvalue())


def test_the_share_is_shown_once_the_total_is_known(log: io.StringIO) -> None:
    with progress("tokenising x", None, Console(file=log), transient=True) as work:
        until(log, r"tokenising x: 0:00:00 elapsed\n")
        work.reach(0.0, status="1 document")
        until(log, r"tokenising x: 1 document, 0:00:0\d elapsed\n")
        work.reach(0.5, total=1.0, status="5 documents")
        until(log, r"tokenising x: 50%, 5 documents, 0:00:0\d elapsed")
    assert "100%" not in log.getvalue()


def test_work_that_fails_shows_how_far_it_came_and_stops_its_thread(log: io.StringIO) -> None:
    def fail(work) -> None:
        work.advance(1)
        raise KeyError

    threads = threading.active_count()
    with pytest.raises(KeyError), progress("x", 4, Console(file=log)) as work:
        fail(work)
    assert log.getvalue().splitlines()[-1].startswith("x: 25%")
    assert threading.active_count() == threads


def test_a_terminal_has_a_bar(log: io.StringIO) -> None:
    with progress("[measuring]", None, Console(file=log, force_terminal=True, width=80)) as work:
        work.reach(8, total=8, status="step [8]/8")
    assert "[measuring]" in log.getvalue()
    assert "100%" in log.getvalue()
    assert "step [8]/8" in log.getvalue()


def test_a_log_file_names_short_work_before_it_is_done() -> None:
    log = io.StringIO()
    with doing("loading [x]", Console(file=log)):
        assert log.getvalue() == "loading [x] ...\n"
