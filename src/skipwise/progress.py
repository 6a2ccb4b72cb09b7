"""Progress of work that takes more than some seconds: a bar in a terminal, lines with the time left in a log file."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

EVERY = 30.0  # seconds between two lines
_LATE = 30.0  # seconds of overrun after which the display says "longer than forecast"


class Work:
    """How much of ``total`` is done, and what else is told of it; ``total`` is None as long as nobody knows it."""

    def __init__(self, total: float | None, done: float) -> None:
        self.total, self.done, self.told = total, done, ""
        self.on_change: Callable[[], object] = lambda: None
        self._began = self._since = self._reached = time.monotonic()
        self._before = done  # at ``_since``, from when on the share is known

    def advance(self, done: float) -> None:
        """Add what was done since the last call."""
        self.reach(self.done + done, told=self.told)

    def reach(self, done: float, *, total: float | None = None, told: str = "") -> None:
        """Say what is done in all, the total if it is known by now, and words to show beside."""
        if self.total is None and total is not None:
            self.total, self._since, self._before = total, time.monotonic(), done
        if done != self.done:
            self._reached = time.monotonic()
        self.done, self.told = done, told
        self.on_change()

    @property
    def share(self) -> str:
        """The share that is done; empty if the total is not known."""
        if self.total is None:
            return ""
        return f"{self.done / self.total:.0%}" if self.total else "100%"

    @property
    def elapsed(self) -> timedelta:
        return _seconds(time.monotonic() - self._began)

    @property
    def left(self) -> timedelta | None:
        """The time left at the mean speed; None if the total is not known, or nothing was done yet.

        Between two calls it falls with the clock: a part that takes minutes would let it rise until it is done.
        """
        left = self._left()
        return None if left is None else _seconds(max(0.0, left))

    @property
    def left_told(self) -> str:
        """The time left in words; empty if nothing is known of it."""
        left = self._left()
        if left is None:
            return ""
        return f"{self.left} left" if left > -_LATE else "longer than forecast"

    def _left(self) -> float | None:
        done = self.done - self._before
        if self.total is None or not done:
            return None
        after = (self._reached - self._since) / done * (self.total - self.done)
        return after - (time.monotonic() - self._reached)


@contextmanager
def progress(
    doing: str, total: float | None, console: Console, *, done: float = 0.0, transient: bool = False
) -> Iterator[Work]:
    """Show how much of ``total`` is done; the ``Work`` given here is told of it. ``done`` was done before.

    In a log file, a thread prints a line every 30 s, so that one that stands still is told from one that works. At the
    end the bar or a last line stays; if ``transient``, nothing does.
    """
    work = Work(total, done)
    with (_bar if console.is_terminal else _lines)(doing, work, console, transient):
        yield work


@contextmanager
def doing(what: str, console: Console) -> Iterator[Callable[[str], object]]:
    """Say what takes seconds: a spinner in a terminal, a line in a log file. The function given here says what comes next."""
    if console.is_terminal:
        with console.status(what) as status:
            yield status.update
        return

    def say(words: str) -> None:
        console.print(f"{words} ...", highlight=False, markup=False, soft_wrap=True)

    say(what)
    yield say


@contextmanager
def _bar(doing: str, work: Work, console: Console, transient: bool) -> Iterator[None]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[told]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=transient, speed_estimate_period=600) as bar:
        line = bar.add_task(doing, total=work.total, told="")
        # The bar itself shows the share, so words take its place.
        work.on_change = lambda: bar.update(line, total=work.total, completed=work.done, told=work.told or work.share)
        work.on_change()
        yield


@contextmanager
def _lines(doing: str, work: Work, console: Console, transient: bool) -> Iterator[None]:
    """Print how far work has come, now and then; the thread ends with the work, or with the process."""
    over = threading.Event()

    def say(*parts: str) -> None:
        console.print(f"{doing}: {_joined(*parts)}", highlight=False, markup=False, soft_wrap=True)

    def say_at_times() -> None:
        while not over.wait(EVERY):
            say(work.share, work.told, f"{work.elapsed} elapsed", work.left_told)

    thread = threading.Thread(target=say_at_times, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if not transient:
            say(f"{work.share} done in {work.elapsed}", work.told)


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _seconds(seconds: float) -> timedelta:
    return timedelta(seconds=round(seconds))
