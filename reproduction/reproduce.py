"""The command: run what the asked exhibits lack, each arm once, and write their pages."""

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.progress_bar import ProgressBar
from rich.table import Table

from reproduction.archive import ARCHIVE, DOCS, unpack
from reproduction.costs import measure_costs
from reproduction.estimate import seconds, total_seconds
from reproduction.exhibits import EXHIBITS
from reproduction.full_size import print_full_size
from reproduction.measured import SLIDING, asked_records, make
from reproduction.page import Pages, read_notes, write_pages
from reproduction.runs import ArmRun, plan_runs, seeds_in
from reproduction.scales import SCALES, Scale
from reproduction.selection import (
    chosen_exhibits,
    compared,
    require_same_budget,
    require_text,
    require_undecided,
    select,
)
from skipwise.recipes.loading import load_recipe

NOTES = Path(__file__).parent / "notes.md"


@dataclass(frozen=True)
class Asked:
    """What a command asks for.

    Attributes:
        names: of exhibits, or ``all``.
        scale: in miniature, or as in the paper.
        seeds: of the trained arms.
        changes: dotted recipe keys for every run, the texts among them.
        arms: rows of the tables to run; none means all.
        settings: blocks of the tables to run, as ``linear, 8x``; none means all.
    """

    names: Sequence[str]
    scale: Scale
    seeds: Sequence[int]
    changes: Mapping[str, Any]
    arms: Sequence[str] = ()
    settings: Sequence[str] = ()

    @property
    def model(self) -> str:
        """The model that all runs extend, except those of families."""
        return load_recipe(self.scale.recipe, self.changes).model

    def plan(self, name: str) -> list[ArmRun]:
        """Every run of an exhibit."""
        return plan_runs(EXHIBITS[name], self.scale, seeds=self.seeds, changes=self.changes)


def list_exhibits(console: Console) -> None:
    """Print the exhibits, and how long each takes on this machine."""
    asked = Asked(list(EXHIBITS), SCALES["nano"], seeds=[0], changes={})
    plans = {name: asked.plan(name) for name in asked.names}
    grid = Table(box=None, pad_edge=False)
    for column in ("exhibit", "what it compares: where in the paper", "models", "here"):
        grid.add_column(column, justify="right" if column in ("models", "here") else "left")
    for exhibit in EXHIBITS.values():
        runs = plans[exhibit.name]
        models = str(sum(run.trained for run in runs)) if runs else "–"
        took = _minutes(total_seconds(runs, asked.model)) if runs else "1 min"
        grid.add_row(exhibit.name, f"{exhibit.title}: {exhibit.source}", models, took)
    distinct = _distinct(plans.values()).values()
    models = str(len({run.key for run in distinct if run.trained}))
    grid.add_row("all", "each model trained once", models, _minutes(total_seconds(distinct, asked.model)))
    console.print(grid)
    console.print(
        "One seed; the small bases of families, gap and better are trained besides, once. What is done is not done again."
    )


def run(asked: Asked, out: Path, notes: Path | None, console: Console, *, page_only: bool, dry_run: bool) -> None:
    """Train and measure what is missing of the asked exhibits, then write and print their pages.

    Args:
        asked: what to run.
        out: ``out/arms`` holds a run folder for each arm, ``out/reproduction.md`` the summary.
        notes: Markdown to put into the pages, a section for each exhibit.
        console: where to print.
        page_only: write the pages of what is there; train and measure nothing.
        dry_run: print the plan; train nothing.

    Raises:
        SkipwiseError: an unknown exhibit, arm or setting, text too short for one, or what a run cannot do.
    """
    names = chosen_exhibits(asked.names)
    require_undecided(names, asked.changes)
    plans = select({name: asked.plan(name) for name in names}, asked.arms, asked.settings)
    require_same_budget(plans)
    _say_window(plans, asked.scale, console)
    remarks = read_notes(notes) if notes else {}  # before hours of training
    if dry_run and asked.scale.name == "paper":
        print_full_size(plans, console)
        return
    if not page_only:
        require_text(plans)
    if dry_run:
        _print_plan(plans, asked.model, out, console)
        return
    if not page_only:
        _make_all(list(_distinct(plans.values()).values()), asked.model, out, console)
        for name, runs in plans.items():
            if "costs" in EXHIBITS[name].show and runs:
                measure_costs(runs[0].recipe, runs[0].original, out, console)
    together = replace(asked, seeds=sorted({*asked.seeds, *seeds_in(out)}))  # those of earlier commands too
    shown = {name: together.plan(name) for name in _shown(names, asked.changes, out)}
    index = write_pages(shown, out, Pages(out, out / "reproduction.md"), remarks)
    for name in names:
        console.print(_without_figures((out / f"{name}.md").read_text(encoding="utf-8")))
    console.print(f"page: {index}", soft_wrap=True)


def publish_pages(names: Sequence[str], console: Console, docs: Path = DOCS) -> None:
    """Write the pages under ``docs`` from the published records; those of exhibits ``names`` and all that are there."""
    chosen, folder = chosen_exhibits(names), docs / "reproduction"
    with tempfile.TemporaryDirectory() as out:
        published = unpack(ARCHIVE, Path(out))
        scale = replace(SCALES["nano"], bases=published.bases)
        asked = Asked(chosen, scale, seeds_in(Path(out)), published.changes)
        plans = {name: asked.plan(name) for name in _shown(chosen, {}, folder)}
        index = write_pages(plans, Path(out), Pages(folder, docs / "reproduction.md"), read_notes(NOTES))
    console.print(f"page: {index}", soft_wrap=True)


def _shown(asked: Sequence[str], changes: Mapping[str, Any], out: Path) -> list[str]:
    """The exhibits that the pages show: those asked for, and those of earlier commands in the same folder."""
    return [
        name
        for name, exhibit in EXHIBITS.items()
        if name in asked or ((out / f"{name}.md").exists() and not compared(exhibit) & set(changes))
    ]


def _without_figures(text: str) -> Markdown:
    """A page for the terminal, without the figures."""
    return Markdown("\n".join(line for line in text.splitlines() if not line.startswith("![")))


def _say_window(plans: Mapping[str, list[ArmRun]], scale: Scale, console: Console) -> None:
    """Say so if the base's window is not the one that the exhibits are written for."""
    families = {setting.label for name in plans for setting in EXHIBITS[name].settings if setting.family}
    for run in (run for runs in plans.values() for run in runs if run.setting not in families):
        if run.original != scale.window:
            console.print(
                f"{run.recipe.model} has a window of {run.original:,} tokens, and the exhibits are written for "
                f"{scale.window:,}: every length is the same multiple of the base's window, 8x is {8 * run.original:,}. "
                "The paper's figures are shown at the same multiples",
                style="yellow",
            )
            return


def _make_all(runs: list[ArmRun], model: str, out: Path, console: Console) -> None:
    """Make each run in turn; before each say what it is, how many are left and about how long they take."""
    began = time.perf_counter()
    for number, run in enumerate(runs):
        left = total_seconds(runs[number:], model)
        console.rule(f"{number + 1} of {len(runs)}: {run}")
        console.print(ProgressBar(total=len(runs), completed=number, width=40), end=" ")
        console.print(f"{_minutes(time.perf_counter() - began)} so far, {_minutes(left)} left at most")
        make(run, out, console)


def _distinct(plans: Iterable[Sequence[ArmRun]]) -> dict[str, ArmRun]:
    """Every run once, the first seed of all exhibits before the second of any."""
    runs = sorted((run for plan in plans for run in plan), key=lambda run: run.recipe.seed)
    distinct: dict[str, ArmRun] = {}
    for run in runs:
        distinct.setdefault(f"{run.key} {run.recipe.evaluation}", run)
    return distinct


def _print_plan(plans: Mapping[str, list[ArmRun]], model: str, out: Path, console: Console) -> None:
    """Print which runs are there and which are missing."""
    for run in _distinct(plans.values()).values():
        folder = run.folder(out)
        made = "trained" if run.trained else "measured"
        read = {text for kind, text, _ in asked_records(run, out) if kind == SLIDING}
        there = bool(read) and read >= set(run.recipe.evaluation.source or [])
        told = made if there else f"missing, {_minutes(seconds(run, model))}"
        console.print(f"{told:18} {folder.name}: {run}", soft_wrap=True)


def _minutes(taken: float) -> str:
    minutes = max(1, round(taken / 60))
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
