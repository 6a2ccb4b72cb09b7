"""Scores -> the figures of an exhibit: perplexity by window and by position, passkeys, cost by target."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from reproduction.costs import step_time
from reproduction.exhibits import Exhibit
from reproduction.runs import ArmRun
from reproduction.scores import Scores
from skipwise.report.canvas import write
from skipwise.report.figures import curve_plot
from skipwise.results.records import CostRecord
from skipwise.results.statistics import Interval

Curves = dict[str, dict[int, float]]  # label -> x -> value


def exhibit_figures(
    exhibit: Exhibit, runs: Sequence[ArmRun], scores: Mapping[str, Mapping[str, Scores]], folder: Path
) -> dict[str, dict[str, str]]:
    """Draw what the scores allow; return the files' names without their ending, each with its title, by setting."""
    drawn: dict[str, dict[str, str]] = {}
    for setting in exhibit.settings:
        rows = {
            variant: row
            for variant, row in scores.get(setting.label, {}).items()
            if not exhibit.drawn or variant in exhibit.drawn
        }
        original = next((run.original for run in runs if run.setting == setting.label), None)
        name = f"{exhibit.name}-{setting.label}".replace(", ", "-").replace(" ", "-").lower()
        for kind, title, axis, curves in _curves(exhibit, rows):
            curves = {label: curve for label, curve in curves.items() if curve}
            # A single arm or length is only a row or column of the table.
            if len(curves) > 1 and any(len(curve) > 1 for curve in curves.values()):
                _draw(folder, f"{name}-{kind}", title, axis, curves, original)
                drawn.setdefault(setting.label, {})[f"{name}-{kind}"] = title
    return drawn


def _curves(exhibit: Exhibit, rows: Mapping[str, Scores]) -> list[tuple[str, str, tuple[str, str], Curves]]:
    """Kind, title, names of both axes and curves of each figure; of several texts the first."""
    text = next((text for row in rows.values() for text, _ in row.nll), None)
    found: list[tuple[str, str, tuple[str, str], Curves]] = []
    if "perplexity" in exhibit.show and text:
        curves: Curves = {
            label: {window: score[0] for window, score in row.by_window(text).items()} for label, row in rows.items()
        }
        found.append(("perplexity", f"Perplexity by window, {text}", ("window (tokens)", "perplexity"), curves))
    if "curves" in exhibit.show and text:
        curves = {label: row.curves().get(f"{text}, first tokens", {}) for label, row in rows.items()}
        found.append(("curves", f"Perplexity of the first tokens, {text}", ("tokens read", "perplexity"), curves))
    if "passkey" in exhibit.show:
        curves = {label: {n: 100 * row.share_found(n) for n in row.passkeys} for label, row in rows.items()}
        found.append(("passkey", "Passkeys found (%)", ("prompt (tokens)", "found (% of prompts)"), curves))
    if "steps" in exhibit.show:
        curves = {label: {n: fmean(v) for n, v in row.steps.items()} for label, row in rows.items()}
        found.append(
            ("steps", "Loss at the target (nats) by step", ("training steps", "loss (nats per token)"), curves)
        )
    return found


def cost_figures(records: Sequence[CostRecord], folder: Path) -> list[str]:
    """Draw step time and peak memory by target; return the names of the files without their ending."""
    arms = list(dict.fromkeys(record.arm for record in records))
    time = {a: {r.target: step_time(r) for r in records if r.arm == a} for a in arms}
    memory = {a: {r.target: r.peak_bytes / 2**20 for r in records if r.arm == a} for a in arms}
    _draw(folder, "efficiency-time", "Seconds a training step", ("target (tokens)", "time (seconds)"), time)
    _draw(folder, "efficiency-memory", "Peak memory (MiB)", ("target (tokens)", "peak memory (MiB)"), memory)
    return ["efficiency-time", "efficiency-memory"]


def _draw(
    folder: Path, name: str, title: str, axis: tuple[str, str], curves: Curves, original: int | None = None
) -> None:
    """Draw curves as SVG and CSV; the pages need no PNG. A line marks the ``original`` length under perplexity."""
    values = {
        label: {x: Interval(value, -math.inf, math.inf) for x, value in curve.items()}
        for label, curve in curves.items()
    }
    language = axis[1] == "perplexity"
    marked, percent = original if language else None, "%" in axis[1]
    write(curve_plot(name, title, axis, values, marked, percent=percent, near=language), folder, png=False)
