"""The command: run what the asked exhibits lack, each run once, and write their pages."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from reproduction.archive import ARCHIVE, DOCS, unpack
from reproduction.costs import measure_costs
from reproduction.exhibits import EXHIBITS
from reproduction.measured import SLIDING, asked_records, make
from reproduction.page import write_pages
from reproduction.runs import SCALES, ArmRun, distinct, plan_runs, require_text, require_undecided, seeds_in, select
from skipwise.errors import one_of
from skipwise.evaluation.evaluate import measuring_seconds, planned
from skipwise.model.config import load_config
from skipwise.model.cost import ForwardCost, Speed, meta_model, training_seconds
from skipwise.model.precision import choose_precision, default_device

_SETTLED = 12.0  # seconds of a run for loading, the probe, saving and the report


def list_exhibits(console: Console, out: Path) -> None:
    """Print the exhibits, and how long each takes on this machine."""
    plans = {name: plan_runs(EXHIBITS[name], SCALES["nano"], out, changes={}) for name in EXHIBITS}
    grid = Table(box=None, pad_edge=False)
    for column in ("exhibit", "what it compares: where in the paper", "seeds", "models", "here"):
        grid.add_column(column, justify="left" if column.startswith(("exhibit", "what")) else "right")
    lines = [
        (name, f"{EXHIBITS[name].title}: {EXHIBITS[name].source}", EXHIBITS[name].seeds, plans[name]) for name in plans
    ]
    for name, told, seeds, runs in [*lines, ("all", "each model trained once", "", distinct(plans.values()))]:
        models = len({run.key for run in runs if run.trained})
        took = _minutes(total_seconds(runs)) if runs else "1 min"
        grid.add_row(name, told, str(seeds), str(models) if runs else "–", took)
    console.print(grid)
    console.print("The small bases of families are trained besides, once. What is done is not done again.")


def run(
    names: Sequence[str],
    scale: str,
    out: Path,
    console: Console,
    *,
    seeds: Sequence[int],
    changes: Mapping[str, Any],
    rows: Sequence[str],
    blocks: Sequence[str],
    page_only: bool,
    dry_run: bool,
) -> None:
    """Train and measure what is missing of the asked exhibits under ``out``, then write and print their pages.

    Args:
        names: of exhibits, or ``all``.
        seeds: of the trained rows; none means as many as each exhibit says.
        changes: dotted recipe keys for every run, the texts among them.
        rows, blocks: to run, as the tables write them; none means all.
    """
    asked = {one_of("exhibit", name, [*EXHIBITS, "all"]) for name in names}
    names = [name for name in EXHIBITS if "all" in asked or name in asked]
    require_undecided(changes)

    def plan(name: str, seeds: Sequence[int]) -> list[ArmRun]:
        return plan_runs(EXHIBITS[name], SCALES[scale], out, seeds=seeds, changes=changes)

    plans = select({name: plan(name, seeds) for name in names}, rows, blocks)
    if not (page_only or (dry_run and scale == "paper")):  # whose models and texts need not be here
        require_text(plans)
    if dry_run:
        for one in (one for runs in plans.values() for one in runs):
            console.print(f"{_state(one, out, scale):18} {one}, {one.tokens:,} tokens", soft_wrap=True)
        return
    if not page_only:
        _make_all(distinct(plans.values()), out, console)
        for runs in (runs for name, runs in plans.items() if runs and EXHIBITS[name].show == "costs"):
            measure_costs(runs[0].recipe, runs[0].original, out, console)
    there = seeds_in(out)  # those of earlier commands too
    shown = [name for name in EXHIBITS if name in names or (out / f"{name}.md").exists()]
    write_pages({name: plan(name, there) for name in shown}, out, out, out / "reproduction.md")
    for name in names:
        text = (out / f"{name}.md").read_text(encoding="utf-8")
        console.print(Markdown("\n".join(line for line in text.splitlines() if not line.startswith("!["))))
    console.print(f"page: {out / 'reproduction.md'}", soft_wrap=True)


def publish_pages(console: Console, docs: Path = DOCS, archive: Path = ARCHIVE) -> None:
    """Write the pages of all exhibits under ``docs`` from the published records; without any they say what was not run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        changes = unpack(archive, out)
        seeds = seeds_in(out)
        plans = {
            name: plan_runs(EXHIBITS[name], SCALES["nano"], out, seeds=seeds, changes=changes) for name in EXHIBITS
        }
        write_pages(plans, out, docs / "reproduction", docs / "reproduction.md")
    console.print(f"page: {docs / 'reproduction.md'}", soft_wrap=True)


def _state(one: ArmRun, out: Path, scale: str) -> str:
    """Whether a run is there, or how long it takes."""
    if scale == "paper":
        return "trained" if one.trained else "measured"
    read = {text for kind, text, _ in asked_records(one, out) if kind == SLIDING}
    if read and read >= set(one.recipe.evaluation.source or []):
        return "done"
    return f"missing, {_minutes(total_seconds([one]))}"


def _make_all(runs: Sequence[ArmRun], out: Path, console: Console) -> None:
    """Make each run in turn; before each say what it is, how many are left and about how long they take."""
    for number, one in enumerate(runs):
        left = _minutes(total_seconds(runs[number:]))
        console.rule(f"{number + 1} of {len(runs)}, {left} left at most: {one}")
        make(one, out, console)


def total_seconds(runs: Iterable[ArmRun]) -> float:
    """How long runs take one after another, as ``skipwise plan`` forecasts; a model that several share is trained once.

    A small base counts as the embedded model, because it may not be trained yet.
    """
    seconds, trained = 0.0, set[str]()
    for one in runs:
        model = "nano" if one.base else one.recipe.model
        if one.trained and one.key not in trained:
            trained.add(one.key)
            seconds += one.tokens * _trained_token(model, one.window)
        work = planned(one.recipe, one.original, one.target)
        seconds += _SETTLED + sum(measuring_seconds(work, *_measured(model)).values())
    return seconds


@cache
def _trained_token(model: str, window: int) -> float:
    """The seconds that a token takes to train on in a window."""
    device = default_device()
    return training_seconds(load_config(model), 1, window, choose_precision("auto", device), device)


@cache
def _measured(model: str) -> tuple[ForwardCost, Speed]:
    """What a forward pass costs, and how fast this machine is."""
    config, device = load_config(model), default_device()
    return ForwardCost.of(meta_model(config)), Speed.measured(config, choose_precision("auto", device), device)


def _minutes(taken: float) -> str:
    minutes = max(1, round(taken / 60))
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
