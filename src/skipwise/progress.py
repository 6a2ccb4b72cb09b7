"""Show the progress of long work: a bar in a terminal, lines with the time left in a log file."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

EVERY = 30.0  # seconds between two lines


class Work:
    """A task of a ``rich`` progress bar: done, total (None if unknown), status text."""

    def __init__(self, bar: Progress, description: str, total: float | None, done: float) -> None:
        bar.add_task(description, total=total, completed=int(done), status="")
        self._bar, self._task, self.done = bar, bar.tasks[-1], done

    def advance(self, done: float) -> None:
        """Add what was done since the last call."""
        self.reach(self.done + done)

    def reach(self, done: float, *, total: float | None = None, status: str | None = None) -> None:
        """Set what is done in all, the total if it is known by now, and the status text."""
        self.done = done
        changes: dict[str, Any] = {} if status is None else {"status": status}
        self._bar.update(self._task.id, completed=done, total=total, **changes)

    @property
    def line(self) -> str:
        """Return share, status, time elapsed and time left, as far as they are known."""
        task = self._task
        share = f"{task.percentage:.0f}%" if task.total else ""
        left = f"{timedelta(seconds=task.time_remaining)} left" if task.time_remaining else ""
        elapsed = f"{timedelta(seconds=round(task.elapsed or 0))} elapsed"
        return ", ".join(filter(None, [share, task.fields["status"], elapsed, left]))


@contextmanager
def progress(
    doing: str, total: float | None, console: Console, *, done: float = 0.0, transient: bool = False
) -> Iterator[Work]:
    """Show how much of ``total`` is done; ``done`` was done before.

    In a log file a thread prints a line every 30 s, also while a part takes minutes. At the end the bar or a last line
    stays, unless ``transient``.
    """
    name, status = (TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[status]"))
    times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    columns = name, BarColumn(), TaskProgressColumn(), status, *times
    bar = Progress(*columns, console=console, transient=transient, speed_estimate_period=600)
    work = Work(bar, doing, total, done)
    if console.is_terminal:
        with bar:
            yield work
        return

    def show() -> None:
        console.print(f"{doing}: {work.line}", highlight=False, markup=False, soft_wrap=True)

    def show_at_times() -> None:
        while not over.wait(EVERY):
            show()

    over, thread = threading.Event(), threading.Thread(target=show_at_times, daemon=True)
    thread.start()
    try:
        yield work
    finally:
        over.set()
        thread.join()
        if not transient:
            show()


@contextmanager
def doing(what: str, console: Console) -> Iterator[None]:
    """Show a spinner in a terminal, a line in a log file."""
    if console.is_terminal:
        with console.status(what):
            yield
        return
    console.print(f"{what} ...", highlight=False, markup=False, soft_wrap=True)
    yield
