"""Retrieval records -> figures: what is found by prompt length, and where in the prompt."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np

from skipwise.data.retrieval_prompts import TASKS
from skipwise.method.lengths import format_length
from skipwise.report.canvas import Plot, base_line, draw_scale, named, percent_axis, shade
from skipwise.report.shown import Look, Shown, listed
from skipwise.report.summary import Row
from skipwise.report.tables import format_share, task_title
from skipwise.results.records import TrialRecord
from skipwise.results.statistics import wilson_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW_TRIALS = 100  # prompts of a length, below which depths are shown in five parts instead of ten
_FOUND = "found (% of prompts)"
_ESCAPED = re.compile(r"\\(x\w{2}|u\w{4})")  # what records hold in place of an unprintable letter


def found_plots(shown: Shown) -> Iterator[Plot]:
    """The share of prompts answered rightly, by length, with 95% intervals: a figure for each task."""
    for task in dict.fromkeys(task for row in shown.rows for task in row.found):
        yield _found_plot(task, [row for row in shown.rows if task in row.found], shown)


def _found_plot(task: str, rows: list[Row], shown: Shown) -> Plot:
    lengths = sorted({n for row in rows for n in row.found[task]})
    data: list[list[Any]] = [
        [row.model, n, asked, hits, hits / asked, *wilson_interval(hits, asked)]
        for row in rows
        for n, (hits, asked) in row.found[task].items()
    ]
    bases = [row for row in rows if row in shown.bases and max(row.found[task]) < lengths[-1]]

    def draw(axes: "Axes", ink: str) -> None:
        for row in rows:
            bars = [values[1:] for values in data if values[0] == row.model]
            places = _places(row, rows, task, lengths)
            _draw_bars(axes, places, bars, 0.74 / len(rows), shown.looks[row.label], row.model, ink)
            for x, (_, _, _, share, _, high) in zip(places, bars, strict=True):
                if len(lengths) * len(rows) <= 10:  # else the numbers would touch
                    axes.text(x, 100 * high + 2, format_share(share)[:-1], ha="center", fontsize=9)
        for row in bases:
            hits, asked = row.found[task][max(row.found[task])]
            base_line(axes, 100 * hits / asked, shown.looks[row.label].colour)
        axes.set_xticks(range(len(lengths)), [format_length(n) for n in lengths])
        axes.set_xlabel("prompt length (tokens)")
        axes.set_ylim(0, 114)
        percent_axis(axes.yaxis, _FOUND)

    few = [row for row in shown.few if task in row.found and row not in bases]
    farthest = [
        f"{row.model} {format_share(hits / asked)}"
        for row in few
        for n, (hits, asked) in row.found[task].items()
        if n == lengths[-1]
    ]
    caption = (
        "Five digits are hidden in the prompt, and all must be right. "
        + (f"At {lengths[-1]:,} tokens: {listed(farthest)}. " if farthest else "")
        + _without_number(task, few, lengths[-1])
        + "Thin lines are 95% intervals."
        + "".join(f" The dashed line is {row.model} at {max(row.found[task]):,} tokens." for row in bases)
    )
    columns = ["model", "length", "trials", "hits", "share", "low_95", "high_95"]
    return Plot(
        _file_name(task), f"{task_title(task).capitalize()} found, by prompt length", columns, data, draw, caption
    )


def _without_number(task: str, rows: Sequence[Row], length: int) -> str:
    """How many of the misses at a length hold no digit: there a model did not answer, whether or not it read so far."""
    misses = {row.model: [t for t in row.trials[task].get(length, {}).values() if not t.hit] for row in rows}
    told = [
        f"{model} {sum(not re.search('[0-9]', _ESCAPED.sub('', t.answer)) for t in missed)} of {len(missed)}"
        for model, missed in misses.items()
        if missed
    ]
    return f"Misses there whose answer has no number: {listed(told)}. " if told else ""


def _places(row: Row, rows: Sequence[Row], task: str, lengths: Sequence[int]) -> list[float]:
    """Where a row's bars stand: those of a length are side by side, and their middle is on the tick."""
    places = []
    for n in row.found[task]:
        beside = [other for other in rows if n in other.found[task]]
        places.append(lengths.index(n) + (beside.index(row) - (len(beside) - 1) / 2) * 0.84 / len(rows))
    return places


def _draw_bars(
    axes: "Axes", places: list[float], bars: list[Any], width: float, look: Look, label: str, ink: str
) -> None:
    share, low, high = (np.array([100 * bar[k] for bar in bars]) for k in (3, 4, 5))
    fade = 1.0 if look.dash == "-" else 0.55
    fill: dict[str, Any] = {"color": look.colour, "alpha": fade, "hatch": look.hatch, "edgecolor": "#ffffff", "lw": 0}
    axes.bar(places, share, width, label=named(label), **fill)
    spans = [np.clip(share - low, 0, None), np.clip(high - share, 0, None)]
    axes.errorbar(places, share, spans, fmt="none", ecolor=ink, elinewidth=0.8, alpha=0.5)


def _file_name(task: str) -> str:
    """The task's name; for an unknown one, which may hold anything, a name that leads into no other folder."""
    return task if task in TASKS else f"task-{hashlib.sha256(task.encode()).hexdigest()[:8]}"


def depth_plots(shown: Shown) -> Iterator[Plot]:
    """Where in the prompt numbers are found: a heat map for each task and extended model."""
    rows = [row for row in shown.rows if row.judged and row.found]
    for number, row in enumerate(rows, 1):
        for task, lengths in row.trials.items():
            few = max(len(trials) for trials in lengths.values()) < _FEW_TRIALS
            cells = {n: hits_by_depth(t.values(), 5 if few else 10) for n, t in lengths.items()}
            of = f", {shorten(row.model, 48, placeholder='…')}" if len(rows) > 1 else ""
            name = f"{_file_name(task)}-depth" + (f"-{number}" if len(rows) > 1 else "")
            title = f"{task_title(task).capitalize()} found{of}, by depth"
            yield _heat_map(name, title, row.model, shown.looks[row.label].colour, cells)


def hits_by_depth(trials: Iterable[TrialRecord], bins: int) -> list[list[bool]]:
    """Sort hits by depth into ``bins`` equal parts of the prompt, the first part first."""
    parts: list[list[bool]] = [[] for _ in range(bins)]
    for trial in trials:
        parts[min(int(trial.depth * bins), bins - 1)].append(trial.hit)
    return parts


def _heat_map(name: str, title: str, label: str, colour: str, cells: Mapping[int, Sequence[Sequence[bool]]]) -> Plot:
    lengths, parts = list(cells), max(len(column) for column in cells.values())
    data: list[list[Any]] = [
        [label, n, i / parts, (i + 1) / parts, len(hits), sum(hits)]
        for n, column in cells.items()
        for i, hits in enumerate(column)
    ]

    def draw(axes: "Axes", ink: str) -> None:
        for _, n, top, _, trials, hits in data:
            x, y = lengths.index(n), 100 * top
            if trials:
                axes.bar(x + 0.5, 92 / parts, 0.94, y + 4 / parts, lw=0, **shade(colour, hits / trials))
            text = format_share(hits / trials)[:-1] if trials else "–"
            axes.text(x + 0.5, y + 52 / parts, text, ha="center", va="center", fontsize=9)
        axes.set_xlim(0, len(lengths))
        axes.set_ylim(100, 0)
        axes.set_xticks([i + 0.5 for i in range(len(lengths))], [format_length(n) for n in lengths])
        axes.set_xlabel("prompt length (tokens)")
        percent_axis(axes.yaxis, "depth in the prompt (%)", 20)
        axes.grid(visible=False)
        draw_scale(axes, colour, _FOUND)

    untried = " A dash stands where no prompt was asked." if any(not row[4] for row in data) else ""
    caption = (
        "Depth 0% is the beginning of the prompt, farthest from the question. Each cell is the share of prompts answered "
        f"rightly, in per cent: the stronger its colour, the more.{untried}"
    )
    columns = ["model", "length", "depth_from", "depth_to", "trials", "hits"]
    return Plot(name, title, columns, data, draw, caption)
