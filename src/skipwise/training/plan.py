"""Print what a run will do and cost: the dry run of ``extend``, and ``skipwise plan``."""

import math
from itertools import pairwise

import numpy as np
from rich.console import Console
from rich.filesize import decimal
from rich.table import Column, Table
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from skipwise.data.windows import can_skip
from skipwise.errors import counted
from skipwise.method.lengths import format_length
from skipwise.model import lora
from skipwise.model.config import FULL, load_config, reach_of, rope_of, slides_in_some
from skipwise.model.cost import OPTIMIZER_BYTES
from skipwise.model.extension import Extension, extension_of
from skipwise.progress import doing
from skipwise.recipes.names import arm_name
from skipwise.recipes.schema import Recipe
from skipwise.training.arguments import accumulation
from skipwise.training.cost import ADAMW, ROOM, CostEstimate, Hardware, estimate_cost, fuller_pass, smallest_change
from skipwise.training.prepare import PreparedRun, window_of

_LARGE = 16  # times the original length
_MOST_PACKED = 4096  # packed conversations that are searched for a place to skip


def print_plan(run: PreparedRun, console: Console) -> None:
    """Print the documents, tokenizer, steps, tokens and trained parameters of a run."""
    recipe, ext, store, data = run.recipe, run.extension, run.store, run.dataset
    training, lengths = recipe.training, store.lengths[run.split.train]
    tokens = training.max_steps * training.global_batch_size * run.window
    console.print(f"{recipe.model}: {_extension_line(run.config, ext, recipe)}", style="bold")
    lines = [
        _replaced_scaling(run.config, ext),
        f"text: {recipe.data.source}, {counted(len(store), 'document')}, {int(store.lengths.sum()):,} tokens; "
        f"{len(run.split.held_out):,} held out by name",
        run.split.summary,
    ]
    if short := len(run.split.train) - len(data.documents):
        lines.append(f"left out {counted(short, 'document')} without a loss token after the first")
    packed = run.split.train[lengths < run.train_length]
    if len(packed):
        lines.append(
            f"packed: {counted(len(packed), 'document')} under {run.train_length:,} tokens; none reads another"
        )
        if recipe.positions.scheme == "pose" and not can_skip(store, packed[:_MOST_PACKED]).any():
            lines.append(
                "None of them has a turn of the assistant before its last, where positions could skip: they train no position "
                f"beyond {run.train_length:,}. Add longer documents or conversations"
            )
    lines += [
        _special_tokens(run.tokenizer),
        f"training: {counted(training.max_steps, 'step')} of {training.global_batch_size:,} x {run.window:,} tokens = {tokens:,} "
        f"tokens ({tokens / int(lengths.sum()):,.1f} epochs), {run.precision} on {run.device.type}",
        f"learning rate {training.learning_rate:g} after a warm-up of {_warmup(training.warmup_steps)}, {training.optim}; "
        f"{counted(training.per_device_train_batch_size, 'window')} in a pass",
    ]
    lines += [_large_factor(ext), _sliding_layers(run.config)]
    if recipe.lora:
        trained, parameters = lora.trained_share(run.config, recipe.lora)
        share = f"{trained:,} of {parameters:,} parameters are trained ({trained / parameters:.2%})"
        lines.append(f"LoRA of rank {recipe.lora.r}: {share}")
    for line in filter(None, lines):
        console.print(line)


def _extension_line(config: PretrainedConfig, extension: Extension, recipe: Recipe) -> str:
    """Return lengths and interpolation as ``131,072 -> 524,288 tokens (x4, yarn, skipwise)``."""
    scaled = rope_of(config).get("rope_type", "default") != "default"
    original = extension.rope.original_length
    current = max(reach_of(config, original) or 0, original) if scaled else original
    unfitted = recipe.is_fitted and extension.interpolation == "power"
    name = "fitted" if unfitted else extension.told
    return f"{current:,} -> {extension.target_length:,} tokens (x{extension.factor:g}, {name}, {recipe.arm})"


def _replaced_scaling(config: PretrainedConfig, extension: Extension) -> str | None:
    """Return a sentence on the scaling that the extension replaces; None without one."""
    current, original = rope_of(config), extension.rope.original_length
    kind, factor = current.get("rope_type", "default"), current.get("factor")
    if kind == "default":
        return None
    reach = reach_of(config, original) or 0
    shorter = f"; the config gives it {reach:,}, more than the target" if reach > extension.target_length else ""
    return (
        f"the model's RoPE scaling, {kind}{f' x{factor:g}' if factor else ''}, is replaced: x{extension.factor:g} starts from "
        f"the original length, {original:,} tokens{shorter}"
    )


def _large_factor(extension: Extension) -> str | None:
    """Return a note on a factor at which YaRN failed in a measurement; None at smaller ones."""
    times = extension.target_length / extension.rope.original_length
    if times < _LARGE or extension.interpolation not in ("yarn", "yarn-revised"):
        return None
    return (
        f"note: {times:g} times the original window. At {_LARGE} times YaRN fails on one of two models, and fitted settings do not: "
        "--interpolation fitted, or skipwise fit (docs/fit.md)"
    )


def _sliding_layers(config: PretrainedConfig) -> str | None:
    """Return a sentence on the layers that are not extended; None without sliding layers."""
    if not slides_in_some(config):
        return None
    kinds, own_rope = config.layer_types, " and keep their RoPE" if FULL in config.rope_parameters else ""
    return (
        f"{kinds.count(FULL)} of {len(kinds)} layers attend to all tokens and are extended; the others attend to the last "
        f"{config.sliding_window:,} tokens{own_rope}"
    )


def _warmup(steps: float) -> str:
    return f"{steps:.0%} of the steps" if 0 < steps < 1 else counted(int(steps), "step")


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return how documents begin and answers end."""
    first = tokenizer("a").input_ids[:1]
    bos = tokenizer.bos_token is not None and first == [tokenizer.bos_token_id]
    begin = f"each document begins with {tokenizer.bos_token}" if bos else "documents begin without a BOS"
    eos = tokenizer.eos_token
    end = f"{eos} ends an answer" if eos else "no EOS, answers end by length"
    return f"tokenizer: {begin}; {end}; no padding is needed, every example is full"


def print_examples(run: PreparedRun, console: Console) -> None:
    """Print the positions of the first three examples, chunk by chunk."""
    data = run.dataset
    for number in range(min(3, len(data))):
        positions = data[number]["position_ids"]
        cuts = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
        parts = [f"{positions[begin]:,}..{positions[end - 1]:,}" for begin, end in pairwise(cuts)][:4]
        more = len(cuts) - 1 - len(parts)
        console.print(
            f"example {number}: positions " + "; ".join(parts) + (f"; {counted(more, 'more chunk')}" if more else "")
        )


def compare_costs(recipe: Recipe, hardware: Hardware, console: Console) -> None:
    """Print the costs of a run and of full-length training, and what reduces memory if the run does not fit."""
    config = load_config(recipe.model)
    extension = extension_of(config, recipe)
    own, ours = window_of(recipe, extension), arm_name(recipe.arm)
    batch, micro, gpus = recipe.training.global_batch_size, recipe.training.per_device_train_batch_size, hardware.gpus
    accumulation(recipe.training, gpus)
    planned = {ours: (recipe, own)}
    if recipe.positions.scheme != "full_length":
        planned[arm_name("full_length")] = recipe, extension.target_length
    rows = {}
    with doing("running one step of each without data", console):
        for name, (run, window) in planned.items():
            # The same tokens in a step and in a micro-batch, but at least one window on each GPU.
            windows = math.ceil(batch * own / window / gpus) * gpus
            rows[name] = estimate_cost(config, run, window, windows, hardware, max(1, micro * own // window))
    cost = rows[ours].cost
    console.print(
        f"{recipe.model}: {_extension_line(config, extension, recipe)}, {cost.parameters:,} parameters, "
        f"{cost.trained:,} of them trained",
        style="bold",
    )
    if replaced := _replaced_scaling(config, extension):
        console.print(replaced)
    console.print(_table(rows, recipe.training.max_steps, hardware))
    on = f"{gpus} GPUs that share the weights (ZeRO-3 or FSDP)" if gpus > 1 else "one GPU"
    console.print(
        f"Planned for {on}, {_bytes(hardware.memory)} each; time at {hardware.mfu:.0%} of "
        f"{hardware.peak / 1e12:.0f} TFLOP/s each (--mfu). Short windows may reach less: 12% with LoRA and 20% with all "
        f"weights on an H200. Bytes are those of tensors; {_bytes(ROOM)} must stay free."
    )
    if far := _large_factor(extension):
        console.print(far, style="yellow")
    optim = recipe.training.optim
    if optim not in OPTIMIZER_BYTES or (gpus > 1 and optim not in ADAMW):
        console.print(f"training.optim {optim} is counted as AdamW.", style="yellow")
    if hardware.holds(rows[ours].memory):
        if more := fuller_pass(config, recipe, own, hardware):
            examples, estimate = more
            console.print(
                f"{examples} windows in a pass fit too ({_bytes(estimate.memory)} at the peak) and keep the GPU busier: --set "
                f"training.per_device_train_batch_size={examples}",
                soft_wrap=True,
            )
        return
    with doing("searching for the smallest change that fits", console):
        change = smallest_change(config, recipe, own, hardware)
    fix = "; give more GPUs (--gpus) or larger ones (--gpu-memory)"
    if change is not None:
        options, estimate = change
        fix = f"; the smallest change that does: {options} ({_bytes(estimate.memory)} at the peak)"
    console.print(f"{ours} does not fit{fix}", style="yellow", soft_wrap=True)


def _table(rows: dict[str, CostEstimate], steps: int, hardware: Hardware) -> Table:
    costs = list(rows.values())
    table = Table("", *(Column(name, justify="right") for name in rows), box=None, pad_edge=False)
    lines = {
        "windows a step": [f"{c.batch:,} of {format_length(c.window)}" for c in costs],
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
