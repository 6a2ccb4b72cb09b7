"""Training arguments + data set -> one ``transformers.Trainer`` run, resumed exactly and guarded.

Trainer trains, Accelerate and DeepSpeed place the model on the machines. The loss is the stock model's own:
the mean negative log-likelihood in nats over all labels of the global batch, however it is accumulated.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils.data import Dataset, Subset
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from transformers.utils import logging as transformers_logging

from skipwise.errors import RecipeError, RunError, TrainingError
from skipwise.model.chunked_loss import can_be_sliced, in_slices, worth_chunking
from skipwise.model.sliding import attention_masks
from skipwise.recipes import schema as recipe
from skipwise.training import guards, processes
from skipwise.training.arguments import settings_errors, training_arguments
from skipwise.training.progress import TrainingProgress


@dataclass(frozen=True)
class TrainingSummary:
    """What a run came to.

    ``steps`` and ``tokens`` (input tokens seen) count the whole run, before a resume too; ``seconds`` and
    ``tokens_per_second`` this session; ``loss`` is in nats, the mean since the last but one log.
    """

    steps: int
    tokens: int
    seconds: float
    loss: float
    tokens_per_second: float


def train(
    model: PreTrainedModel,
    dataset: Dataset,
    collate: Callable[[list[Any]], dict[str, torch.Tensor]],
    settings: recipe.Training,
    *,
    folder: Path,
    seed: int,
    resume: bool,
    on_log: Callable[[dict[str, Any]], None] | None = None,
    on_step: Callable[[int], None] | None = None,
    progress: bool = True,
) -> TrainingSummary:
    """Train ``model`` in place on the first ``max_steps * batch_size`` examples of ``dataset``, in order.

    Checkpoints go to ``folder``; the last step has one too, so that a later kill costs no training. With
    ``resume`` the newest complete one is gone on from, and none yet means from the start.

    Args:
        model: a causal language model whose weights are float32.
        dataset: of known length; example i is the i-th of the run.
        collate: makes ``input_ids, position_ids, labels, attention_mask`` [examples, train_length].
        settings: the recipe's training section.
        folder: where ``checkpoint-N`` go.
        seed: of the dropout and whatever else the model draws.
        resume: go on from the newest complete checkpoint of ``folder``.
        on_log: gets ``step, loss, learning_rate, grad_norm, tokens, tokens_per_second`` at each logged step.
        on_step: gets the number of each step when it is done; the model is as trained so far.
        progress: show a bar in a terminal, or a line now and then where there is none.

    Raises:
        RecipeError: a setting is unknown, wrong or contradicts another; the dataset is too short.
        RunError: ``folder`` is taken, or its newest checkpoint has lost or changed a file.
        TrainingError: no memory, no room on the disk, or (NonFiniteLossError) a loss that is not finite.
    """
    args = training_arguments(settings, folder, seed)
    checkpoint = _resume_point(folder, resume, args.world_size)
    meter, guard, display = _Meter(on_log), guards.NonFiniteGuard(folder), TrainingProgress(progress)
    use_cache = model.config.use_cache  # Trainer switches it off
    examples = _whole_run(dataset, settings)
    with settings_errors():
        trainer = _Trainer(
            model=model,
            args=args,
            train_dataset=examples,
            data_collator=collate,
            callbacks=[guard, meter, display, *([_EachStep(on_step)] if on_step else [])],
            guard=guard,
            keep=settings.save_total_limit,
        )
    trainer.remove_callback(PrinterCallback)
    began = time.perf_counter()
    try:
        with _memory_errors(trainer), _without_save_bars():
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        display.stop()
        model.config.use_cache = use_cache
    seconds = time.perf_counter() - began
    return TrainingSummary(
        steps=trainer.state.global_step,
        tokens=trainer.state.num_input_tokens_seen,
        seconds=seconds,
        loss=_last_loss(trainer.state),
        tokens_per_second=(trainer.state.num_input_tokens_seen - meter.tokens_before) / seconds,
    )


class _Trainer(Trainer):
    """The stock Trainer with the guards in its way: before each update, and around each save."""

    def __init__(self, *, guard: guards.NonFiniteGuard, keep: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.guard, self.keep = guard, keep
        self.micro_batch: tuple[int, ...] = (0, 0)
        self._sliced: bool | None = None

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        with settings_errors():
            return super().create_optimizer(*args, **kwargs)

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        with settings_errors():
            return super().create_scheduler(*args, **kwargs)

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        """Take back Accelerate's forward, which copies all logits to float32, in every step and for no use.

        The loss is taken under the same autocast instead, and the model stays stock after training.
        """
        prepared = super()._prepare_for_training(*args, **kwargs)
        processes.require_engine(prepared[0])
        assert isinstance(self.model, torch.nn.Module)
        if forward := vars(self.model).pop("_original_forward", None):
            self.model.forward = forward
        return prepared

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> Any:
        return self.accelerator.autocast()

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        ids = inputs["input_ids"]
        if self._sliced is None:
            self._sliced = self._slices(ids.numel())
        self.micro_batch = tuple(ids.shape)
        self.state.num_input_tokens_seen += ids.numel() * self.args.world_size
        if "position_ids" in inputs:
            masks = attention_masks(
                cast(PreTrainedModel, self.model), inputs["attention_mask"], inputs["position_ids"]
            )
            inputs = inputs | {"attention_mask": masks}
        with in_slices(cast(PreTrainedModel, self.model)) if self._sliced else nullcontext():
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self.guard.see_loss(loss.detach())
        if self.is_deepspeed_enabled:  # its engine updates the weights inside backward
            self.guard.check(self.args, self.state.global_step + 1)
            self.guard.see_loss(loss.detach())
        return (loss, outputs) if return_outputs else loss

    def _slices(self, tokens: int) -> bool:
        """Whether the loss is taken in slices: where all logits would weigh, and nothing else needs them.

        Of an output layer in shares nobody holds the weights once it has run; Liger has a fused loss of its own.
        """
        model = cast(PreTrainedModel, self.model)
        needed = self.label_smoother is not None or self.args.use_liger_kernel
        if needed or self.is_deepspeed_enabled or self.is_fsdp_enabled:
            return False
        worth = worth_chunking(tokens, model.config.get_text_config().vocab_size)
        return worth and can_be_sliced(model)

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        self.guard.see_grad_norm(norm)
        return norm

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        folder = Path(str(self.args.output_dir))
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            guards.discard(checkpoint)  # the torso of an earlier session
        self.accelerator.wait_for_everyone()
        assert isinstance(self.model, torch.nn.Module)
        assert isinstance(self.optimizer, torch.optim.Optimizer)
        with guards.disk_space(checkpoint, guards.checkpoint_bytes(self.model, self.optimizer)):
            super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            guards.mark_complete(checkpoint)
            guards.rotate(folder, self.keep)


class _Meter(TrainerCallback):
    """Turns Trainer's logs into records, one a logged step, and has the last step logged too."""

    def __init__(self, on_log: Callable[[dict[str, Any]], None] | None) -> None:
        self._on_log = on_log
        self.tokens_before = 0

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.tokens_before = self._tokens = state.num_input_tokens_seen
        self._time = time.perf_counter()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        control.should_log |= state.global_step >= state.max_steps

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        if "loss" not in logs:  # Trainer's own summary at the end
            return
        now, tokens = time.perf_counter(), state.num_input_tokens_seen
        speed = (tokens - self._tokens) / (now - self._time)
        self._tokens, self._time = tokens, now
        if self._on_log and state.is_world_process_zero:
            record = {key: logs.get(key) for key in ("loss", "learning_rate", "grad_norm")}
            self._on_log({"step": state.global_step, **record, "tokens": tokens, "tokens_per_second": speed})


class _EachStep(TrainerCallback):
    """Calls a function after each step."""

    def __init__(self, call: Callable[[int], None]) -> None:
        self._call = call

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._call(state.global_step)


def _resume_point(folder: Path, resume: bool, world_size: int) -> Path | None:
    if resume:
        checkpoint = guards.latest_complete(folder)
        if checkpoint:
            guards.require_processes(checkpoint, world_size)
            guards.require_engine(checkpoint, processes.engine() if world_size > 1 else "ddp")
        return checkpoint
    if taken := guards.complete_checkpoints(folder):
        raise RunError(
            f"{folder} holds {taken[-1].name} already; pass --resume, or another folder with --out"
        )
    return None


def _whole_run(dataset: Dataset, settings: recipe.Training) -> Dataset:
    """The run as one epoch: then Trainer, resumed after the last step, trains no step more."""
    available, needed = len(cast(Sized, dataset)), settings.max_steps * settings.batch_size
    if available < needed:
        raise RecipeError(
            f"the data set has {available:,} examples; {settings.max_steps:,} steps of {settings.batch_size} "
            f"need {needed:,}; set training.max_steps={available // settings.batch_size} or give more"
        )
    return dataset if available == needed else Subset(dataset, range(needed))


def _last_loss(state: TrainerState) -> float:
    return next((entry["loss"] for entry in reversed(state.log_history) if "loss" in entry), float("nan"))


@contextmanager
def _memory_errors(trainer: _Trainer) -> Iterator[None]:
    """Say what was held when memory ran out, and what shrinks it."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        told = str(error).lower()
        phrases = ("out of memory", "can't allocate memory", os.strerror(errno.ENOMEM).lower())
        out = isinstance(error, torch.OutOfMemoryError | MemoryError) or any(p in told for p in phrases)
        if not out:
            raise
        examples, tokens = trainer.micro_batch
        smaller = f"training.per_device_train_batch_size={examples // 2} or " if examples > 1 else ""
        raise TrainingError(
            f"step {trainer.state.global_step + 1}: out of memory with {examples} x {tokens:,} tokens in one "
            f"forward pass; set {smaller}training.gradient_checkpointing=true; "
            f"{guards.intact(Path(str(trainer.args.output_dir)))}"
        ) from error


@contextmanager
def _without_save_bars() -> Iterator[None]:
    """Keep transformers from drawing a bar for each checkpoint into ours."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
