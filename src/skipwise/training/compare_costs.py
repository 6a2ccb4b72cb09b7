"""``skipwise plan``: a run beside full-length training, printed, and what reduces memory if it does not fit."""

import math

from rich.console import Console
from rich.filesize import decimal
from rich.table import Column, Table

from skipwise.method.lengths import format_length
from skipwise.model.config import load_config
from skipwise.model.extension import extension_of, extension_told, large_factor, replaced_scaling
from skipwise.model.memory import optimizer_bytes
from skipwise.progress import doing
from skipwise.recipes.names import arm_name
from skipwise.recipes.schema import Recipe
from skipwise.training.arguments import accumulation
from skipwise.training.cost import ROOM, CostEstimate, Hardware, estimate_cost
from skipwise.training.prepare import window_of
from skipwise.training.what_fits import ADAMW, fuller_pass, lighter_weights, smallest_change

# Of the peak, by LoRA and with all weights: a model of 7B, windows of 2,048 in single passes, one H200.
_MEASURED = (0.12, 0.2)


def compare_costs(recipe: Recipe, hardware: Hardware, console: Console) -> None:
    """Print the run beside full-length training of as many tokens, and what reduces memory if one does not fit."""
    with doing(f"building {recipe.model} without weights", console):
        config = load_config(recipe.model)
        extension = extension_of(config, recipe)
    own = window_of(recipe, extension)
    batch, micro = recipe.training.batch_size, recipe.training.per_device_train_batch_size
    gpus = hardware.gpus
    accumulation(recipe.training, gpus)
    ours = arm_name(recipe.arm)
    planned = {ours: (recipe, own)}
    if recipe.positions.scheme != "full":
        planned[arm_name("full")] = recipe.model_copy(update={"teacher": None}), extension.target_length
    rows = {}
    with doing("running one step of each without data", console):
        for name, (run, window) in planned.items():
            # The same tokens in a step and in a micro-batch, but at least one window on each GPU.
            windows = math.ceil(batch * own / window / gpus) * gpus
            rows[name] = estimate_cost(config, run, window, windows, hardware, max(1, micro * own // window))
    cost = rows[ours].cost
    console.print(
        f"{recipe.model}: {extension_told(config, extension, recipe.arm)}, {cost.parameters:,} parameters, "
        f"{cost.trained:,} of them trained",
        style="bold",
    )
    if replaced := replaced_scaling(config, extension):
        console.print(replaced)
    console.print(_table(rows, recipe.training.max_steps, hardware))
    planned_for = f"{gpus} GPUs that share the weights (ZeRO-3 or FSDP)" if gpus > 1 else "one GPU"
    console.print(
        f"Planned for {planned_for}, {_bytes(hardware.memory)} each; time at {hardware.utilisation:.0%} of "
        f"{hardware.peak / 1e12:.0f} TFLOP/s each. Bytes are those of tensors: {_bytes(ROOM)} must stay free for the CUDA "
        "context and fragmentation."
    )
    if hardware.utilisation > _MEASURED[1]:
        lora, whole = (f"{share:.0%}" for share in _MEASURED)
        console.print(
            f"Short windows may reach less: on an H200 LoRA reached {lora} and training of all weights {whole} (--utilisation)."
        )
    if far := large_factor(extension):
        console.print(far, style="yellow")
    optim = recipe.training.optim
    if optimizer_bytes(optim) is None or (gpus > 1 and optim not in ADAMW):
        console.print(f"training.optim {optim} is counted as AdamW.", style="yellow")
    fits = {name: hardware.holds(estimate.memory) for name, estimate in rows.items()}
    for name, enough in fits.items():
        if name != ours and not enough:
            console.print(f"{name} does not fit.", style="yellow")
    if not fits[ours]:
        with doing("looking for the smallest change that fits", console) as say:
            way = smallest_change(config, recipe, rows[ours], hardware, lambda words: say(f"trying {words}"))
        console.print(f"{ours} does not fit{_told(way, recipe, gpus)}", style="yellow", soft_wrap=True)
    elif more := fuller_pass(config, recipe, own, hardware):
        examples, estimate = more
        console.print(
            f"{examples} windows in a pass fit too ({_bytes(estimate.memory)} at the peak), and a GPU that waits for small kernels "
            f"waits less: --set training.per_device_train_batch_size={examples}",
            soft_wrap=True,
        )


def _told(way: tuple[str, CostEstimate] | None, recipe: Recipe, gpus: int) -> str:
    if way is None:
        most = max(more for *_, more in lighter_weights(recipe, gpus) if recipe.training.batch_size % more == 0)
        sharded = f", up to {most} GPUs" if most > gpus else ""
        return f", nor does anything that was tried{sharded}; plan larger ones (--gpu-memory)"
    words, estimate = way
    return f"; the smallest change that does: {words} ({_bytes(estimate.memory)} at the peak)"


def _table(rows: dict[str, CostEstimate], steps: int, hardware: Hardware) -> Table:
    costs = list(rows.values())
    table = Table("", *(Column(name, justify="right") for name in rows), box=None, pad_edge=False)
    lines = {
        "windows a step": [f"{c.batch:,} of {format_length(c.window)}" for c in costs],
        "tokens in all": [f"{c.batch * c.window * steps / 1e6:,.1f} M" for c in costs],
        **{
            f"{part}, each GPU": [_bytes(getattr(c, part)) for c in costs]
            for part in ("weights", "gradients", "optimizer", "activations", "teacher")
            if any(getattr(c, part) for c in costs)
        },
        "while loading, each GPU": [_bytes(c.loading) for c in costs],
        "at the peak, each GPU": [_bytes(c.memory) for c in costs],
        f"fits in {_bytes(hardware.memory)}": ["yes" if hardware.holds(c.memory) else "no" for c in costs],
        "operations a step": [_flop(c.operations) for c in costs],
        "time": [f"{c.hours:,.1f} h" if c.hours >= 1 else f"{c.hours * 60:.1f} min" for c in costs],
    }
    for name, cells in lines.items():
        table.add_row(name, *cells)
    return table


def _bytes(number: float) -> str:
    return decimal(int(number))


def _flop(operations: float) -> str:
    """Say operations in GFLOP, or the largest unit of which there is one or more."""
    units = ("GFLOP", "TFLOP", "PFLOP", "EFLOP")
    power = max((k for k in range(len(units)) if operations >= 10 ** (9 + 3 * k)), default=0)
    return f"{operations / 10 ** (9 + 3 * power):,.1f} {units[power]}"
