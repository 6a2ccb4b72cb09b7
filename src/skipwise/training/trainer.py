"""Train a model by ``transformers.Trainer``, with exact resume and guards.

The loss is the stock model's: mean negative log-likelihood in nats over all labels of the global batch.
"""

import math
import time
from collections.abc import Callable, Collection, Sized
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from torch.utils.data import Dataset
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState

from skipwise.errors import NonFiniteLossError, TrainingError, out_of_memory
from skipwise.model.attention import mask_by_position
from skipwise.model.forward import can_be_sliced, in_slices, precision_of, worth_chunking
from skipwise.model.probe import require_apart
from skipwise.progress import progress
from skipwise.recipes.schema import Training
from skipwise.training import checkpoints, processes
from skipwise.training.arguments import settings_errors, training_arguments
from skipwise.training.checkpoints import intact


@dataclass(frozen=True)
class TrainingSummary:
    """The result of a run; steps and tokens include the part before a resume."""

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
    on_log: Callable[[dict[str, Any]], None] = lambda log: None,
    on_step: Callable[[int], None] = lambda step: None,
    save_at: Collection[int] = (),
    best: Callable[[], int | None] = lambda: None,
) -> TrainingSummary:
    """Train ``model`` in place on the ``max_steps * global_batch_size`` examples of ``dataset``, in order.

    Trained weights are float32. Checkpoints go to ``folder``, also after the last step. With ``resume`` training
    continues from the newest complete checkpoint, or starts if there is none. If memory is full, a pass gets half the windows,
    and training goes on from the newest checkpoint.

    Args:
        collate: makes ``input_ids, position_ids, labels, attention_mask`` [examples, train_length].
        seed: of dropout and everything else that the model draws.
        on_log: gets the fields of a ``TrainingRecord`` at each logged step, on rank 0.
        on_step: gets the number of each step after it; the model has the weights of that step.
        save_at: more steps with a checkpoint.
        best: returns the best step so far. Its checkpoint is kept, and the model gets its weights after training.

    Raises:
        RecipeError: a setting is wrong or contradicts another.
        RunError: the newest checkpoint has lost or changed a file, or other processes wrote it.
        TrainingError: memory or disk is full, or (NonFiniteLossError) the loss is not finite.
    """
    args = training_arguments(settings, folder, seed)
    checkpoint = checkpoints.latest_complete(folder) if resume else None
    if checkpoint:
        checkpoints.require_same_setup(checkpoint, processes.engine(), args.world_size)
    # One epoch, so that a resume after the last step trains no further.
    assert len(cast(Sized, dataset)) == settings.max_steps * settings.global_batch_size, "the examples of all steps"
    meter = _Meter(on_log, on_step, save_at)
    use_cache = model.config.use_cache  # Trainer switches it off
    mask_by_position(model)  # for a model that load_model did not load
    with settings_errors():
        trainer = _Trainer(model, args, collate, dataset, callbacks=[meter])
    trainer.keep, trainer.best = settings.save_total_limit, best
    trainer.remove_callback(PrinterCallback)
    began, half = time.perf_counter(), 0
    try:
        with checkpoints.weights_only(checkpoint):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        examples, tokens = trainer.micro_batch
        kept = trainer.state.global_step == 0 or checkpoints.latest_complete(folder)  # else the weights have moved
        half = examples // 2 if processes.launched() == 1 and kept else 0
        if not half:
            raise TrainingError(
                f"step {trainer.state.global_step + 1}: out of memory with {examples} x {tokens:,} tokens in a forward pass; "
                f"{intact(folder)}. Try --resume --set training.gradient_checkpointing=true, or a new run with "
                "training.per_device_train_batch_size=1, --lora or a shorter train_length"
            ) from error
    finally:
        meter.stop()
        model.config.use_cache = use_cache
    if half:
        Console(stderr=True).print(f"out of memory: {half} in place of {examples} windows in a pass", style="yellow")
        del trainer
        model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        less = settings.model_copy(update={"per_device_train_batch_size": half})
        return train(
            model,
            dataset,
            collate,
            less,
            folder=folder,
            seed=seed,
            resume=True,
            on_log=on_log,
            on_step=on_step,
            save_at=save_at,
            best=best,
        )
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


class _Trainer(Trainer):
    """Trainer with guards before each update and around each save."""

    keep: int  # complete checkpoints
    best: Callable[[], int | None]
    micro_batch = (0, 0)  # examples, tokens
    _sliced: bool | None = None  # whether the loss is computed in slices; None before the first batch
    _apart = False  # whether packed texts were probed

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        """Restore the stock forward: Accelerate's copies all logits to float32. The loss gets the same autocast."""
        assert isinstance(self.model, torch.nn.Module)
        prepared = super()._prepare_for_training(*args, **kwargs)
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
        ids, mask, net = inputs["input_ids"], inputs["attention_mask"], cast(PreTrainedModel, self.model)
        if self._sliced is None:  # slices need plain logits, and Liger has its own loss
            other = self.label_smoother is not None or self.args.use_liger_kernel
            worth = worth_chunking(ids.numel(), net.config.get_text_config().vocab_size, net.device.type)
            self._sliced = not other and worth and can_be_sliced(net)
        sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled
        if mask.ndim == 4 and not self._apart and not sharded:  # the first packed texts; shards need all processes
            require_apart(net, ids, inputs["position_ids"], mask, precision=precision_of(self.args))
            self._apart = True
        self.micro_batch = tuple(ids.shape)
        self.state.num_input_tokens_seen += ids.numel() * self.args.world_size
        with in_slices(net) if self._sliced else nullcontext():
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.is_deepspeed_enabled:  # its engine updates the weights inside backward
            self._require_finite(loss.detach())
        return (loss, outputs) if return_outputs else loss

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """Check gradient norm and losses since the last log right before each optimizer step."""
        norm = super()._get_grad_norm(model, grad_norm)
        self._require_finite(self._tr_loss, norm)
        return norm

    def _require_finite(self, loss: torch.Tensor, norm: torch.Tensor | float = 0.0) -> None:
        """Stop the run before an optimizer step that would write NaN or infinity into the weights.

        Under fp16 the loss scaler skips steps with infinite gradients, so only the loss is checked.
        """
        args = self.args
        if math.isfinite(float(loss if args.fp16 else loss + norm)):
            return
        what = "the gradient norm" if math.isfinite(float(loss)) else "the loss"
        other = "bf16" if args.fp16 else "float32" if args.bf16 else None
        precision = f"training.precision={other} or " if other else ""
        raise NonFiniteLossError(
            f"step {self.state.global_step + 1}: {what} is not finite, and the weights were not updated; "
            f"{intact(Path(str(args.output_dir)))}. Try {precision}a training.learning_rate below {args.learning_rate:g} in a "
            "new run (another --out)"
        )

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


class _Meter(TrainerCallback):
    """Call ``on_step`` and ``on_log``, and show progress; steps with a checkpoint and the last step are logged too."""

    def __init__(
        self, on_log: Callable[[dict[str, Any]], None], on_step: Callable[[int], None], save_at: Collection[int]
    ) -> None:
        self._on_log, self._on_step, self._save_at = on_log, on_step, save_at
        self.tokens_before, self.paused = 0, 0.0  # paused: seconds in ``on_step``
        self._display, self._loss = ExitStack(), "-"

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.tokens_before = self._tokens = state.num_input_tokens_seen
        self._began = self._time = time.perf_counter()
        if state.is_world_process_zero:
            display = progress("training", state.max_steps, Console(stderr=True), done=state.global_step)
            self._work = self._display.enter_context(display)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        step = state.global_step
        control.should_save |= step in self._save_at
        # Trainer keeps no running loss in a checkpoint, so a resume logs the mean of the steps after it.
        control.should_log |= control.should_save
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
        if state.is_world_process_zero:
            record = {key: logs.get(key) for key in ("loss", "learning_rate", "grad_norm")}
            self._on_log({"step": state.global_step, **record, "tokens": tokens, "tokens_per_second": speed})
        self._show(state)

    def _show(self, state: TrainerState) -> None:
        if state.is_world_process_zero:
            seconds = time.perf_counter() - self._began - self.paused
            speed = (state.num_input_tokens_seen - self.tokens_before) / seconds
            status = f"step {state.global_step:,}/{state.max_steps:,}, loss {self._loss}, {speed:,.0f} tokens/s"
            self._work.reach(state.global_step, status=status)

    def stop(self) -> None:
        """End the display, also after an error."""
        self._display.close()
