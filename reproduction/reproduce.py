"""``skipwise reproduce``: run what the asked-for exhibits need, each arm once, and write their tables."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.progress_bar import ProgressBar
from rich.table import Table

from reproduction.costs import measure_costs
from reproduction.estimate import measure_speed, seconds, total_seconds
from reproduction.exhibits import EXHIBITS
from reproduction.full_size import print_full_size
from reproduction.page import read_notes, write_pages
from reproduction.runs import ArmRun, make, plan_runs
from reproduction.scales import SCALES, Scale, ScaleName
from reproduction.scores import asked_records
from reproduction.selection import (
    chosen_exhibits,
    compared,
    require_same_budget,
    require_text,
    require_undecided,
    select,
)
from skipwise.recipes.schema import load_recipe
from skipwise.results.records import PerplexityRecord


def list_exhibits(console: Console) -> None:
    """Print what there is, and how long each takes on this machine."""
    scale = SCALES["nano"]
    speed = measure_speed(load_recipe(scale.recipe).model)
    plans = {e.name: plan_runs(e, scale, seeds=[0], changes={}) for e in EXHIBITS.values()}
    grid = Table(box=None, pad_edge=False)
    for column in ("exhibit", "what it compares", "in the paper", "models", "here"):
        grid.add_column(column, justify="right" if column in ("models", "here") else "left")
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
        "One seed; the small bases of families and gap are trained besides, once. What is done is not done again."
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
    page_only: bool,
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
        page_only: write the page of what is there; train and measure nothing.
        dry_run: print the plan; train nothing.
        console: where to print.

    Raises:
        SkipwiseError: an unknown exhibit, arm or setting, text too short for one, or what a run cannot do.
    """
    common = {**({"evaluation.source": list(texts)} if texts else {}), **changes}
    asked = chosen_exhibits(names)
    require_undecided(asked, common)

    def planned(name: str) -> list[ArmRun]:
        return plan_runs(EXHIBITS[name], SCALES[scale], seeds=seeds, changes=common)

    plans = select({name: planned(name) for name in asked}, arms, settings)
    require_same_budget(plans)
    _say_window(plans, SCALES[scale], console)
    if notes:
        read_notes(notes)  # what is wrong with them is said before hours of training
    if dry_run and scale == "paper":
        print_full_size(plans, console)
        return
    if not page_only:
        require_text(plans)
    if dry_run:
        _plan(plans, out, console)
        return
    if not page_only:
        _make_all(list(_distinct(plans.values()).values()), out, console)
        for name, runs in plans.items():
            if "costs" in EXHIBITS[name].show and runs:
                measure_costs(runs[0].recipe, runs[0].original, out, console)
    page = write_pages({name: planned(name) for name in _shown(asked, common, out)}, out, notes)
    for name in asked:
        console.print(_without_figures((out / f"{name}.md").read_text(encoding="utf-8")))
    console.print(f"page: {page}", soft_wrap=True)


def _shown(asked: Sequence[str], changes: Mapping[str, Any], out: Path) -> list[str]:
    """What the page shows: what was asked for, and what earlier commands made in the same folder."""
    return [
        name
        for name, exhibit in EXHIBITS.items()
        if name in asked or ((out / f"{name}.md").exists() and not compared(exhibit) & set(changes))
    ]


def _without_figures(text: str) -> Markdown:
    """A page for the terminal, which cannot show what the lines of figures link to."""
    return Markdown("\n".join(line for line in text.splitlines() if not line.startswith("![")))


def _say_window(plans: Mapping[str, list[ArmRun]], scale: Scale, console: Console) -> None:
    """Say so where the base's window is not what the exhibits are written for."""
    families = {setting.label for name in plans for setting in EXHIBITS[name].settings if setting.family}
    for run in (run for runs in plans.values() for run in runs if run.setting not in families):
        if run.original != scale.window:
            console.print(
                f"{run.recipe.model} has a window of {run.original:,} tokens, and the exhibits are written for "
                f"{scale.window:,}: every length is the same multiple of its own, 8x is {8 * run.original:,}. The "
                "paper's figures stand beside them by multiple",
                style="yellow",
            )
            return


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


def _plan(plans: Mapping[str, list[ArmRun]], out: Path, console: Console) -> None:
    """Print which runs are there and missing."""
    runs = list(_distinct(plans.values()).values())
    speed = measure_speed(runs[0].recipe.model) if runs else None
    for run in runs:
        assert speed is not None
        folder = run.folder(out)
        made = "trained" if run.trained else "measured"
        records = asked_records(run, out).values()  # a published arm has them without its model
        read = {record.data for record in records if isinstance(record, PerplexityRecord)}
        there = bool(read) and read >= set(run.recipe.evaluation.source or [])
        told = made if there else f"missing, {_minutes(seconds(run, speed))}"
        console.print(f"{told:18} {folder.name}: {run}", soft_wrap=True)


def _minutes(taken: float) -> str:
    minutes = max(1, round(taken / 60))
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
