"""Scores -> the figures of an exhibit: perplexity by window and by position, passkeys, cost by target."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from reproduction.costs import step_time
from reproduction.exhibits import Exhibit
from reproduction.runs import ArmRun
from reproduction.scores import Scores
from skipwise.report.plots import curve_figure
from skipwise.results.records import CostRecord


def exhibit_figures(
    exhibit: Exhibit, runs: Sequence[ArmRun], scores: Mapping[str, Mapping[str, Scores]], folder: Path
) -> dict[str, list[str]]:
    """Draw what the scores allow; names of the files without their ending, by setting."""
    drawn: dict[str, list[str]] = {}
    for setting in exhibit.settings:
        rows = {
            variant: row
            for variant, row in scores.get(setting.label, {}).items()
            if not exhibit.drawn or variant in exhibit.drawn
        }
        original = next((run.original for run in runs if run.setting == setting.label), None)
        name = f"{exhibit.name}-{setting.label}".replace(", ", "-").replace(" ", "-").lower()
        for kind, title, axis, curves in _curves(exhibit, rows):
            # Points of a single length are a column of the table.
            if any(len(curve) > 1 for curve in curves.values()):
                curves = {label: curve for label, curve in curves.items() if curve}
                marked = original if kind in ("perplexity", "curves") else None
                curve_figure(folder, f"{name}-{kind}", title, axis, curves, marked)
                drawn.setdefault(setting.label, []).append(f"{name}-{kind}")
    return drawn


def _curves(
    exhibit: Exhibit, rows: Mapping[str, Scores]
) -> list[tuple[str, str, str, dict[str, dict[int, float]]]]:
    """Kind, title, axis and curves of each figure; of several texts the first."""
    texts = list(dict.fromkeys(text for row in rows.values() for text, _ in row.nll))
    found: list[tuple[str, str, str, dict[str, dict[int, float]]]] = []
    if "perplexity" in exhibit.show and texts:
        curves = {label: _perplexities(row, texts[0]) for label, row in rows.items()}
        found.append(("perplexity", f"Perplexity by window, {texts[0]}", "window (tokens)", curves))
    if "curves" in exhibit.show and texts:
        key = f"{texts[0]}, first tokens"
        curves = {label: row.curves().get(key, {}) for label, row in rows.items()}
        found.append(("curves", f"Perplexity of the first tokens, {texts[0]}", "tokens read", curves))
    if "passkey" in exhibit.show:
        curves = {
            label: {n: 100 * row.found(n)[0] / row.found(n)[1] for n in row.hits}
            for label, row in rows.items()
        }
        found.append(("passkey", "Passkeys found (%)", "prompt (tokens)", curves))
    if "steps" in exhibit.show:
        curves = {
            label: {n: statistics.fmean(v) for n, v in row.steps.items()} for label, row in rows.items()
        }
        found.append(("steps", "Loss at the target (nats) by step", "training steps", curves))
    return found


def _perplexities(row: Scores, text: str) -> dict[int, float]:
    means = {window: row.perplexity(text, window) for name, window in row.nll if name == text}
    return {window: mean[0] for window, mean in means.items() if mean}


def cost_figures(records: Sequence[CostRecord], folder: Path) -> list[str]:
    """Draw step time and peak memory by target; names of the files without their ending."""
    arms = list(dict.fromkeys(record.arm for record in records))
    time = {a: {r.target: step_time(r) for r in records if r.arm == a} for a in arms}
    memory = {a: {r.target: r.peak_bytes / 2**20 for r in records if r.arm == a} for a in arms}
    curve_figure(folder, "efficiency-time", "Seconds a training step", "target (tokens)", time)
    curve_figure(folder, "efficiency-memory", "Peak memory (MiB)", "target (tokens)", memory)
    return ["efficiency-time", "efficiency-memory"]
