"""Turn a recipe's training section into ``transformers.TrainingArguments``, and find mistakes before any work.

Any field of TrainingArguments may be set, except those that another setting of the recipe decides. The optimizer, the
schedule and the loader, which Trainer builds later, are first built for a single weight.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, cast, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedModel, SchedulerType, Trainer, TrainingArguments, get_scheduler
from transformers.integrations import get_available_reporting_integrations, get_reporting_integration_callbacks
from transformers.training_args import OptimizerNames
from transformers.utils import is_liger_kernel_available

from skipwise.errors import RecipeError, at_least, first_problem, nearest, one_of, out_of_memory, reason
from skipwise.model import checkpointing
from skipwise.model.precision import choose_precision, default_device
from skipwise.recipes.schema import Training
from skipwise.training import processes

OF_EVALUATION = (
    *("eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "eval_accumulation_steps", "do_eval", "do_predict"),
    *("eval_use_gather_object", "eval_do_concat_batches", "per_device_eval_batch_size", "prediction_loss_only"),
    *("bf16_full_eval", "fp16_full_eval", "batch_eval_metrics", "include_for_metrics"),
    *("metric_for_best_model", "greater_is_better"),
)
# Fields of TrainingArguments that another setting decides, and what to set instead.
_DECIDED = {
    "output_dir": "checkpoints are in the run folder: choose it with --out",
    "seed": "set seed at the top of the recipe",
    "data_seed": "set seed at the top of the recipe",
    "bf16": "set training.precision",
    "fp16": "set training.precision",
    "num_train_epochs": "set training.max_steps",
    "resume_from_checkpoint": "pass --resume",
    "save_strategy": "set training.save_steps",
    "enable_jit_checkpoint": "a run that is stopped keeps its last checkpoint: set training.save_steps",
    "save_only_model": "a checkpoint must be resumable: set training.save_total_limit to keep fewer",
    "logging_strategy": "set training.logging_steps",
    "logging_nan_inf_filter": "a non-finite loss stops the run",
    "remove_unused_columns": "the collator decides what the model gets",
    "train_sampling_strategy": "an exact resume needs the examples in order",
    "dataloader_in_order": "an exact resume needs the examples in order",
    "ignore_data_skip": "resume is exact",
    "include_num_input_tokens_seen": "tokens are always counted",
    "save_on_each_node": "the first process saves, to the run folder that all machines see",
    "auto_find_batch_size": "set training.per_device_train_batch_size",
    **dict.fromkeys(OF_EVALUATION, "the evaluation section measures after training"),
    **dict.fromkeys(("deepspeed", "fsdp", "fsdp_config"), "choose --launch, or accelerate launch with its own config"),
    "load_best_model_at_end": "set evaluation.keep=best and evaluation.steps",
    "push_to_hub": "nothing is published during training; afterwards, skipwise publish RUN OWNER/NAME",
}


def training_arguments(settings: Training, folder: Path, seed: int) -> TrainingArguments:
    """Return the ``TrainingArguments`` of the recipe's training section, checked.

    ``gradient_accumulation_steps`` follows from the global batch, the micro-batch and the number of processes.
    """
    given = known_fields(settings)
    device = default_device()
    given.setdefault("use_cpu", device.type == "cpu")  # also beside an accelerator that is not CUDA, as a Mac's
    precision = choose_precision(settings.precision, device)
    given["gradient_accumulation_steps"] = accumulation(settings, processes.launched())
    on_gpu = device.type == "cuda"
    # The same results up to rounding, without a copy of all weights, and faster.
    if device.type in ("cpu", "cuda") and given["optim"] == "adamw_torch":
        given["optim"] = "adamw_torch_fused"
    values = {
        "report_to": "none",
        "project": "skipwise",
        "run_name": folder.absolute().parent.name,
        "disable_tqdm": True,
        "dataloader_num_workers": min(4, os.cpu_count() or 1) if on_gpu else 0,
        "dataloader_pin_memory": on_gpu,
        "ddp_find_unused_parameters": False,
        **processes.engine_settings(),
        **given,
        "output_dir": str(folder),
        "seed": seed,
        "data_seed": seed,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "save_strategy": "steps",
        "save_total_limit": None,  # checkpoints.rotate removes old ones after the new one is complete
        "logging_nan_inf_filter": False,
        "remove_unused_columns": False,
        "train_sampling_strategy": "sequential",
    }
    with settings_errors():
        args = TrainingArguments(**values)
        _check_arguments(args)
    if args.device.type != device.type:
        raise RecipeError(
            f"training.use_cpu = {args.use_cpu} trains on {args.device.type}, and the teacher and what is measured run on "
            f"{device.type}; leave it out; an empty CUDA_VISIBLE_DEVICES in the environment hides the GPUs from all"
        )
    args._n_gpu = min(args.n_gpu, 1)  # each process trains on one GPU
    if args.world_size != processes.launched():
        raise RecipeError(
            f"{processes.launched()} processes were launched, but training counts {args.world_size}, so each would train "
            "alone; leave training.use_cpu and training.local_rank to the launcher"
        )
    examples = args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
    assert examples == settings.batch_size, f"{examples} examples a step instead of {settings.batch_size}"
    return args


def known_fields(settings: Training) -> dict[str, Any]:
    """Return the section's fields of TrainingArguments, converted to their types."""
    hints = _argument_types()
    for name in settings.model_extra or {}:
        if name in _DECIDED:
            raise RecipeError(f"training.{name} cannot be set: {_DECIDED[name]}")
        if checkpointing.renamed(name) not in hints:
            valid = {*type(settings).model_fields, *hints} - _DECIDED.keys()
            raise RecipeError(
                f"unknown key training.{name}{nearest(name, valid)}; "
                "valid are the fields of transformers.TrainingArguments, batch_size, precision and save_dtype"
            )
    given = settings.model_dump(exclude={"batch_size", "precision", "save_dtype"})
    given = {field: _typed(name, given[name], hints[field]) for name in given if (field := checkpointing.renamed(name))}
    for name, kind in (("optim", OptimizerNames), ("lr_scheduler_type", SchedulerType)):
        one_of(f"training.{name}", given[name], [one.value for one in kind])
    if "report_to" in given:
        given["report_to"] = reported_to(settings)
    return given


def reported_to(settings: Training) -> list[str]:
    """Return the trackers that ``training.report_to`` names: a list, or a string with commas, as ``--set`` passes it; of
    ``all``, those that are installed."""
    named = (settings.model_extra or {}).get("report_to") or []
    names = [name.strip() for name in named.split(",") if name.strip()] if isinstance(named, str) else list(named)
    return get_available_reporting_integrations() if "all" in names else names


@cache
def _argument_types() -> dict[str, Any]:
    hints = get_type_hints(TrainingArguments)
    return {field.name: hints[field.name] for field in fields(TrainingArguments) if field.init}


def _typed(name: str, value: Any, hint: Any) -> Any:
    rules = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)
    try:
        typed = TypeAdapter(hint | None, config=rules).validate_python(value)
    except ValidationError as error:
        raise RecipeError(f"training.{name} = {value!r}: {first_problem(error)[2]}") from None
    if isinstance(value, bool) and type(typed) in (int, float):
        raise RecipeError(f"training.{name} = {value!r}: must be a number, not true or false")
    return typed


@contextmanager
def settings_errors() -> Iterator[None]:
    """Report errors inside this context as mistakes in the settings; use it around construction only."""
    try:
        yield
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        if out_of_memory(error):
            raise
        raise RecipeError(f"training: {reason(error)}; correct the setting, or leave it out") from error


def _check_arguments(args: TrainingArguments) -> None:
    """Build what Trainer would build only after the run folder is made."""
    if args.max_grad_norm is None or args.max_grad_norm < 0:
        raise RecipeError(f"training.max_grad_norm = {args.max_grad_norm} must be above 0, or 0 for no clipping")
    if args.use_liger_kernel and not is_liger_kernel_available():
        raise RecipeError(
            "training.use_liger_kernel = True needs the liger-kernel package: pip install liger-kernel, or leave it out"
        )
    try:
        args.get_process_log_level()
    except KeyError as error:
        raise RecipeError(
            f"training.log_level or log_level_replica = {error} is no level; choose debug, info, warning, error or passive"
        ) from None
    accelerator = cast(Any, args.accelerator_config)
    if accelerator.split_batches or "num_steps" in (accelerator.gradient_accumulation_kwargs or {}):
        raise RecipeError(
            "training.accelerator_config: split_batches and gradient_accumulation_kwargs.num_steps change how many examples a "
            "step has; leave them out: training.batch_size and per_device_train_batch_size say it"
        )
    how = {"use_reentrant": False, **(getattr(args, f"{checkpointing.NAME}_kwargs") or {})}
    # Newer releases of transformers take these two themselves, and pass on the rest.
    if "every_n_layers" in signature(getattr(PreTrainedModel, f"{checkpointing.NAME}_enable")).parameters:
        how.pop("offload", None)
        if (layers := how.pop("every_n_layers", 1)) != 1:
            at_least("training.gradient_checkpointing_kwargs.every_n_layers", layers, 1)
    checkpoint(torch.ones_like, torch.zeros(1, requires_grad=True), **how)
    if args.torch_compile:
        torch.compile(torch.ones_like, backend=args.torch_compile_backend or "inductor", mode=args.torch_compile_mode)
    for callback in get_reporting_integration_callbacks(args.report_to):
        callback()
    DataLoader(
        cast(Dataset, [0]),
        num_workers=args.dataloader_num_workers,
        prefetch_factor=args.dataloader_prefetch_factor,
        persistent_workers=args.dataloader_persistent_workers,
        multiprocessing_context=getattr(args, "dataloader_multiprocessing_context", None),  # newer than v5.10
    )
    if not args.deepspeed:  # its own file may set optimizer and schedule
        _check_optimizer(args)


def _check_optimizer(args: TrainingArguments) -> None:
    weights = [torch.nn.Parameter(torch.zeros(1))]
    # Some need the model, and of them only whether their package is there is known.
    if args.optim_target_modules or "lomo" in args.optim:
        with suppress(ValueError):
            Trainer.get_optimizer_cls_and_kwargs(args, cast(PreTrainedModel, torch.nn.Linear(1, 1)))
    else:
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


def accumulation(settings: Training, workers: int) -> int:
    """Return the forward passes per optimizer step with which ``workers`` processes train on the global batch."""
    batch, micro = settings.batch_size, settings.per_device_train_batch_size
    together = micro * workers
    if batch % together:
        raise RecipeError(
            f"training.batch_size = {batch} must be a multiple of {together} "
            f"(training.per_device_train_batch_size {micro} x {workers} processes); set batch_size="
            f"{max(together, batch // together * together)} or a per_device_train_batch_size that divides it"
        )
    name = "gradient_accumulation_steps"
    given = _typed(name, (settings.model_extra or {}).get(name), int)
    if given not in (None, batch // together):
        raise RecipeError(
            f"training.{name} = {given} contradicts training.batch_size {batch}, which "
            f"makes it {batch // together}; leave it out, or set batch_size={together * given}"
        )
    return batch // together
