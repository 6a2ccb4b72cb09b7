"""Tokens, memory and hours of the exhibits at the paper's scale, computed from the models' shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from reproduction.runs import ArmRun
from reproduction.scales import MODELS, Shape
from skipwise.errors import RecipeError

# The machine that the paper's scale is planned for, and how much of it is used.
GPUS, PEAK, USED = 8, 312e12, 0.4  # A100 80 GB, bf16 operations a second


@dataclass(frozen=True)
class Cost:
    """One arm at full size: GPU hours are of all GPUs together."""

    gigabytes: float
    gpu_hours: float


def full_size(run: ArmRun, shape: Shape) -> Cost:
    """Memory of each of 8 GPUs under ZeRO-3 with gradient checkpointing, and GPU hours of training.

    A formula, because a hundred arms are asked at once. ``skipwise.training.cost``, which traces a step of each arm
    without data, agrees within 10%.

    Memory: 16 bytes a parameter (bf16 weight and gradient, float32 master weight and two Adam moments) over the GPUs;
    the inputs of every layer, 2 s h L bytes for a window of s tokens; one layer at work, about 34 s h; the logits in
    bf16 and float32 and their gradient, 8 s V; and two layers' gathered weights, 24 h^2 each. Operations a token:
    6 N + 6 L h s (forward and backward, causal attention), and a third more for the forward pass done again (Kaplan et
    al., 2020; Korthikanti et al., 2022).
    """
    h, layers = shape.width, shape.layers
    held = 16 * shape.parameters / GPUS + 48 * h * h
    held += run.window * (2 * h * layers + 34 * h + 8 * shape.vocabulary)
    operations = run.tokens * (6 * shape.parameters + 6 * layers * h * run.window) * 4 / 3
    return Cost(held / 1e9, operations / (PEAK * USED) / 3600)


def print_full_size(plans: Mapping[str, Sequence[ArmRun]], console: Console) -> None:
    """Print the models, text, steps, tokens, memory and hours of every trained arm."""
    for name, runs in plans.items():
        if not runs:
            console.print(f"{name}: nothing is trained; no GPU is needed")
            continue
        grid = Table(box=None, pad_edge=False)
        for column in ("arm", "steps x windows", "of tokens", "in all", "GB a GPU", "hours"):
            grid.add_column(column, justify="left" if column == "arm" else "right")
        for run in (run for run in runs if run.trained):
            if run.recipe.model not in MODELS:
                raise RecipeError(
                    f"model {run.recipe.model!r}: the plan at the paper's scale knows {', '.join(MODELS)}; skipwise plan knows others"
                )
            cost = full_size(run, MODELS[run.recipe.model])
            grid.add_row(
                f"{run.setting}, {run.variant}",
                f"{run.recipe.training.max_steps:,} x {run.recipe.training.batch_size}",
                f"{run.window:,}",
                f"{run.tokens / 1e6:,.0f} M",
                f"{cost.gigabytes:.0f}",
                f"{cost.gpu_hours / GPUS:.1f}",
            )
        models = ", ".join(dict.fromkeys(run.recipe.model.split("/")[-1] for run in runs))
        shortest = min(run.recipe.data.min_tokens or 0 for run in runs)
        text = f"{runs[0].recipe.data.source}, documents of {shortest:,} tokens or more"
        console.print(f"{name}: {models}; trained on {text}", style="bold", soft_wrap=True)
        console.print(grid)
    console.print(
        f"Memory and hours by arithmetic, for {GPUS} A100 of 80 GB under ZeRO-3 with gradient checkpointing, 40% of "
        "their bf16 peak used. All arms train on the same number of tokens; the paper's full-length arm has as many windows "
        "as PoSE, that is 8 times the tokens at 16k. The paper measured on GovReport and Proof-pile (documents above 32k tokens), PG-19 and "
        "Books3 (above 128k): give yours by --text."
    )
