"""``skipwise reproduce``: run what the asked-for exhibits need, each arm once, and write their tables."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.progress_bar import ProgressBar
from rich.table import Table

from skipwise.recipe import load_recipe
from skipwise.reproduction.estimate import GPUS, full_size, measure_speed, seconds, tokens_of, total_seconds
from skipwise.reproduction.exhibits import EXHIBITS
from skipwise.reproduction.page import read_notes, write_pages
from skipwise.reproduction.runs import ArmRun, make, plan_runs
from skipwise.reproduction.scales import MODELS, SCALES, Scale, ScaleName
from skipwise.reproduction.selection import chosen_exhibits, require_text, select


def list_exhibits(console: Console) -> None:
    """Print what there is, and how long each takes on this machine."""
    scale = SCALES["nano"]
    speed = measure_speed(load_recipe(scale.recipe).model)
    plans = {e.name: plan_runs(e, scale, seeds=[0], changes={}) for e in EXHIBITS.values()}
    grid = _grid("exhibit", "what it compares", "in the paper", "models", "here")
    for exhibit in EXHIBITS.values():
        runs = plans[exhibit.name]
        models = str(sum(run.trained for run in runs)) if runs else "–"
        took = _minutes(total_seconds(runs, speed)) if runs else "1 min"
        grid.add_row(exhibit.name, exhibit.title, exhibit.source, models, took)
    distinct = _distinct(plans.values()).values()
    models = str(len({run.key for run in distinct if run.trained}))
    grid.add_row("all", "each model trained once", "", models, _minutes(total_seconds(distinct, speed)))
    console.print(grid)
    console.print(
        "One seed; a small base of a family takes 10 to 20 minutes more, once. What is done is not done again."
    )


def reproduce(
    names: Sequence[str],
    *,
    scale: ScaleName,
    out: Path,
    seeds: Sequence[int],
    arms: Sequence[str],
    settings: Sequence[str],
    texts: Sequence[str],
    changes: Mapping[str, Any],
    notes: Path | None,
    dry_run: bool,
    console: Console,
) -> None:
    """Train and measure what is missing for the exhibits ``names``, then write and print their tables.

    Args:
        names: of exhibits, or ``all``.
        scale: in miniature, or as in the paper.
        out: ``out/arms`` holds a run folder an arm, ``out/reproduction.md`` the tables.
        seeds: of the trained arms.
        arms: rows of the tables to run; none means all.
        settings: blocks of the tables to run, as ``linear, 8x``; none means all.
        texts: what is measured on; none takes the scale's own.
        changes: dotted recipe keys for every run.
        notes: Markdown to put into the page, a section an exhibit.
        dry_run: print the plan; train nothing.
        console: where to print.

    Raises:
        SkipwiseError: an unknown exhibit, arm or setting, text too short for one, or what a run cannot do.
    """
    common = {**({"evaluation.source": list(texts)} if texts else {}), **changes}
    every = {
        name: plan_runs(EXHIBITS[name], SCALES[scale], seeds=seeds, changes=common)
        for name in chosen_exhibits(names)
    }
    plans = select(every, arms, settings)
    if notes:
        read_notes(notes)  # what is wrong with them is said before hours of training
    if dry_run:
        _plan(plans, SCALES[scale], out, console)
        return
    require_text(plans)
    _make_all(list(_distinct(plans.values()).values()), out, console)
    page = write_pages(plans, out, notes, console)
    for name in plans:
        console.print(Markdown((out / f"{name}.md").read_text(encoding="utf-8")))
    console.print(f"page: {page}", soft_wrap=True)


def _make_all(runs: list[ArmRun], out: Path, console: Console) -> None:
    """Make each run in turn; before each say what it is, how many remain and about how long they take."""
    speed = measure_speed(runs[0].recipe.model) if runs else None
    began = time.perf_counter()
    for number, run in enumerate(runs):
        assert speed is not None
        left = total_seconds(runs[number:], speed)
        console.rule(f"{number + 1} of {len(runs)}: {run}")
        console.print(ProgressBar(total=len(runs), completed=number, width=40), end=" ")
        console.print(f"{_minutes(time.perf_counter() - began)} so far, {_minutes(left)} left at the most")
        make(run, out, console)


def _distinct(plans: Iterable[Sequence[ArmRun]]) -> dict[str, ArmRun]:
    """Every run once, the first seed of all exhibits before the second of any."""
    runs = sorted((run for plan in plans for run in plan), key=lambda run: run.recipe.seed)
    distinct: dict[str, ArmRun] = {}
    for run in runs:
        distinct.setdefault(f"{run.key} {run.recipe.evaluation}", run)
    return distinct


def _plan(plans: Mapping[str, list[ArmRun]], scale: Scale, out: Path, console: Console) -> None:
    """Print which runs are there and missing, or at the paper's scale what each would cost."""
    if scale.name == "paper":
        _plan_full_size(plans, console)
        return
    runs = list(_distinct(plans.values()).values())
    speed = measure_speed(runs[0].recipe.model) if runs else None
    for run in runs:
        assert speed is not None
        folder = run.folder(out)
        made = "trained" if run.trained else "measured"
        there = (folder / ("model" if run.trained else "results.jsonl")).exists()
        told = made if there else f"missing, {_minutes(seconds(run, speed))}"
        console.print(f"{told:18} {folder.name}: {run}", soft_wrap=True)


def _plan_full_size(plans: Mapping[str, list[ArmRun]], console: Console) -> None:
    for name, runs in plans.items():
        if not runs:
            console.print(f"{name}: nothing is trained; it runs anywhere")
            continue
        grid = _grid("arm", "steps x windows", "of tokens", "in all", "GB a GPU", "hours")
        for run in runs:
            training, tokens = run.recipe.training, tokens_of(run)
            if not run.trained:
                continue
            cost = full_size(run, MODELS[run.recipe.model])
            width = tokens // (training.max_steps * training.batch_size)
            grid.add_row(
                f"{run.setting}, {run.variant}",
                f"{training.max_steps:,} x {training.batch_size}",
                f"{width:,}",
                f"{tokens / 1e6:,.0f} M",
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
        "their bf16 peak used. The paper measured on GovReport and Proof-pile (documents above 32k tokens), PG-19 and "
        "Books3 (above 128k): give yours by --text."
    )


def _grid(*columns: str) -> Table:
    grid = Table(box=None, pad_edge=False)
    for column in columns:
        left = column in ("exhibit", "what it compares", "in the paper", "arm")
        grid.add_column(column, justify="left" if left else "right")
    return grid


def _minutes(taken: float) -> str:
    minutes = max(1, round(taken / 60))
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
