"""Turn a recipe's training section into ``transformers.TrainingArguments``, before the text is read.

Any field of TrainingArguments may be set, except those that Skipwise decides.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from transformers import Trainer, TrainingArguments
from transformers.integrations import get_available_reporting_integrations, get_reporting_integration_callbacks

from skipwise.errors import RecipeError, nearest, out_of_memory, reason
from skipwise.model.cost import CHECKPOINTING
from skipwise.model.forward import choose_precision, default_device
from skipwise.recipes.schema import Training
from skipwise.training import processes

_FIXED = {"remove_unused_columns": False, "train_sampling_strategy": "sequential", "logging_nan_inf_filter": False}
# Fields of TrainingArguments that Skipwise decides, with what to use instead; None: another value breaks positions or resume.
_DECIDED: dict[str, str | None] = {
    "output_dir": "--out",
    "resume_from_checkpoint": "--resume",
    **dict.fromkeys(("seed", "data_seed"), "seed at the top of the recipe"),
    **dict.fromkeys(("bf16", "fp16"), "training.precision"),
    "num_train_epochs": "training.max_steps",
    "gradient_accumulation_steps": "training.global_batch_size, the global batch",
    "auto_find_batch_size": "training.per_device_train_batch_size",
    "save_strategy": "training.save_steps",
    "save_only_model": "training.save_total_limit",
    "logging_strategy": "training.logging_steps",
    **dict.fromkeys(("eval_strategy", "eval_steps"), "evaluation.eval_steps"),
    "load_best_model_at_end": "evaluation.save_best=true",
    **dict.fromkeys(("deepspeed", "fsdp", "fsdp_config"), "--launch, or accelerate launch with its own config"),
    "use_cpu": "CUDA_VISIBLE_DEVICES= in the environment",
    "push_to_hub": "skipwise publish, after training",
    **dict.fromkeys((*_FIXED, "accelerator_config", "dataloader_in_order", "enable_jit_checkpoint")),
    **dict.fromkeys(("ignore_data_skip", "include_num_input_tokens_seen", "save_on_each_node")),
}


def training_arguments(settings: Training, folder: Path, seed: int) -> TrainingArguments:
    """Return the ``TrainingArguments`` of the recipe's training section, checked."""
    device = default_device()
    given = known_fields(settings)
    precision = choose_precision(settings.precision, device)
    # The same results up to rounding, without a copy of all weights, and faster.
    if device.type in ("cpu", "cuda") and given["optim"] == "adamw_torch":
        given["optim"] = "adamw_torch_fused"
    values: dict[str, Any] = {
        "report_to": "none",
        "project": "skipwise",
        "run_name": folder.absolute().parent.name,
        "disable_tqdm": True,
        "dataloader_num_workers": min(4, os.cpu_count() or 1) if device.type == "cuda" else 0,
        "dataloader_pin_memory": device.type == "cuda",
        "ddp_find_unused_parameters": False,
        **processes.engine_settings(),
        **given,
        **_FIXED,
        "output_dir": str(folder),
        "seed": seed,
        "data_seed": seed,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "use_cpu": device.type == "cpu",  # also on a Mac, where the model runs on the CPU
        "gradient_accumulation_steps": accumulation(settings, processes.launched()),
        "save_strategy": "steps",
        "save_total_limit": None,  # checkpoints.rotate removes old ones after the new one is complete
    }
    with settings_errors():
        args = TrainingArguments(**values)
        for callback in get_reporting_integration_callbacks(args.report_to):
            callback()  # a tracker that is not installed is an error
        if not (args.optim_target_modules or "lomo" in args.optim):  # they need the model
            Trainer.get_optimizer_cls_and_kwargs(args)
    args._n_gpu = min(args.n_gpu, 1)  # each process trains on one GPU
    assert args.world_size == processes.launched(), f"{args.world_size} processes train"
    return args


def known_fields(settings: Training) -> dict[str, Any]:
    """Return the section's fields of TrainingArguments, converted to their types."""
    hints, any_type, known = get_type_hints(TrainingArguments), ConfigDict(arbitrary_types_allowed=True), {}
    values = settings.model_dump(exclude={"global_batch_size", "precision", "save_dtype"})
    values["per_device_train_batch_size"] = settings.per_device_train_batch_size or 1  # auto is chosen with the model
    for name, value in values.items():
        field = name.replace("gradient_checkpointing", CHECKPOINTING)  # its name in this release of transformers
        if name in _DECIDED:
            instead = f"use {_DECIDED[name]}" if _DECIDED[name] else "it would break positions or the exact resume"
            raise RecipeError(f"training.{name} cannot be set: {instead}")
        if field not in hints:
            valid = {*type(settings).model_fields, *hints} - _DECIDED.keys()
            raise RecipeError(f"training.{name} is no field of transformers.TrainingArguments{nearest(name, valid)}")
        try:
            known[field] = TypeAdapter(hints[field] | None, config=any_type).validate_python(value)
        except ValidationError as error:
            raise RecipeError(f"training.{name} = {value!r}: {reason(error)}") from None
    if "report_to" in known:
        known["report_to"] = reported_to(settings)
    return known


def reported_to(settings: Training) -> list[str]:
    """Return the trackers of ``training.report_to``, a list or a string with commas; ``all`` are those installed."""
    value = (settings.model_extra or {}).get("report_to") or []
    names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else list(value)
    return get_available_reporting_integrations() if "all" in names else names


@contextmanager
def settings_errors() -> Iterator[None]:
    """Report errors of construction as mistakes in the settings."""
    try:
        yield
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        if out_of_memory(error):
            raise
        raise RecipeError(f"training: {reason(error)}; correct the setting, or leave it out") from error


def accumulation(settings: Training, workers: int) -> int:
    """Return the forward passes per optimizer step of each of ``workers`` processes."""
    batch, together = settings.global_batch_size, (settings.per_device_train_batch_size or 1) * workers
    if batch % together:
        raise RecipeError(
            f"training.global_batch_size = {batch} must be a multiple of {together} (per_device_train_batch_size x {workers} "
            f"processes); set global_batch_size={max(together, batch // together * together)}"
        )
    return batch // together
