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


def fail_after_lines(log: io.StringIO) -> None:
    with progress("measuring x", None, Console(file=log)) as work:
        until(log, r"measuring x: 0:00:00 elapsed\n")
        work.reach(3.0, total=8.0, status="1 document")
        until(log, r"measuring x: 38%, 1 document, 0:00:0\d elapsed")
        work.advance(2.0)
        raise KeyError


def test_a_log_file_has_lines_also_while_nothing_ends_and_one_of_work_that_fails(log: io.StringIO) -> None:
    threads = threading.active_count()
    with pytest.raises(KeyError):
        fail_after_lines(log)
    assert re.search(r"measuring x: 62%, 1 document, .*\n$", log.getvalue())
    assert threading.active_count() == threads


def test_a_terminal_has_a_bar_and_a_log_file_names_short_work_before_it_is_done(log: io.StringIO) -> None:
    with progress("[measuring]", None, Console(file=log, force_terminal=True, width=80)) as work:
        work.reach(8, total=8, status="step [8]/8")
    assert all(part in log.getvalue() for part in ("[measuring]", "100%", "step [8]/8"))
    with doing("loading [x]", Console(file=log)):
        assert log.getvalue().endswith("loading [x] ...\n")
