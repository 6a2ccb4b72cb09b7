"""Estimate memory, disk and time of a run from the model's config alone.

One step runs without data (``model/cost.py``), and its bytes and operations are divided over the GPUs.
"""

import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.filesize import decimal
from transformers import PretrainedConfig

from skipwise.errors import ModelError, RunError
from skipwise.model.config import experts_of, load_config
from skipwise.model.cost import OPTIMIZER_BYTES, StepCost, machine_memory, meta_model, step_cost
from skipwise.model.precision import choose_precision, default_device, dtype_of
from skipwise.recipes.schema import Lora, Recipe, Training
from skipwise.training.arguments import known_fields
from skipwise.training.prepare import PreparedRun

ROOM = 1.5e9  # bytes of a GPU that the CUDA context and fragmentation take
ADAMW = ("adamw_torch", "adamw_torch_fused")
_FULL_PASS = 2**14  # tokens; with 2,048 a model of 7B reached 12 to 20% of an H200's peak, as if it waited for kernels


@dataclass(frozen=True)
class Hardware:
    """The GPUs of a plan; several hold shards of weights, gradients and optimizer (ZeRO-3, FSDP)."""

    gpus: int = 1
    memory: float = 80e9  # bytes of each GPU
    peak: float = 312e12  # bf16 operations a second of each GPU, by its maker
    mfu: float = 0.4  # MFU, the fraction of the peak that training reaches

    def holds(self, needed: float) -> bool:
        """Return whether a GPU holds the bytes needed and leaves ``ROOM`` free."""
        return needed + ROOM <= self.memory


@dataclass(frozen=True)
class CostEstimate:
    """Memory of one GPU in bytes, and time of the whole run."""

    window: int  # tokens of one example
    batch: int  # examples a step, over all GPUs
    cost: StepCost  # of one micro-batch
    operations: float  # of one step, over all GPUs
    weights: float  # in a sharded run also the two layers that are gathered at a time
    gradients: float  # as they accumulate
    optimizer: float  # Adam's two moments, for example; in a sharded run also the float32 weights
    activations: float  # peak of what backward needs and the current operation holds
    loading: float  # before training, when each process holds the whole model
    hours: float  # of the whole run

    @property
    def memory(self) -> float:
        """Return the peak in bytes."""
        return max(self.loading, self.weights + self.gradients + self.optimizer + self.activations)


def estimate_cost(
    config: PretrainedConfig, recipe: Recipe, window: int, batch: int, hardware: Hardware, micro: int | None = None
) -> CostEstimate:
    """Estimate a run of ``batch`` windows a step, ``micro`` at a time on each GPU (default: the recipe's).

    On one GPU, weights are float32 under autocast. With LoRA, frozen weights have the computing precision, or in 4 bits
    0.53 bytes each, scales included. On several GPUs, weights and gradients are bf16 shards, and the optimizer's shard
    holds float32 weights and AdamW's moments: together 16 bytes for each trained parameter (Rajbhandari et al., 2020).

    Raises:
        ModelError: the model is a mixture of experts.
    """
    settings, rules = recipe.training, recipe.lora
    known_fields(settings)  # refuses unknown fields
    if experts := experts_of(config):
        raise ModelError(
            f"model_type {config.model_type} is a mixture of {experts} experts, and their step cannot run without data; plan a "
            "dense model with as many active parameters, and add 16 bytes for each inactive one"
        )
    micro = min(micro or settings.per_device_train_batch_size, batch)
    gpus, sharded = hardware.gpus, hardware.gpus > 1
    frozen_low = rules is not None
    low = settings.precision != "float32" and (sharded or frozen_low)
    cost = step_cost(
        config,
        window,
        micro,
        precision="float32" if sharded or settings.precision == "float32" else "bf16",
        weights=torch.bfloat16 if low else torch.float32,
        checkpointing=has_checkpointing(settings),
        rules=rules,
        sliced_loss=not sharded,
    )
    loading = (2 if low and rules else 4) * cost.parameters
    four_bits = rules is not None and rules.load_in_4bit
    saved = (cost.weights / cost.parameters - 0.53) * cost.quantizable if four_bits else 0
    operations = cost.operations * batch / micro
    each, of_embedding = OPTIMIZER_BYTES.get(settings.optim) or (8, 8)  # an unknown one counts as AdamW
    return CostEstimate(
        window,
        batch,
        cost,
        operations,
        weights=(cost.weights - saved) / gpus + (2 * cost.block + cost.output if sharded else 0),
        gradients=(2 if sharded else 4) * cost.trained / gpus,
        optimizer=12 * cost.trained / gpus
        if sharded
        else each * (cost.trained - cost.embedded) + of_embedding * cost.embedded,
        activations=cost.activations,
        loading=loading - saved,
        hours=operations * settings.max_steps / (gpus * hardware.peak * hardware.mfu) / 3600,
    )


def has_checkpointing(settings: Training) -> bool:
    """Return True if a recipe sets activation checkpointing."""
    return bool((settings.model_extra or {}).get("gradient_checkpointing"))


def timed_tokens(prepared: PreparedRun) -> int:
    """Return the tokens of plain training, of all weights, that take as long as the run's training."""
    recipe = prepared.recipe
    tokens = recipe.training.max_steps * recipe.training.global_batch_size * prepared.window
    # Backward takes two forward passes, or one through frozen weights, as with LoRA; activation checkpointing adds one.
    return tokens * ((2 if recipe.lora else 3) + has_checkpointing(recipe.training)) // 3


def fuller_pass(
    config: PretrainedConfig, recipe: Recipe, window: int, hardware: Hardware
) -> tuple[int, CostEstimate] | None:
    """Return the most windows in a pass, of at most 16,384 tokens, that fit, and their cost; None if no more fit."""
    batch, gpus, micro = recipe.training.global_batch_size, hardware.gpus, recipe.training.per_device_train_batch_size
    for examples in range(min(_FULL_PASS // window, batch // gpus), micro, -1):
        if batch % (gpus * examples) == 0:
            estimate = estimate_cost(config, recipe, window, batch, hardware, examples)
            if hardware.holds(estimate.memory):
                return examples, estimate
    return None


def smallest_change(
    config: PretrainedConfig, recipe: Recipe, window: int, hardware: Hardware
) -> tuple[str, CostEstimate] | None:
    """Return the first options of ``skipwise plan`` with which a run fits, and its cost; None if none suffices.

    Tried are single windows in a pass with activation checkpointing, and then also AdamW's moments in 8 bits (Dettmers et
    al., 2022), LoRA, a base in 4 bits, and up to 64 GPUs.
    """
    settings, rules, gpus = recipe.training, recipe.lora or Lora(), hardware.gpus
    light = settings.model_copy(update={"per_device_train_batch_size": 1, "gradient_checkpointing": True})
    small = "--set training.per_device_train_batch_size=1 " if settings.per_device_train_batch_size > 1 else ""
    small += "" if has_checkpointing(settings) else "--set training.gradient_checkpointing=true "
    lora = "" if recipe.lora else "--lora "
    runs: list[tuple[str, dict[str, Any], int]] = [("", {}, gpus)]
    if recipe.lora is None and gpus == 1:
        eight = {"training": light.model_copy(update={"optim": "adamw_8bit"})}
        runs.append(("--set training.optim=adamw_8bit", eight, 1))
    runs.append((lora, {"lora": rules}, gpus))
    if gpus == 1:
        runs.append(
            (f"{lora}--set lora.load_in_4bit=true", {"lora": rules.model_copy(update={"load_in_4bit": True})}, 1)
        )
    runs += [(f"{lora}--gpus {more}", {"lora": rules}, more) for more in (2, 4, 8, 16, 32, 64) if more > gpus]
    for options, changes, more in runs:
        if settings.global_batch_size % more == 0:
            changed = recipe.model_copy(update={"training": light, **changes})
            estimate = estimate_cost(config, changed, window, settings.global_batch_size, replace(hardware, gpus=more))
            if hardware.holds(estimate.memory):
                return f"{small}{options}".strip(), estimate
    return None


def require_fits(recipe: Recipe, folder: Path | None, *, several: bool = False) -> None:
    """Refuse a run that is certain to exceed this machine's memory or the disk of ``folder``.

    Lower bounds, without activations. ``folder`` is that of a new run, None of a resumed run. ``several`` processes may share
    the model, so their memory is not certain.

    Raises:
        RunError: with the bytes needed and the bytes there.
    """
    training, rules = recipe.training, recipe.lora
    parameters = meta_model(load_config(recipe.model)).num_parameters()
    device = default_device()
    moments = (OPTIMIZER_BYTES.get(training.optim) or (0,))[0]
    held = 8 + moments
    fix = "--lora, a smaller model, or several GPUs (--launch zero3)"
    if rules:
        low = dtype_of(choose_precision(training.precision, device)).itemsize
        held, fix = 0.5 if rules.load_in_4bit else low, "lora.load_in_4bit=true, or a smaller model"
    merged = 4 if rules and rules.save_as == "merged" else 0
    model = 0 if rules and not merged else getattr(torch, training.save_dtype).itemsize
    checkpoint = 0 if rules else 4 + moments
    saved = math.ceil(training.max_steps / training.save_steps)
    kept = training.save_total_limit + recipe.evaluation.save_best
    written = max(min(saved, kept + 1) * checkpoint, min(saved, kept) * checkpoint + model)
    needs: list[tuple[str, float, int | None, str]] = []
    if not several:
        needs.append((f"training {recipe.model} in memory", held, machine_memory(device), fix))
        needs.append(("merging LoRA", merged, machine_memory(torch.device("cpu")), "lora.save_as=adapter"))
    if folder is not None:
        there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
        free = shutil.disk_usage(there).free
        needs.append((f"checkpoints and model in {folder}", written, free, "training.save_total_limit=1, or make room"))
    for what, each, available, fix in needs:
        if available is not None and (needed := int(each * parameters)) > available:
            raise RunError(f"{what} takes {decimal(needed)} or more, and {decimal(available)} are there; choose {fix}")
