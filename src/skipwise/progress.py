"""Progress of work that takes more than some seconds: a bar in a terminal, lines with the time left in a log file."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

EVERY = 30.0  # seconds between two lines


@contextmanager
def progress(doing: str, total: float, console: Console) -> Iterator[Callable[[float], None]]:
    """Show how much of ``total`` is done; the function given here gets what was done since its last call.

    In a log file, a thread prints a line every 30 s, so that one that stands still is told from one that works.
    """
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as bar:
            line = bar.add_task(doing, total=total)
            yield lambda done: bar.advance(line, done)
        return
    lines = _Lines(doing, total, console)
    try:
        yield lines.advance
    finally:
        lines.end()


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


class _Lines:
    """Prints how far work has come, now and then; its thread ends with the work, or with the process."""

    def __init__(self, doing: str, total: float, console: Console) -> None:
        self._doing, self._total, self._console = doing, total, console
        self._began, self._done = time.monotonic(), 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._print_at_times, daemon=True)
        self._thread.start()

    def advance(self, done: float) -> None:
        self._done += done

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        elapsed = timedelta(seconds=round(time.monotonic() - self._began))
        self._print(f"{self._share} done in {elapsed}")

    def _print_at_times(self) -> None:
        while not self._over.wait(EVERY):
            elapsed = time.monotonic() - self._began
            left = elapsed / self._done * (self._total - self._done) if self._done else None
            told = "" if left is None else f", {timedelta(seconds=round(left))} left"
            self._print(f"{self._share}, {timedelta(seconds=round(elapsed))} elapsed{told}")

    @property
    def _share(self) -> str:
        return f"{self._done / self._total:.0%}" if self._total else "100%"

    def _print(self, told: str) -> None:
        self._console.print(f"{self._doing}: {told}", highlight=False, markup=False, soft_wrap=True)
