"""Train a model by ``transformers.Trainer``, with exact resume and guards.

Trainer trains; Accelerate and DeepSpeed place the model on the hardware. The loss is the stock model's, the mean
negative log-likelihood in nats over all labels of the global batch with any gradient accumulation; weights of labels and
a teacher's term come to it where examples have them.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils.data import Dataset, Subset
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.utils import logging as transformers_logging

from skipwise.errors import RecipeError, RunError, TrainingError, counted
from skipwise.model.blocked_attention import blocked_attention
from skipwise.model.chunked_loss import can_be_sliced, in_slices, with_terms, worth_chunking
from skipwise.model.precision import precision_of
from skipwise.model.probe import require_apart
from skipwise.model.sliding import mask_by_position
from skipwise.model.teacher import Teacher
from skipwise.recipes.schema import Training
from skipwise.training import checkpoints, processes
from skipwise.training.arguments import settings_errors, training_arguments
from skipwise.training.disk import checkpoint_bytes, disk_space
from skipwise.training.guards import NonFiniteGuard, memory_errors
from skipwise.training.progress import TrainingProgress


@dataclass(frozen=True)
class TrainingSummary:
    """The result of a run. Steps and tokens count the whole run, with the part before a resume; time, this session."""

    steps: int
    tokens: int  # input tokens seen
    seconds: float  # of training; what ``on_step`` took is left out
    loss: float  # nats a label, with the teacher's term and the weights of labels; the mean of the steps between the last two logs
    tokens_per_second: float


def train(
    model: PreTrainedModel,
    dataset: Dataset,
    collate: Callable[[list[Any]], dict[str, torch.Tensor]],
    settings: Training,
    *,
    folder: Path,
    seed: int,
    resume: bool,
    run: str = "",
    on_log: Callable[[dict[str, Any]], None] | None = None,
    on_step: Callable[[int], None] | None = None,
    teacher: Teacher | None = None,
    progress: bool = True,
) -> TrainingSummary:
    """Train ``model`` in place on the first ``max_steps * batch_size`` examples of ``dataset``, in order.

    Its trained weights are float32. Checkpoints go to ``folder``; the last step has one too, so that a later kill costs
    no training. With ``resume`` training goes on from the newest complete one, or starts if there is none.

    Args:
        collate: makes ``input_ids, position_ids, labels, attention_mask`` [examples, train_length]; the mask of packed texts is
            [examples, 1, train_length, train_length].
        seed: of dropout and everything else that the model draws.
        run: what the checkpoints belong to (``RunFolder.identity``); those of another run are refused.
        on_log: gets ``step, loss, learning_rate, grad_norm, tokens, tokens_per_second`` at each logged step.
        on_step: gets the number of each step after it; the model has the weights of that step.
        teacher: is asked for its predictions where a batch has ``teacher_weights`` [examples, tokens] above 0.
        progress: show a progress bar in a terminal, or lines elsewhere.

    Raises:
        RecipeError: a setting is wrong or contradicts another, the dataset is too short, or collate drops positions.
        RunError: ``folder`` holds checkpoints, or its newest checkpoint has lost or changed a file.
        TrainingError: too little memory or disk space, training that ends before its last step, or (NonFiniteLossError) a
            loss that is not finite.
    """
    args = training_arguments(settings, folder, seed)
    checkpoint = _resume_point(folder, resume, args.world_size, run)
    meter, guard = _Meter(on_log, on_step), NonFiniteGuard(folder)
    display = TrainingProgress(progress, lambda: meter.paused)
    use_cache = model.config.use_cache  # Trainer switches it off
    mask_by_position(model)  # for a model that load_model did not load
    examples = _first_examples(dataset, settings)
    with settings_errors():
        trainer = _Trainer(
            model,
            args,
            collate,
            examples,
            callbacks=[guard, meter, display],
            guard=guard,
            keep=settings.save_total_limit,
            run=run,
            teacher=teacher,
        )
    trainer.remove_callback(PrinterCallback)
    began = time.perf_counter()
    try:
        # What torch.compile makes of the stock attention is not ours to replace.
        attention = nullcontext() if args.torch_compile else blocked_attention(model)
        with checkpoints.weights_only(checkpoint), memory_errors(trainer), _without_save_bars(), attention:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        display.stop()
        model.config.use_cache = use_cache
    if (done := trainer.state.global_step) < args.max_steps:  # a callback stopped it, of a tracker for example
        raise TrainingError(
            f"training ended without an error after step {done:,} of {args.max_steps:,}; pass --resume to go on from the last "
            "checkpoint, if there is one"
        )
    seconds = time.perf_counter() - began - meter.paused
    if args.should_save:  # what an interrupted removal left, where no later save removes it
        checkpoints.rotate(folder, settings.save_total_limit)
    return TrainingSummary(
        steps=trainer.state.global_step,
        tokens=trainer.state.num_input_tokens_seen,
        seconds=seconds,
        loss=next((entry["loss"] for entry in reversed(trainer.state.log_history) if "loss" in entry), float("nan")),
        tokens_per_second=(trainer.state.num_input_tokens_seen - meter.tokens_before) / seconds,
    )


class _Trainer(Trainer):
    """The stock Trainer, with guards before each update and around each save."""

    def __init__(
        self, *args: Any, guard: NonFiniteGuard, keep: int, run: str, teacher: Teacher | None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.guard, self.keep, self.run, self.teacher = guard, keep, run, teacher
        self.micro_batch: tuple[int, ...] = (0, 0)  # examples, tokens
        self._sliced: bool | None = None
        self._apart = False

    @property
    def _sharded(self) -> bool:
        """Whether each process holds only a shard of the weights."""
        return self.is_deepspeed_enabled or self.is_fsdp_enabled

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        with settings_errors():
            return super().create_optimizer(*args, **kwargs)

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        with settings_errors():
            return super().create_scheduler(*args, **kwargs)

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        """Restore the stock forward: Accelerate's copies all logits to float32. The loss gets the same autocast."""
        assert isinstance(self.model, torch.nn.Module)
        before = {name: buffer.dtype for name, buffer in self.model.named_buffers()}
        prepared = super()._prepare_for_training(*args, **kwargs)
        processes.require_engine(prepared[0])
        cast_to = {b.dtype for name, b in self.model.named_buffers() if b.dtype != before.get(name, b.dtype)}
        if cast_to:
            raise TrainingError(
                f"{processes.engine()} cast the rotary frequencies to {cast_to.pop()}, which rounds positions; DeepSpeed before "
                "0.19.2 does: pip install -U deepspeed, or choose --launch ddp or fsdp"
            )
        if forward := vars(self.model).pop("_original_forward", None):
            del self.model.forward
            # Only one that is not the class's: with that, the model would hold itself, and stay in memory when it is done with.
            if self.model.forward != forward:
                self.model.forward = forward
        return prepared

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> Any:
        return self.accelerator.autocast()

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        ids, weights = inputs["input_ids"], inputs.pop("teacher_weights", None)
        positions = inputs.pop("teacher_positions", None)
        label_weights = inputs.pop("label_weights", None)
        if self._sliced is None:  # the first batch
            self._require_positions(inputs)
            if (weights is None) != (self.teacher is None):
                lacks = "teacher_weights" if weights is None else "teacher"
                raise RecipeError(
                    f"there is no {lacks}: a teacher that trains along and a PoseDataset made with teacher= need each other; give both, "
                    "or neither"
                )
            self._sliced = self._needs_slices(ids.numel())
        if not self._apart and inputs["attention_mask"].ndim == 4:  # the first batch with packed texts
            self._require_apart(inputs)
            self._apart = True
        self.micro_batch = tuple(ids.shape)
        self.state.num_input_tokens_seen += ids.numel() * self.args.world_size
        with self._loss(ids, weights, positions, label_weights):
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self.guard.see_loss(loss.detach())
        if self.is_deepspeed_enabled:  # its engine updates the weights inside backward
            self.guard.check(self.args, self.state.global_step + 1)
            self.guard.see_loss(loss.detach())
        return (loss, outputs) if return_outputs else loss

    def _loss(
        self,
        ids: torch.Tensor,
        weights: torch.Tensor | None,
        positions: torch.Tensor | None,
        label_weights: torch.Tensor | None,
    ) -> AbstractContextManager[object]:
        """Return the context in which the model computes its loss: in slices or whole, with further terms or not."""
        model = cast(PreTrainedModel, self.model)
        taught = None
        if self.teacher is not None and weights is not None:
            taught = self.teacher.taught(ids, weights, positions, logits=not self._sliced, sharded=self._sharded)
        if self._sliced:
            return in_slices(model, taught, label_weights)
        if taught is None and label_weights is None:
            return nullcontext()
        return with_terms(model, taught, label_weights)

    def _require_positions(self, batch: dict[str, Any]) -> None:
        """Refuse a batch without the positions of its examples; the model would count 0, 1, 2, ... in silence."""
        if batch.get("position_ids") is not None:
            return
        example = cast(Dataset, self.train_dataset)[0]
        if isinstance(example, Mapping) and example.get("position_ids") is not None:
            raise RecipeError(
                f"a batch has the fields {', '.join(batch)}: collate dropped the position_ids of the examples, without "
                "which no position skips; give skipwise.collate, or a function that keeps every field"
            )

    def _require_apart(self, batch: dict[str, Any]) -> None:
        """Refuse a model whose attention reads across packed texts; of a sharded one no process can be asked alone."""
        if not self._sharded:
            model, precision = cast(PreTrainedModel, self.model), precision_of(self.args)
            ids, positions, mask = (batch[name] for name in ("input_ids", "position_ids", "attention_mask"))
            require_apart(model, ids, positions, mask, precision=precision)

    def _needs_slices(self, tokens: int) -> bool:
        """Return whether to compute the loss in slices: they are worth it, and nothing else needs all logits.

        With a teacher there are twice as many. Slices need the output layer's weights, which no process holds whole in a
        sharded model. Liger has its own loss.
        """
        model = cast(PreTrainedModel, self.model)
        logits_needed = self.label_smoother is not None or self.args.use_liger_kernel
        if logits_needed or self._sharded:
            return False
        vocabulary = model.config.get_text_config().vocab_size
        worth = self.teacher is not None or worth_chunking(tokens, vocabulary, model.device.type)
        return worth and can_be_sliced(model)

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        self.guard.see_grad_norm(norm)
        return norm

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        folder = Path(str(self.args.output_dir))
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            checkpoints.discard(checkpoint)  # an incomplete checkpoint left by an interrupted save
        self.accelerator.wait_for_everyone()
        assert isinstance(self.model, torch.nn.Module)
        assert isinstance(self.optimizer, torch.optim.Optimizer)
        with disk_space(checkpoint, checkpoint_bytes(self.model, self.optimizer)):
            super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            checkpoints.mark_complete(checkpoint, self.run)
            checkpoints.rotate(folder, self.keep)
        # Hashes of a large checkpoint take minutes, and collectives of DeepSpeed's own group wait ten at the most.
        self.accelerator.wait_for_everyone()


class _Meter(TrainerCallback):
    """Calls ``on_step`` after each step, and ``on_log`` at each logged step; those with a checkpoint and the last are logged."""

    def __init__(self, on_log: Callable[[dict[str, Any]], None] | None, on_step: Callable[[int], None] | None) -> None:
        self._on_log, self._on_step = on_log, on_step
        self.tokens_before, self.paused = 0, 0.0  # paused: seconds in ``on_step``, which are no training

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.tokens_before = self._tokens = state.num_input_tokens_seen
        self._time = time.perf_counter()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # Trainer keeps no running loss in a checkpoint, so what is logged after a resume must begin there.
        saves = state.global_step % state.save_steps == 0
        control.should_log |= saves or state.global_step >= state.max_steps
        if self._on_step:
            began = time.perf_counter()
            self._on_step(state.global_step)
            took = time.perf_counter() - began
            self._time, self.paused = self._time + took, self.paused + took

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


def _resume_point(folder: Path, resume: bool, world_size: int, run: str) -> Path | None:
    """Return the checkpoint to resume from, or None for a start; refuse to overwrite checkpoints."""
    if not resume and (existing := checkpoints.complete_checkpoints(folder)):
        raise RunError(f"{folder} holds {existing[-1].name} already; pass --resume, or another folder with --out")
    checkpoint = checkpoints.latest_complete(folder)
    if checkpoint:
        checkpoints.require_run(checkpoint, run)
        checkpoints.require_processes(checkpoint, world_size)
        checkpoints.require_engine(checkpoint, processes.engine() if world_size > 1 else "ddp")
    return checkpoint


def _first_examples(dataset: Dataset, settings: Training) -> Dataset:
    """Return the examples of the run as one epoch; then Trainer, resumed after the last step, trains no further."""
    available, needed = len(cast(Sized, dataset)), settings.max_steps * settings.batch_size
    if available < needed:
        raise RecipeError(
            f"the data set has {counted(available, 'example')}; training.max_steps x batch_size = "
            f"{settings.max_steps:,} x {settings.batch_size} = {needed:,} are needed; set training.max_steps={available // settings.batch_size} or give more"
        )
    return dataset if available == needed else Subset(dataset, range(needed))


@contextmanager
def _without_save_bars() -> Iterator[None]:
    """Hide the bar that transformers draws for each checkpoint; it would break the progress bar."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
