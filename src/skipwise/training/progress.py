"""Show the progress of training."""

import time
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState


class TrainingProgress(TrainerCallback):
    """Shows step, loss, tokens/s and time: a bar in a terminal, elsewhere a line every tenth of the run or 30 s."""

    def __init__(self, shown: bool, console: Console | None = None) -> None:
        self._shown = shown
        self._console = console or Console(stderr=True)
        self._bar: Progress | None = None
        self._loss = "-"

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._shown &= state.is_world_process_zero
        self._began = self._printed_at = time.perf_counter()
        self._first_step = self._printed_step = state.global_step
        self._first_tokens = state.num_input_tokens_seen
        if self._shown and self._console.is_terminal:
            speed = "loss {task.fields[loss]}  {task.fields[speed]} tokens/s"
            times = TimeElapsedColumn(), "left", TimeRemainingColumn()
            columns = "training", BarColumn(), MofNCompleteColumn(), speed, *times
            self._bar = Progress(*columns, console=self._console, refresh_per_second=2, speed_estimate_period=600)
            self._task = self._bar.add_task("", total=state.max_steps, completed=state.global_step, loss="-", speed="-")
            self._bar.start()

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if "loss" in kwargs["logs"]:
            self._loss = f"{kwargs['logs']['loss']:.3f}"
            self._show(state)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not control.should_log:  # on_log follows with the newer loss
            self._show(state)

    def _show(self, state: TrainerState) -> None:
        now, step = time.perf_counter(), state.global_step
        elapsed = now - self._began
        speed = f"{(state.num_input_tokens_seen - self._first_tokens) / elapsed:,.0f}"
        if self._bar:
            self._bar.update(self._task, completed=step, loss=self._loss, speed=speed)
            return
        due = step - self._printed_step >= state.max_steps / 10 or now - self._printed_at >= 30
        if self._shown and (due or step >= state.max_steps):
            self._printed_at, self._printed_step = now, step
            left = elapsed / max(step - self._first_step, 1) * (state.max_steps - step)
            self._console.print(
                f"step {step:,}/{state.max_steps:,}  loss {self._loss}  {speed} tokens/s  "
                f"{timedelta(seconds=round(elapsed))} elapsed  {timedelta(seconds=round(left))} left",
                highlight=False,
            )

    def stop(self) -> None:
        """Remove the bar, also after an error."""
        if self._bar:
            self._bar.stop()
