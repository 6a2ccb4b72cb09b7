"""A recipe's training settings -> one ``transformers.Trainer`` run, resumed exactly and guarded.

Trainer trains, Accelerate and DeepSpeed place the model on the machines. The loss is the stock model's own:
the mean negative log-likelihood in nats over all labels of the global batch, however it is accumulated.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch.utils.data import DataLoader, Dataset, Subset
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    get_scheduler,
)
from transformers.integrations import get_reporting_integration_callbacks
from transformers.utils import is_liger_kernel_available
from transformers.utils import logging as transformers_logging

from skipwise import guards, recipe
from skipwise.errors import RecipeError, RunError, TrainingError
from skipwise.progress import TrainingProgress

Precision = Literal["bf16", "fp16", "float32"]

# Fields of TrainingArguments that something else in the recipe decides, and what to set instead.
_DECIDED = {
    "output_dir": "checkpoints lie in the run folder: choose it with --out",
    "seed": "set seed at the top of the recipe",
    "data_seed": "set seed at the top of the recipe",
    "bf16": "set training.precision",
    "fp16": "set training.precision",
    "num_train_epochs": "set training.max_steps",
    "resume_from_checkpoint": "pass --resume",
    "save_strategy": "set training.save_steps",
    "save_only_model": "a checkpoint must be resumable: set training.save_total_limit to hold less",
    "logging_strategy": "set training.logging_steps",
    "logging_nan_inf_filter": "a loss that is not finite stops the run",
    "remove_unused_columns": "the collator decides what the model sees",
    "train_sampling_strategy": "an example is known by its place in the run, which resume relies on",
    "dataloader_in_order": "an example is known by its place in the run, which resume relies on",
    "ignore_data_skip": "resume is exact",
    "include_num_input_tokens_seen": "tokens are always counted",
    "auto_find_batch_size": "set training.per_device_train_batch_size",
    "eval_strategy": "the evaluation section measures after training",
    "load_best_model_at_end": "the evaluation section measures after training",
    "push_to_hub": "nothing is published while it is trained; publish the run's model folder afterwards",
}


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
    with _settings_errors():
        trainer = _Trainer(
            model=model,
            args=args,
            train_dataset=examples,
            data_collator=collate,
            callbacks=[guard, meter, display],
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


def training_arguments(settings: recipe.Training, folder: Path, seed: int) -> TrainingArguments:
    """Turn the recipe's training section into ``TrainingArguments``, and try what they name on a stand-in.

    ``gradient_accumulation_steps`` follows from the global batch, the micro-batch and the processes.

    Raises:
        RecipeError: an unknown field, a value it does not take, a package that is not installed, or settings
            that contradict each other.
    """
    given = _known_fields(settings)
    use_cpu = given.setdefault("use_cpu", not torch.accelerator.is_available())
    device = (
        torch.device("cpu") if use_cpu else torch.accelerator.current_accelerator() or torch.device("cpu")
    )
    precision = choose_precision(settings.precision, device)
    given["gradient_accumulation_steps"] = _accumulation(settings, device)
    on_gpu = device.type == "cuda"
    defaults = {
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_num_workers": min(4, os.cpu_count() or 1) if on_gpu else 0,
        "dataloader_pin_memory": on_gpu,
    }
    fixed = {
        "output_dir": str(folder),
        "seed": seed,
        "data_seed": seed,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "save_strategy": "steps",
        "save_total_limit": None,  # guards.rotate does it, after the new checkpoint is complete
        "logging_nan_inf_filter": False,
        "remove_unused_columns": False,
        "train_sampling_strategy": "sequential",
    }
    with _settings_errors():
        args = TrainingArguments(**{**defaults, **given, **fixed})
        examples = args.train_batch_size * args.world_size * args.gradient_accumulation_steps
        _check_arguments(args)
    assert examples == settings.batch_size, f"{examples} examples a step instead of {settings.batch_size}"
    return args


def choose_precision(requested: str, device: torch.device | str) -> Precision:
    """Return the precision to train in on ``device``; weights stay float32 under bf16 and fp16 autocast.

    ``auto`` takes bf16 where the hardware multiplies it: a GPU that has it, or a CPU with AVX512-BF16 or
    AMX-BF16. Elsewhere bf16 is emulated, slower than float32.

    Raises:
        RecipeError: fp16 on a CPU, which has no loss scaling.
    """
    device = torch.device(device)
    if requested == "fp16" and device.type == "cpu":
        raise RecipeError("training.precision = 'fp16' needs a GPU; on this CPU take auto, bf16 or float32")
    if requested != "auto":
        return cast(Precision, requested)
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = device.type == "cpu" and bool(_cpu_flags() & {"avx512_bf16", "amx_bf16"})
    return "bf16" if fast else "float32"


class _Trainer(Trainer):
    """The stock Trainer with the guards in its way: before each update, and around each save."""

    def __init__(self, *, guard: guards.NonFiniteGuard, keep: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.guard, self.keep = guard, keep
        self.micro_batch: tuple[int, ...] = (0, 0)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        with _settings_errors():
            return super().create_optimizer(*args, **kwargs)

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        with _settings_errors():
            return super().create_scheduler(*args, **kwargs)

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        """Take back Accelerate's forward, which copies all logits to float32, in every step and for no use.

        The loss is taken under the same autocast instead, and the model stays stock after training.
        """
        prepared = super()._prepare_for_training(*args, **kwargs)
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
        self.micro_batch = tuple(ids.shape)
        self.state.num_input_tokens_seen += ids.numel() * self.args.world_size
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self.guard.see_loss(loss.detach())
        if self.is_deepspeed_enabled:  # its engine updates the weights inside backward
            self.guard.check(self.args, self.state.global_step + 1)
            self.guard.see_loss(loss.detach())
        return (loss, outputs) if return_outputs else loss

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


def _known_fields(settings: recipe.Training) -> dict[str, Any]:
    """The recipe's fields of TrainingArguments, each of the type it asks for."""
    hints = _argument_types()
    for name in settings.model_extra or {}:
        if name in _DECIDED:
            raise RecipeError(f"training.{name} cannot be set: {_DECIDED[name]}")
        if name not in hints:
            valid = {*type(settings).model_fields, *hints} - _DECIDED.keys()
            raise RecipeError(
                f"unknown key training.{name}{recipe.nearest(name, valid)}; "
                "valid are the fields of transformers.TrainingArguments, batch_size and precision"
            )
    given = settings.model_dump(exclude={"batch_size", "precision"})
    given = {name: _typed(name, value, hints[name]) for name, value in given.items()}
    if "gradient_checkpointing" in given and "activation_checkpointing" in hints:  # its name from v5.2x on
        given["activation_checkpointing"] = given.pop("gradient_checkpointing")
    return given


@cache
def _argument_types() -> dict[str, Any]:
    hints = get_type_hints(TrainingArguments)
    return {field.name: hints[field.name] for field in fields(TrainingArguments) if field.init}


def _typed(name: str, value: Any, hint: Any) -> Any:
    rules = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)
    try:
        typed = TypeAdapter(hint | None, config=rules).validate_python(value)
    except ValidationError as error:
        raise RecipeError(f"training.{name} = {value!r}: {error.errors()[0]['msg']}") from None
    if isinstance(value, bool) and type(typed) in (int, float):
        raise RecipeError(f"training.{name} = {value!r}: must be a number, not true or false")
    return typed


@contextmanager
def _settings_errors() -> Iterator[None]:
    """What cannot be built from the settings is a mistake in them; around construction only."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        raise RecipeError(f"training: {error}") from error


def _check_arguments(args: TrainingArguments) -> None:
    """Build on a stand-in what Trainer builds only once the run folder is there."""
    if args.max_grad_norm is None or args.max_grad_norm < 0:
        raise RecipeError(
            f"training.max_grad_norm = {args.max_grad_norm} must be above 0, or 0 for no clipping"
        )
    if args.fsdp and args.parallel_mode.value != "distributed":
        raise RecipeError(
            "training.fsdp shards over processes, and this is one; start several with torchrun, or leave it out"
        )
    if args.use_liger_kernel and not is_liger_kernel_available():
        raise RecipeError(
            "training.use_liger_kernel = True needs the liger-kernel package; install it, or leave it out"
        )
    for callback in get_reporting_integration_callbacks(args.report_to):
        callback()
    DataLoader(
        cast(Dataset, [0]),
        num_workers=args.dataloader_num_workers,
        prefetch_factor=args.dataloader_prefetch_factor,
        persistent_workers=args.dataloader_persistent_workers,
    )
    if not args.deepspeed:  # its own file may decide both
        _check_optimizer(args)


def _check_optimizer(args: TrainingArguments) -> None:
    weights = [torch.nn.Parameter(torch.zeros(1))]
    if not args.optim_target_modules and "lomo" not in args.optim:  # those look into the model
        kind, options = Trainer.get_optimizer_cls_and_kwargs(args)
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):
            kind(weights, **options)
    get_scheduler(
        args.lr_scheduler_type,
        torch.optim.SGD(weights, lr=args.learning_rate),
        args.get_warmup_steps(args.max_steps),
        args.max_steps,
        cast(dict | None, args.lr_scheduler_kwargs),
    )


def _accumulation(settings: recipe.Training, device: torch.device) -> int:
    """Forward passes per optimizer step, so that any number of processes sees the same global batch."""
    launched = "WORLD_SIZE" in os.environ
    devices = torch.cuda.device_count() if device.type == "cuda" and not launched else 1
    processes = int(os.environ["WORLD_SIZE"]) if launched else max(devices, 1)
    batch, micro = settings.batch_size, settings.per_device_train_batch_size
    together = micro * processes
    if batch % together:
        raise RecipeError(
            f"training.batch_size = {batch} must be a multiple of {together} "
            f"(training.per_device_train_batch_size {micro} x {processes} processes); set batch_size="
            f"{max(together, batch // together * together)} or a per_device_train_batch_size that divides it"
        )
    given = (settings.model_extra or {}).get("gradient_accumulation_steps", batch // together)
    if given != batch // together:
        raise RecipeError(
            f"training.gradient_accumulation_steps = {given} contradicts training.batch_size {batch}, which "
            f"makes it {batch // together}; leave it out, or set batch_size={together * int(given)}"
        )
    return batch // together


def _cpu_flags() -> set[str]:
    """The first core's instruction sets as Linux names them; none known elsewhere."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((set(line.split()) for line in file if line.startswith("flags")), set())
    except OSError:
        return set()


def _resume_point(folder: Path, resume: bool, processes: int) -> Path | None:
    if resume:
        checkpoint = guards.latest_complete(folder)
        if checkpoint:
            guards.require_processes(checkpoint, processes)
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
