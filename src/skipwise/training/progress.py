"""Show the progress of training."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from transformers import TrainerCallback, TrainerControl, TrainerState

from skipwise.progress import progress


class TrainingProgress(TrainerCallback):
    """Shows step, loss, tokens/s and time; ``paused`` tells the seconds that were no training."""

    def __init__(self, shown: bool, paused: Callable[[], float]) -> None:
        self._shown, self._paused, self._loss, self._display = shown, paused, "-", ExitStack()

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._shown &= state.is_world_process_zero
        if self._shown:
            self._began, self._first_tokens = time.perf_counter(), state.num_input_tokens_seen
            display = progress("training", state.max_steps, Console(stderr=True), done=state.global_step)
            self._work = self._display.enter_context(display)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if "loss" in kwargs["logs"]:
            self._loss = f"{kwargs['logs']['loss']:.3f}"
            self._show(state)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._show(state)

    def _show(self, state: TrainerState) -> None:
        if self._shown:
            seconds = time.perf_counter() - self._began - self._paused()
            speed = (state.num_input_tokens_seen - self._first_tokens) / seconds
            told = f"step {state.global_step:,}/{state.max_steps:,}, loss {self._loss}, {speed:,.0f} tokens/s"
            self._work.reach(state.global_step, told=told)

    def stop(self) -> None:
        """End the display, also after an error."""
        self._display.close()
