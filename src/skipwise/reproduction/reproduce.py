"""``skipwise reproduce``: run what the asked-for exhibits need, each arm once, and write their tables."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from skipwise.model.loading import load_config, plan_extension
from skipwise.reproduction.exhibits import EXHIBITS, Exhibit, find_exhibit
from skipwise.reproduction.runs import ArmRun, make, plan_runs
from skipwise.reproduction.scores import collect
from skipwise.reproduction.tables import exhibit_markdown

BASE = "nano"


def list_exhibits(console: Console) -> None:
    """Print what there is."""
    table = Table(box=None, pad_edge=False)
    for column in ("exhibit", "what it compares", "in the paper", "trained models"):
        table.add_column(column)
    for exhibit in EXHIBITS.values():
        trained = sum(run.trained for run in plan_runs(exhibit, BASE, seeds=[0], changes={}))
        table.add_row(exhibit.name, exhibit.title, exhibit.source, str(trained))
    console.print(table)


def reproduce(
    names: Sequence[str],
    *,
    out: Path,
    seeds: Sequence[int],
    texts: Sequence[str],
    changes: dict[str, Any],
    dry_run: bool,
    console: Console,
) -> None:
    """Train and measure what is missing for the exhibits ``names``, then write and print their tables.

    Args:
        names: of exhibits, or ``all``.
        out: ``out/arms`` holds a run folder an arm, ``out/<exhibit>.md`` the tables.
        seeds: of the trained arms.
        texts: what perplexity is measured on; none takes what the base recipe holds out.
        changes: dotted recipe keys for every run.
        dry_run: print which runs are there and which are missing; train nothing.
        console: where to print.

    Raises:
        SkipwiseError: an unknown exhibit, or what a run of it cannot do.
    """
    exhibits = list(EXHIBITS.values()) if "all" in names else [find_exhibit(name) for name in names]
    common = {**({"evaluation.source": list(texts)} if texts else {}), **changes}
    plans = {e.name: plan_runs(e, BASE, seeds=seeds, changes=common) for e in exhibits}
    distinct = {run.key + str(run.recipe.evaluation): run for runs in plans.values() for run in runs}
    if dry_run:
        for run in distinct.values():
            there = "there" if (run.folder(out) / "results.jsonl").exists() else "missing"
            console.print(f"{there:8} {run.folder(out).name}: {_described(run)}")
        return
    began = time.perf_counter()
    for number, run in enumerate(distinct.values(), 1):
        console.rule(
            f"{number} of {len(distinct)}: {_described(run)}, {time.perf_counter() - began:,.0f} s so far"
        )
        make(run, out, console)
    for exhibit in exhibits:
        _write(exhibit, plans[exhibit.name], out, console)


def _write(exhibit: Exhibit, runs: list[ArmRun], out: Path, console: Console) -> None:
    base = runs[0].recipe
    original = plan_extension(
        load_config(base.model), original_length=base.original_length
    ).rope.original_length
    text = exhibit_markdown(exhibit, runs, collect(runs, out), original)
    path = out / f"{exhibit.name}.md"
    path.write_text(text, encoding="utf-8")
    console.print(Markdown(text))
    console.print(f"table: {path}", soft_wrap=True)


def _described(run: ArmRun) -> str:
    return f"{run.setting}, {run.variant}" + (f", seed {run.recipe.seed}" if run.trained else "")
