"""Train a model by ``transformers.Trainer``, with exact resume and guards.

Trainer trains; Accelerate and DeepSpeed place the model on the hardware. The loss is the stock model's, the mean
negative log-likelihood in nats over all labels of the global batch with any gradient accumulation.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Sized
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from torch.utils.data import Dataset, Subset
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.utils import logging as transformers_logging

from skipwise.errors import NonFiniteLossError, RecipeError, RunError, TrainingError, counted, out_of_memory
from skipwise.model.attention import mask_by_position
from skipwise.model.chunked_loss import can_be_sliced, in_slices, worth_chunking
from skipwise.model.cost import CHECKPOINTING
from skipwise.model.precision import precision_of
from skipwise.model.probe import require_apart
from skipwise.progress import progress as show_progress
from skipwise.recipes.schema import Training
from skipwise.training import checkpoints, processes
from skipwise.training.arguments import settings_errors, training_arguments
from skipwise.training.checkpoints import intact


@dataclass(frozen=True)
class TrainingSummary:
    """The result of a run. Steps and tokens include the part before a resume; time does not."""

    steps: int
    tokens: int  # input tokens seen
    seconds: float  # of training, without ``on_step``
    loss: float  # nats a label, mean of the last logged steps
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
    on_log: Callable[[dict[str, Any]], None] | None = None,
    on_step: Callable[[int], None] | None = None,
    save_at: Collection[int] = (),
    best: Callable[[], int | None] = lambda: None,
    progress: bool = True,
) -> TrainingSummary:
    """Train ``model`` in place on the first ``max_steps * global_batch_size`` examples of ``dataset``, in order.

    Trained weights are float32. Checkpoints go to ``folder``, also after the last step. With ``resume`` training
    continues from the newest complete checkpoint, or starts if there is none.

    Args:
        collate: makes ``input_ids, position_ids, labels, attention_mask`` [examples, train_length]; the mask of packed
            texts is [examples, 1, train_length, train_length].
        seed: of dropout and everything else that the model draws.
        on_log: gets ``step, loss, learning_rate, grad_norm, tokens, tokens_per_second`` at each logged step.
        on_step: gets the number of each step after it; the model has the weights of that step.
        save_at: more steps with a checkpoint.
        best: returns the best step so far. Its checkpoint is kept, and the model gets its weights after training.
        progress: show a progress bar in a terminal, or lines elsewhere.

    Raises:
        RecipeError: a setting is wrong or contradicts another, or the dataset is too short.
        RunError: ``folder`` holds checkpoints, or its newest checkpoint has lost or changed a file.
        TrainingError: memory or disk is full, or (NonFiniteLossError) the loss is not finite.
    """
    args = training_arguments(settings, folder, seed)
    checkpoint = _resume_point(folder, resume, args.world_size)
    guard, meter = NonFiniteGuard(folder), _Meter(on_log, on_step, save_at, progress)
    use_cache = model.config.use_cache  # Trainer switches it off
    mask_by_position(model)  # for a model that load_model did not load
    transformers_logging.disable_progress_bar()  # a bar for each checkpoint would break ours
    examples = _first_examples(dataset, settings)
    with settings_errors():
        trainer = _Trainer(model, args, collate, examples, callbacks=[guard, meter])
    trainer.guard, trainer.keep, trainer.best = guard, settings.save_total_limit, best
    trainer.remove_callback(PrinterCallback)
    began = time.perf_counter()
    try:
        with checkpoints.weights_only(checkpoint), _memory_errors(trainer):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        meter.stop()
        model.config.use_cache = use_cache
    seconds = time.perf_counter() - began - meter.paused
    state = trainer.state
    assert state.global_step == args.max_steps, f"a callback ended training after step {state.global_step}"
    if args.should_save:  # torn checkpoints that no later save removes
        checkpoints.rotate(folder, settings.save_total_limit, best())
    if (step := best()) not in (None, args.max_steps):
        checkpoints.verify(folder / f"checkpoint-{step}")
        trainer._load_from_checkpoint(str(folder / f"checkpoint-{step}"))
    return TrainingSummary(
        steps=state.global_step,
        tokens=state.num_input_tokens_seen,
        seconds=seconds,
        loss=next((entry["loss"] for entry in reversed(state.log_history) if "loss" in entry), float("nan")),
        tokens_per_second=(state.num_input_tokens_seen - meter.tokens_before) / seconds,
    )


def _resume_point(folder: Path, resume: bool, world_size: int) -> Path | None:
    """Return the checkpoint to resume from, or None for a start; refuse to overwrite checkpoints."""
    if not resume and (existing := checkpoints.complete_checkpoints(folder)):
        raise RunError(f"{folder} already holds {existing[-1].name}; pass --resume, or another folder with --out")
    if checkpoint := checkpoints.latest_complete(folder):
        checkpoints.require_same_setup(checkpoint, processes.engine(), world_size)
    return checkpoint


def _first_examples(dataset: Dataset, settings: Training) -> Dataset:
    """Return the examples of the run as one epoch; a resume after the last step then trains no further."""
    available, needed = len(cast(Sized, dataset)), settings.max_steps * settings.global_batch_size
    if available < needed:
        raise RecipeError(
            f"the data set has {counted(available, 'example')}, and training.max_steps x global_batch_size needs {needed:,}; set "
            f"training.max_steps={available // settings.global_batch_size} or give more"
        )
    return dataset if available == needed else Subset(dataset, range(needed))


class _Trainer(Trainer):
    """The stock Trainer, with guards before each update and around each save."""

    guard: "NonFiniteGuard"
    keep: int  # complete checkpoints
    best: Callable[[], int | None]
    micro_batch = (0, 0)  # examples, tokens
    _sliced: bool | None = None  # whether the loss is computed in slices; None before the first batch
    _apart = False  # whether packed texts were probed

    @property
    def _sharded(self) -> bool:
        """Whether each process holds only a shard of the weights."""
        return self.is_deepspeed_enabled or self.is_fsdp_enabled

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
            # Setting the class's own would let the model hold itself, and stay in memory.
            if self.model.forward != forward:
                self.model.forward = forward
        return prepared

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> Any:
        return self.accelerator.autocast()

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        ids = inputs["input_ids"]
        if self._sliced is None:
            self._sliced = self._needs_slices(ids.numel())
        net, mask = cast(PreTrainedModel, self.model), inputs["attention_mask"]
        if mask.ndim == 4 and not self._apart and not self._sharded:  # the first packed texts; a shard cannot be probed
            require_apart(net, ids, inputs["position_ids"], mask, precision=precision_of(self.args))
            self._apart = True
        self.micro_batch = tuple(ids.shape)
        self.state.num_input_tokens_seen += ids.numel() * self.args.world_size
        with in_slices(net) if self._sliced else nullcontext():
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self.guard.see_loss(loss.detach())
        if self.is_deepspeed_enabled:  # its engine updates the weights inside backward
            self.guard.check(self.args, self.state.global_step + 1)
            self.guard.see_loss(loss.detach())
        return (loss, outputs) if return_outputs else loss

    def _needs_slices(self, tokens: int) -> bool:
        """Return whether to compute the loss in slices: they are worth it, and nothing else needs all logits.

        Slices need the output layer's weights, which no process of a sharded run holds whole. Liger has its own loss.
        """
        model = cast(PreTrainedModel, self.model)
        if self.label_smoother is not None or self.args.use_liger_kernel or self._sharded:
            return False
        vocabulary = model.config.get_text_config().vocab_size
        return worth_chunking(tokens, vocabulary, model.device.type) and can_be_sliced(model)

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        self.guard.see_grad_norm(norm)
        return norm

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        folder = Path(str(self.args.output_dir))
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            checkpoints.discard(checkpoint)  # left torn by an interrupted save
        self.accelerator.wait_for_everyone()
        with checkpoints.disk_errors(checkpoint.name, folder):
            super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            checkpoints.mark_complete(checkpoint, processes.engine(), self.args.world_size)
            checkpoints.rotate(folder, self.keep, self.best())
        # Hashes of a large checkpoint take minutes, and collectives of DeepSpeed's own group wait at most ten.
        self.accelerator.wait_for_everyone()


class NonFiniteGuard(TrainerCallback):
    """Stop the run before an optimizer step that would write NaN or infinity into the weights.

    Losses and gradient norm stay on the device and are read once a step, so that gradient accumulation needs no extra
    synchronisation. Under fp16 the loss scaler skips steps with infinite gradients, so only the loss is checked.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loss: torch.Tensor | None = None
        self._grad_norm: torch.Tensor | float = 0.0

    def see_loss(self, loss: torch.Tensor) -> None:
        """Add the detached loss of one micro-batch; the sum is non-finite if one of its terms is."""
        self._loss = loss.sum() if self._loss is None else self._loss + loss.sum()

    def see_grad_norm(self, norm: torch.Tensor | float) -> None:
        """Take the norm of the gradients that the next update applies."""
        self._grad_norm = norm

    def check(self, args: Any, step: int) -> None:
        """Check the losses and the gradient norm since the last check."""
        loss, norm = self._loss, 0.0 if args.fp16 else self._grad_norm
        self._loss, self._grad_norm = None, 0.0
        assert loss is not None, "the guard got no loss since the last optimizer step"
        if math.isfinite(float(loss + norm)):
            return
        what = "the gradient norm" if math.isfinite(float(loss)) else "the loss"
        other = "bf16" if args.fp16 else "float32" if args.bf16 else None
        precision = f"training.precision={other} or " if other else ""
        raise NonFiniteLossError(
            f"step {step}: {what} is not finite, and the weights were not updated; {intact(self._folder)}. Try {precision}a "
            f"training.learning_rate below {args.learning_rate:g} in a new run (another --out)"
        )

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.check(args, state.global_step + 1)


class _Meter(TrainerCallback):
    """Call ``on_step`` after each step and ``on_log`` at each logged step, and show progress.

    Steps with a checkpoint and the last step are logged too.
    """

    def __init__(
        self,
        on_log: Callable[[dict[str, Any]], None] | None,
        on_step: Callable[[int], None] | None,
        save_at: Collection[int],
        shown: bool,
    ) -> None:
        self._on_log, self._on_step, self._save_at, self._shown = on_log, on_step, save_at, shown
        self.tokens_before, self.paused = 0, 0.0  # paused: seconds in ``on_step``
        self._display, self._loss = ExitStack(), "-"

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.tokens_before = self._tokens = state.num_input_tokens_seen
        self._began = self._time = time.perf_counter()
        self._shown &= state.is_world_process_zero
        if self._shown:
            display = show_progress("training", state.max_steps, Console(stderr=True), done=state.global_step)
            self._work = self._display.enter_context(display)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        step = state.global_step
        control.should_save |= step in self._save_at
        # Trainer keeps no running loss in a checkpoint, so a resume logs the mean of the steps after it.
        control.should_log |= control.should_save
        if self._on_step:
            began = time.perf_counter()
            self._on_step(step)
            took = time.perf_counter() - began
            self._time, self.paused = self._time + took, self.paused + took
        self._show(state)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        if "loss" not in logs:  # Trainer's own summary at the end
            return
        now, tokens = time.perf_counter(), state.num_input_tokens_seen
        speed = (tokens - self._tokens) / (now - self._time)
        self._tokens, self._time, self._loss = tokens, now, f"{logs['loss']:.3f}"
        if self._on_log and state.is_world_process_zero:
            record = {key: logs.get(key) for key in ("loss", "learning_rate", "grad_norm")}
            self._on_log({"step": state.global_step, **record, "tokens": tokens, "tokens_per_second": speed})
        self._show(state)

    def _show(self, state: TrainerState) -> None:
        if self._shown:
            seconds = time.perf_counter() - self._began - self.paused
            speed = (state.num_input_tokens_seen - self.tokens_before) / seconds
            status = f"step {state.global_step:,}/{state.max_steps:,}, loss {self._loss}, {speed:,.0f} tokens/s"
            self._work.reach(state.global_step, status=status)

    def stop(self) -> None:
        """End the display, also after an error."""
        self._display.close()


@contextmanager
def _memory_errors(trainer: _Trainer) -> Iterator[None]:
    """Explain an out-of-memory error in this context by the running Trainer's micro-batch."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        examples, tokens = trainer.micro_batch
        held = f"with {examples} x {tokens:,} tokens in a forward pass" if examples else "before the first forward pass"
        fixes = {
            "--resume --set training.gradient_checkpointing=true": not getattr(trainer.args, CHECKPOINTING),
            "a new run with training.per_device_train_batch_size=1": examples > 1,
            "a new run with --lora": not hasattr(trainer.model, "peft_config"),
            "a new run with a shorter train_length": True,
        }
        raise TrainingError(
            f"step {trainer.state.global_step + 1}: out of memory {held}; {intact(Path(str(trainer.args.output_dir)))}. Try "
            f"{', or '.join(fix for fix, helps in fixes.items() if helps)}"
        ) from error
