"""Plan a run: estimate memory, disk and time, print them, and refuse what is certain to exceed this machine.

One step of the model's config runs without data (``model/cost.py``), and its bytes and operations are divided over the GPUs.
"""

import math
import shutil
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.filesize import decimal
from rich.table import Column, Table
from transformers import PretrainedConfig

from skipwise.data.examples import can_skip
from skipwise.errors import ModelError, RunError, counted
from skipwise.method.lengths import format_length
from skipwise.model import lora
from skipwise.model.config import FULL, experts_of, load_config, reach_of, rope_of, slides_in_some
from skipwise.model.cost import (
    FOUR_BITS,
    OPTIMIZER_BYTES,
    StepCost,
    fastest_batch,
    machine_memory,
    meta_model,
    step_cost,
)
from skipwise.model.extension import KEPT, Extension, extension_of
from skipwise.model.forward import choose_precision, default_device, dtype_of
from skipwise.progress import doing
from skipwise.recipes.names import display_name
from skipwise.recipes.schema import Lora, Recipe, Training
from skipwise.training import processes
from skipwise.training.arguments import accumulation, known_fields
from skipwise.training.prepare import PreparedRun, window_of

ROOM = 1.5e9  # bytes of a GPU that the CUDA context and fragmentation take
_ADAMW = ("adamw_torch", "adamw_torch_fused")
_FILLED = 0.9  # of the memory, which the chosen micro-batch may take
_FULL_PASS = 2**14  # tokens; with 2,048 a model of 7B reached 12 to 20% of an H200's peak, as if it waited for kernels
_LARGE = 16  # times the original length
_MOST_PACKED = 4096  # packed conversations that are searched for a place to skip


@dataclass(frozen=True)
class Hardware:
    """GPUs; several hold shards of weights, gradients and optimizer (ZeRO-3), or each a whole model in 4 bits."""

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
    micro: int  # examples in a pass
    cost: StepCost  # of one micro-batch
    operations: float  # of one step, over all GPUs
    weights: float  # in a sharded run also the two layers that are gathered at a time
    gradients: float  # as they accumulate
    optimizer: float  # Adam's two moments, for example; in a sharded run also the float32 weights
    activations: float  # peak of what backward needs and the current operation holds
    loading: float  # before training, without gradients and optimizer
    hours: float  # of the whole run

    @property
    def memory(self) -> float:
        """Return the peak in bytes."""
        return max(self.loading, self.weights + self.gradients + self.optimizer + self.activations)


def estimate_cost(
    config: PretrainedConfig,
    recipe: Recipe,
    window: int,
    batch: int,
    hardware: Hardware,
    micro: int | None = None,
    cost: StepCost | None = None,
) -> CostEstimate:
    """Estimate a run of ``batch`` windows a step, ``micro`` at a time on each GPU (default: the recipe's).

    ``cost`` is that of one micro-batch, if it is known; it takes seconds.

    On one GPU, weights are float32 under autocast. With LoRA, frozen weights have the computing precision, or in 4 bits
    0.53 bytes each, scales included. On several GPUs, weights and gradients are bf16 shards, and the optimizer's shard
    holds float32 weights and AdamW's moments: together 16 bytes for each trained parameter (Rajbhandari et al., 2020).
    """
    settings, rules = recipe.training, recipe.lora
    micro = min(micro or settings.per_device_train_batch_size or 1, batch)
    four_bits = rules is not None and rules.load_in_4bit  # each GPU holds all of it
    sharded = hardware.gpus > 1 and not four_bits
    shards = hardware.gpus if sharded else 1
    low = settings.precision != "float32" and (sharded or rules is not None)
    cost = cost or step_cost(
        config,
        window,
        micro,
        precision="float32" if sharded or settings.precision == "float32" else "bf16",
        weights=torch.bfloat16 if low else torch.float32,
        checkpointing=has_checkpointing(settings),
        rules=rules,
    )
    saved = (cost.weights / cost.parameters - FOUR_BITS) * cost.quantizable if four_bits else 0
    operations = cost.operations * batch / micro
    each, of_embedding = OPTIMIZER_BYTES.get(settings.optim, (8.0, 8.0))  # an unknown one counts as AdamW
    moments = each * (cost.trained - cost.embedded) + of_embedding * cost.embedded
    weights = (cost.weights - saved) / shards + (2 * cost.block + cost.output if sharded else 0)
    return CostEstimate(
        window,
        batch,
        micro,
        cost,
        operations,
        weights=weights,
        gradients=(2 if sharded else 4) * cost.trained / shards,
        optimizer=12 * cost.trained / shards if sharded else moments,
        activations=cost.activations,
        loading=weights if sharded else (2 if low and rules else 4) * cost.parameters - saved,
        hours=operations * settings.max_steps / (hardware.gpus * hardware.peak * hardware.mfu) / 3600,
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


def micro_batch(
    config: PretrainedConfig, recipe: Recipe, window: int, hardware: Hardware, processes: int, *, here: bool = False
) -> int:
    """Return the windows in a pass: the recipe's, or the most that 90% of the memory hold, a power of two.

    At most 16,384 tokens. ``here``, on a CPU, it is the fastest of 1, 2 and 4.
    """
    if given := recipe.training.per_device_train_batch_size:
        return given
    share, timed = recipe.training.global_batch_size // processes, here and default_device().type == "cpu"
    fits = [1]
    for number in (2, 4) if timed else (2, 4, 8, 16, 32, 64):
        if experts_of(config) or share % number or number * window > _FULL_PASS:
            break
        needed = estimate_cost(config, recipe, window, share, hardware, number).memory
        if needed > _FILLED * hardware.memory or not hardware.holds(needed):
            break
        fits.append(number)
    if timed and len(fits) > 1:
        return fastest_batch(config, window, fits, choose_precision(recipe.training.precision))
    return fits[-1]


def with_micro_batch(
    run: PreparedRun, chosen: int | None = None, launch: str | None = None, workers: int = 1
) -> PreparedRun:
    """Return the run with its windows in a pass: ``chosen`` before a resume, or what this machine's free memory holds.

    ``launch`` and ``workers`` are the engine and the processes of a dry run.
    """
    workers, memory = max(workers, processes.launched()), machine_memory(run.device)
    if run.device.type == "cuda":
        torch.cuda.empty_cache()  # of a fit
        memory = torch.cuda.mem_get_info()[0]
    hardware = Hardware(workers if processes.sharding(launch) else 1, memory or 0)
    if chosen and run.recipe.training.global_batch_size % (chosen * workers):  # of fewer processes
        chosen = None
    number = chosen or micro_batch(run.config, run.recipe, run.window, hardware, workers, here=True)
    training = run.recipe.training.model_copy(update={"per_device_train_batch_size": number})
    return replace(run, recipe=run.recipe.model_copy(update={"training": training}))


def smallest_change(config: PretrainedConfig, recipe: Recipe, window: int, hardware: Hardware) -> str:
    """Return the first options of ``skipwise plan`` with which a run fits, or nothing.

    Single windows in a pass with activation checkpointing; then also AdamW's moments in 8 bits (Dettmers et al., 2022), LoRA,
    a base in 4 bits, or up to 64 GPUs.
    """
    settings, rules, gpus = recipe.training, recipe.lora or Lora(), hardware.gpus
    batch = settings.global_batch_size
    light = settings.model_copy(update={"per_device_train_batch_size": 1, "gradient_checkpointing": True})
    small = "--set training.per_device_train_batch_size=1 " if (settings.per_device_train_batch_size or 1) > 1 else ""
    small += "" if has_checkpointing(settings) else "--set training.gradient_checkpointing=true "
    lora = "" if recipe.lora else "--lora "
    eight_bits = light.model_copy(update={"optim": "adamw_8bit"})
    four_bits = rules.model_copy(update={"load_in_4bit": True})
    runs = [
        ("", gpus, light, recipe.lora),
        ("--set training.optim=adamw_8bit", gpus, eight_bits, recipe.lora),
        (lora, gpus, light, rules),
        (f"{lora}--set lora.load_in_4bit=true", gpus, light, four_bits),
        *((f"{lora}--gpus {more}", more, light, rules) for more in (2, 4, 8, 16, 32, 64) if more > gpus),
    ]
    parameters = meta_model(config).num_parameters()
    steps: dict[tuple[bool, bool], StepCost] = {}  # neither bits nor the number of shards change a micro-batch
    for options, number, training, rank in runs:
        if batch % number or (gpus > 1 and "8bit" in options):  # of shards
            continue
        moments = OPTIMIZER_BYTES.get(training.optim, (8.0, 8.0))[0]
        if rank is None and (8 + moments) * parameters > number * hardware.memory:  # even without activations
            continue
        changed = recipe.model_copy(update={"training": training, "lora": rank})
        sharded = number > 1 and not (rank and rank.load_in_4bit)
        step = steps.get((rank is None, sharded))
        estimate = estimate_cost(config, changed, window, batch, replace(hardware, gpus=number), cost=step)
        steps[rank is None, sharded] = estimate.cost
        if hardware.holds(estimate.memory):
            return f"{small}{options}".strip() + f" ({_bytes(estimate.memory)} at the peak)"
    return ""


def require_fits(recipe: Recipe, folder: Path | None, *, several: bool = False) -> None:
    """Refuse a run that is certain to exceed this machine's memory or the disk of ``folder``.

    Lower bounds, without activations. ``folder`` is None for a resumed run; ``several`` processes may share the model.
    """
    training, rules, parameters = recipe.training, recipe.lora, meta_model(load_config(recipe.model)).num_parameters()
    device, moments = default_device(), OPTIMIZER_BYTES.get(training.optim, (0.0, 0.0))[0]
    if rules:
        held = 0.5 if rules.load_in_4bit else dtype_of(choose_precision(training.precision, device)).itemsize
        fix = "lora.load_in_4bit=true, or a smaller model"
    else:
        held, fix = 8 + moments, "--lora, a smaller model, or several GPUs (--launch zero3)"
    needs: list[tuple[str, float, int | None, str]] = []  # bytes per parameter, and bytes there
    if not several:
        needs.append((f"training {recipe.model} in memory", held, machine_memory(device), fix))
        merged = 4 if rules and rules.save_as == "merged" else 0
        needs.append(("merging LoRA", merged, machine_memory(torch.device("cpu")), "lora.save_as=adapter"))
    if folder is not None:
        parent = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        free = shutil.disk_usage(parent).free
        needs.append(
            (
                f"checkpoints and model in {folder}",
                disk_bytes(recipe),
                free,
                "training.save_total_limit=1, or make room",
            )
        )
    for what, each, available, fix in needs:
        if available is not None and (needed := int(each * parameters)) > available:
            raise RunError(f"{what} takes {decimal(needed)} or more, and {decimal(available)} are there; choose {fix}")


def disk_bytes(recipe: Recipe) -> float:
    """Return the most bytes per parameter that a run has on disk: checkpoints and the model."""
    training, rules = recipe.training, recipe.lora
    checkpoint = 0.0 if rules else 4 + OPTIMIZER_BYTES.get(training.optim, (0.0, 0.0))[0]
    model = 0 if rules and rules.save_as == "adapter" else getattr(torch, training.save_dtype).itemsize
    saved = math.ceil(training.max_steps / training.save_steps)
    kept = training.save_total_limit + recipe.evaluation.save_best
    return max(min(saved, kept + 1) * checkpoint, min(saved, kept) * checkpoint + model)


def print_plan(run: PreparedRun, console: Console) -> None:
    """Print the documents, tokenizer, steps, tokens and trained parameters of a run."""
    recipe, store = run.recipe, run.store
    training, lengths = recipe.training, store.lengths[run.split.train]
    tokens = training.max_steps * training.global_batch_size * run.window
    _print_extension(recipe, run.config, run.extension, console)
    lines = [
        f"text: {recipe.data.source}, {counted(len(store), 'document')}, {int(store.lengths.sum()):,} tokens; "
        f"{len(run.split.held_out):,} held out by name",
        run.split.summary,
    ]
    if trained := run.dataset.trained_tokens:
        lines.append(f"{trained:,} of {int(lengths.sum()):,} tokens are trained ({trained / int(lengths.sum()):.0%})")
    if short := len(run.split.train) - len(run.dataset.documents):
        lines.append(f"left out {counted(short, 'document')} without a loss token after the first")
    if len(packed := run.split.train[lengths < run.train_length]):
        lines.append(
            f"packed: {counted(len(packed), 'document')} under {run.train_length:,} tokens; none reads another"
        )
        if recipe.positions.scheme == "pose" and not can_skip(store, packed[:_MOST_PACKED]).any():
            lines.append(
                "None of them has a turn of the assistant before its last, where positions could skip: they train no position "
                f"beyond {run.train_length:,}. Add longer documents or conversations"
            )
    tokenizer, warmup = run.tokenizer, training.warmup_steps
    lines += [
        f"tokenizer: examples begin {'without a BOS' if store.bos is None else f'with {tokenizer.bos_token}'}; "
        f"{tokenizer.eos_token or 'no EOS'} ends an answer",
        f"training: {counted(training.max_steps, 'step')} of {training.global_batch_size:,} x {run.window:,} tokens = {tokens:,} "
        f"tokens ({tokens / int(lengths.sum()):,.1f} epochs), {run.precision} on {run.device.type}",
        f"learning rate {training.learning_rate:g} after a warm-up of "
        f"{f'{warmup:.0%} of the steps' if 0 < warmup < 1 else counted(int(warmup), 'step')}, {training.optim}; "
        f"{counted(training.per_device_train_batch_size or 1, 'window')} in a pass",
    ]
    if slides_in_some(run.config):
        kinds = run.config.layer_types
        lines.append(
            f"{kinds.count(FULL)} of {len(kinds)} layers attend to all tokens and are extended; the others attend to the last "
            f"{run.config.sliding_window:,} tokens"
        )
    if recipe.lora:
        trained, parameters = lora.trained_share(run.config, recipe.lora)
        share = f"{trained:,} of {parameters:,} parameters are trained ({trained / parameters:.2%})"
        lines.append(f"LoRA of rank {recipe.lora.r}: {share}")
    for line in lines:
        console.print(line)


def _print_extension(recipe: Recipe, config: PretrainedConfig, extension: Extension, console: Console) -> None:
    """Print lengths and interpolation, the scaling that is replaced, and a note on a large factor."""
    original, target = extension.rope.original_length, extension.target_length
    kind, factor = rope_of(config).get("rope_type", "default"), rope_of(config).get("factor")
    current = original if kind == "default" else max(reach_of(config, original) or 0, original)
    if extension.interpolation == KEPT:
        text = f"{recipe.model}: keeps its window of {target:,} tokens, trained on {recipe.train_length_of(original):,}"
        console.print(f"{text} ({recipe.positions.scheme})", style="bold")
        return
    unfitted = recipe.is_fitted and extension.interpolation == "power"
    name = "fitted" if unfitted else extension.description
    console.print(
        f"{recipe.model}: {current:,} -> {target:,} tokens (x{extension.factor:g}, {name}, {recipe.positions.scheme})",
        style="bold",
    )
    if kind != "default":
        console.print(
            f"the model's RoPE scaling, {kind}{f' x{factor:g}' if factor else ''}, is replaced: x{extension.factor:g} starts "
            f"from the original length, {original:,} tokens"
        )
    if target >= _LARGE * original and extension.interpolation in ("yarn", "yarn-revised"):
        console.print(
            f"{target / original:g} times the original window: at {_LARGE} times YaRN fails on one of two models, and fitted "
            "settings do not. Choose --interpolation fitted (docs/results.md)",
            style="yellow",
        )


def print_examples(run: PreparedRun, console: Console) -> None:
    """Print the positions of the first three examples, chunk by chunk."""
    data = run.dataset
    for number in range(min(3, len(data))):
        positions = data[number]["position_ids"]
        cuts = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
        parts = [f"{positions[begin]:,}..{positions[end - 1]:,}" for begin, end in pairwise(cuts)][:4]
        if more := len(cuts) - 1 - len(parts):
            parts.append(counted(more, "more chunk"))
        console.print(f"example {number}: positions {'; '.join(parts)}")


def compare_costs(recipe: Recipe, hardware: Hardware, console: Console) -> None:
    """Print the costs of a run and of full-length training, and what reduces memory if the run does not fit."""
    config = load_config(recipe.model)
    extension = extension_of(config, recipe)
    own, ours = window_of(recipe, extension), display_name(recipe.positions.scheme)
    batch, gpus = recipe.training.global_batch_size, hardware.gpus
    accumulation(recipe.training, gpus)
    known_fields(recipe.training)  # refuses unknown fields
    if experts := experts_of(config):
        raise ModelError(
            f"model_type {config.model_type} is a mixture of {experts} experts, and their step cannot run without data; plan a "
            "dense model with as many active parameters, and add 16 bytes for each inactive one"
        )
    rows: dict[str, CostEstimate] = {}
    with doing("running one step of each without data", console):
        micro = micro_batch(config, recipe, own, hardware, gpus)
        for name, window in {ours: own, display_name("full_length"): extension.target_length}.items():
            # The same tokens in a step and in a micro-batch, but at least one window on each GPU.
            windows = math.ceil(batch * own / window / gpus) * gpus
            rows[name] = estimate_cost(config, recipe, window, windows, hardware, max(1, micro * own // window))
    _print_extension(recipe, config, extension, console)
    cost = rows[ours].cost
    console.print(f"{cost.parameters:,} parameters, {cost.trained:,} of them trained")
    console.print(_table(rows, recipe.training.max_steps, hardware))
    whole = recipe.lora is not None and recipe.lora.load_in_4bit
    shared = "with all weights on each (--launch ddp)" if whole else "that share the weights (--launch zero3)"
    on = f"{gpus} GPUs {shared}" if gpus > 1 else "one GPU"
    console.print(
        f"Planned for {on}, {_bytes(hardware.memory)} each; time at {hardware.mfu:.0%} of "
        f"{hardware.peak / 1e12:.0f} TFLOP/s each (--mfu). Short windows may reach less: 12% with LoRA and 20% with all "
        f"weights on an H200. Bytes are those of tensors; {_bytes(ROOM)} must stay free."
    )
    memory = (
        4 * cost.parameters if gpus > 1 or (recipe.lora and recipe.lora.save_as == "merged") else 0
    )  # a whole model
    also = f", and {_bytes(memory)} of the machine's memory" if memory else ""
    console.print(
        f"It also needs {_bytes(disk_bytes(recipe) * cost.parameters)} of disk for checkpoints and model{also}."
    )
    optim = recipe.training.optim
    if optim not in OPTIMIZER_BYTES or (gpus > 1 and optim not in _ADAMW):
        console.print(f"training.optim {optim} is counted as AdamW.", style="yellow")
    if hardware.holds(rows[ours].memory):
        return
    with doing("searching for the smallest change that fits", console):
        change = smallest_change(config, recipe, own, hardware)
    fix = f"the smallest change that does: {change}" if change else "give more or larger GPUs (--gpus, --gpu-memory)"
    console.print(f"{ours} does not fit; {fix}", style="yellow", soft_wrap=True)


def _table(rows: dict[str, CostEstimate], steps: int, hardware: Hardware) -> Table:
    costs = list(rows.values())
    table = Table("", *(Column(name, justify="right") for name in rows), box=None, pad_edge=False)
    lines = {
        "windows a step": [f"{c.batch:,} of {format_length(c.window)}" for c in costs],
        "windows in a pass": [f"{c.micro}" for c in costs],
        "tokens in all": [f"{c.batch * c.window * steps / 1e6:,.1f} M" for c in costs],
        **{
            f"{part}, each GPU": [_bytes(getattr(c, part)) for c in costs]
            for part in ("weights", "gradients", "optimizer", "activations")
            if any(getattr(c, part) for c in costs)
        },
        "while loading, each GPU": [_bytes(c.loading) for c in costs],
        "at the peak, each GPU": [_bytes(c.memory) for c in costs],
        f"fits in {_bytes(hardware.memory)}": ["yes" if hardware.holds(c.memory) else "no" for c in costs],
        "operations a step": [f"{c.operations / 1e12:,.1f} TFLOP" for c in costs],
        "time": [f"{c.hours:,.1f} h" if c.hours >= 1 else f"{c.hours * 60:.1f} min" for c in costs],
    }
    for name, cells in lines.items():
        table.add_row(name, *cells)
    return table


def _bytes(number: float) -> str:
    return decimal(int(number))
