"""Records -> figures with their captions; ``canvas.py`` makes files of them.

A figure is a function from ``Shown`` to the plots that the records allow. To add one, write such a function and put it
into ``FIGURES``.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np

from skipwise.data.retrieval_prompts import TASKS
from skipwise.errors import counted
from skipwise.method.lengths import format_length
from skipwise.report.canvas import Figure, Plot, length_axis, log_axis, mark_original, named, write, write_one
from skipwise.report.summary import BASELINES, Folder, Judgement, Row, arm_name, judgements, rows_of
from skipwise.report.tables import format_number, format_share, task_title
from skipwise.results.records import CoverageRecord, TrainingRecord, TrialRecord
from skipwise.results.statistics import Interval, wilson_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Mid-tones, at least 3:1 against white and against #15181c; neighbours differ in lightness too.
ARM_COLOURS = {
    "original": "#848c96",
    "pi-only": "#d9760f",
    "pose": "#2f7de1",
    "full": "#1a9a60",
    "randpos": "#a162d6",
    "cream": "#0f97a8",
    "short": "#a8693d",
    "skipwise": "#e0334c",
}
OTHER_COLOUR = "#c9508f"
_MARKERS = dict(zip(ARM_COLOURS, "osD^vXPh", strict=True))
# Looks of labels that are no arm: blue first, and the original's grey last.
_FREE = [(ARM_COLOURS[arm], _MARKERS[arm]) for arm in ("pose", "pi-only", "full", "randpos", "cream", "short")]
_FREE += [(OTHER_COLOUR, "*"), (ARM_COLOURS["original"], _MARKERS["original"])]
_DASHES = ["-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2))]
_COVERAGE_COLOURS = {
    "original": "#848c96",
    "1 chunk": "#848c96",
    "2 chunks": "#2f7de1",
    "3 chunks": "#1a9a60",
    "RandPos": "#a162d6",
    "CREAM": "#0f97a8",
}
_FEW_TRIALS = 100  # prompts of a length, below which depths are shown in five parts instead of ten
_ANNOTATION: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 8, "alpha": 0.85}


@dataclass(frozen=True)
class Shown:
    """The folders whose records are drawn."""

    folders: Sequence[Folder]

    @cached_property
    def rows(self) -> list[Row]:
        """A row for each model and text."""
        return rows_of(self.folders)

    @cached_property
    def judged(self) -> list[Judgement]:
        """How far each extended model reads."""
        return judgements(self.rows)

    @property
    def original(self) -> int | None:
        """The original length in tokens, if all judged models share it."""
        lengths = {row.original for row in self.rows if row.judged}
        return lengths.pop() if len(lengths) == 1 else None

    @property
    def few(self) -> list[Row]:
        """All rows, or where there are many only those of extended models: what a caption names."""
        return self.rows if len(self.rows) <= 4 else [row for row in self.rows if row.judged]


def draw_figures(folders: Sequence[Folder], out: Path) -> list[Figure]:
    """Draw what the records of one or more folders allow into the folder ``out``, replacing files of the same names."""
    shown = Shown(folders)
    return [write(plot, out) for figure in FIGURES for plot in figure(shown)]


def perplexity_plots(shown: Shown) -> Iterator[Plot]:
    """Perplexity by window, a line for each row; logarithmic where a model fails."""
    rows = [row for row in shown.rows if row.perplexity]
    points = [(row, w, p) for row in rows for w, p in row.perplexity.items()]
    values = [p.mean for _, _, p in points if math.isfinite(p.mean)]
    if not values:
        return
    log = max(values) / min(values) > 3

    def draw(axes: "Axes", ink: str) -> None:
        for row, style in zip(rows, _styles_of(_arms(rows)), strict=True):
            curve = {w: p.mean for w, p in row.perplexity.items() if math.isfinite(p.mean)}
            axes.plot(list(curve), list(curve.values()), label=named(row.label), **style)
        length_axis(axes, sorted({w for _, w, _ in points}), "window (tokens)")
        if log:
            log_axis(axes, min(values), max(values))
        mark_original(axes, shown.original, ink)

    changes = [_change(row) for row in shown.few if row.perplexity]
    caption = f"Lower is better. From the shortest window to the longest, {_listed(changes)}."
    if any(folder.models for folder in shown.folders):
        caption += (
            " A level curve beyond the original length is needed but proves little, because sliding windows of any "
            "length score well on their last few hundred tokens."
        )
    columns = ["model", "window", "documents", "tokens_scored", "perplexity", "low_95", "high_95"]
    data = [
        [row.label, w, len(read), sum(r.tokens for r in read), p.mean, p.low, p.high]
        for row, w, p in points
        for read in [row.readings(w)]
    ]
    yield Plot("perplexity", "Perplexity by window" + " (log scale)" * log, columns, data, draw, caption)


def _change(row: Row) -> str:
    """How a model goes from its shortest window to its longest."""
    first, last = (row.perplexity[end(row.perplexity)].mean for end in (min, max))
    ends = format_number(first), format_number(last)
    if len(row.perplexity) == 1:
        return f"{row.label} has {ends[0]} at {min(row.perplexity):,} tokens, its only window"
    if last > 1.1 * first or last < first / 1.1:
        return f"{row.label} {'rises' if last > first else 'falls'} from {ends[0]} to {ends[1]}"
    return f"{row.label} stays level ({ends[0]} and {ends[1]})"


def found_plots(shown: Shown) -> Iterator[Plot]:
    """The share of prompts answered rightly, by length, with 95% intervals: a figure for each task."""
    for task in dict.fromkeys(task for row in shown.rows for task in row.found):
        rows = [row for row in shown.rows if task in row.found]
        yield _found_plot(task, rows, [row for row in shown.few if task in row.found])


def _found_plot(task: str, rows: list[Row], few: list[Row]) -> Plot:
    lengths = sorted({n for row in rows for n in row.found[task]})
    data: list[list[Any]] = [
        [row.label, n, asked, hits, hits / asked, *wilson_interval(hits, asked)]
        for row in rows
        for n, (hits, asked) in row.found[task].items()
    ]
    width = 0.84 / len(rows)

    def draw(axes: "Axes", ink: str) -> None:
        for i, (row, style) in enumerate(zip(rows, _styles_of(_arms(rows)), strict=True)):
            bars = [values[1:] for values in data if values[0] == row.label]
            places = [lengths.index(bar[0]) + (i - (len(rows) - 1) / 2) * width for bar in bars]
            share, low, high = (np.array([100 * bar[k] for bar in bars]) for k in (3, 4, 5))
            fade = 1.0 if style["linestyle"] == "-" else 0.55
            axes.bar(places, share, width * 0.88, color=style["color"], alpha=fade, label=named(row.label))
            spans = [np.clip(share - low, 0, None), np.clip(high - share, 0, None)]
            axes.errorbar(places, share, spans, fmt="none", ecolor=ink, elinewidth=0.8, alpha=0.5)
            for x, bar, top in zip(places, bars, high, strict=True):
                if len(data) <= 14:  # else the numbers would touch
                    axes.annotate(format_share(bar[3])[:-1], (x, top), (0, 3), **_ANNOTATION)
        axes.set_xticks(range(len(lengths)), [format_length(n) for n in lengths])
        axes.set_xlabel("prompt length (tokens)")
        axes.set_ylim(0, 112)
        axes.set_yticks(range(0, 101, 25), [f"{p}%" for p in range(0, 101, 25)])

    farthest = [
        f"{row.label} {format_share(hits / asked)}"
        for row in few
        for hits, asked in [row.found[task][max(row.found[task])]]
    ]
    caption = (
        f"Five digits are hidden in the prompt, and all must be right. At {lengths[-1]:,} tokens: {_listed(farthest)}. "
        "Thin lines are 95% intervals."
    )
    columns = ["model", "length", "trials", "hits", "share", "low_95", "high_95"]
    title = f"{task_title(task).capitalize()} found, by prompt length"
    return Plot(_file_name(task), title, columns, data, draw, caption)


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
            of = f", {shorten(row.label, 24, placeholder='…')}" if len(rows) > 1 else ""
            name = f"{_file_name(task)}-depth" + (f"-{number}" if len(rows) > 1 else "")
            yield _heat_map(name, f"{task_title(task).capitalize()} found{of}, by depth", row, cells)


def hits_by_depth(trials: Iterable[TrialRecord], bins: int) -> list[list[bool]]:
    """Sort hits by depth into ``bins`` equal parts of the prompt, the first part first."""
    parts: list[list[bool]] = [[] for _ in range(bins)]
    for trial in trials:
        parts[min(int(trial.depth * bins), bins - 1)].append(trial.hit)
    return parts


def _heat_map(name: str, title: str, row: Row, cells: Mapping[int, Sequence[Sequence[bool]]]) -> Plot:
    lengths, parts = list(cells), max(len(column) for column in cells.values())
    colour = ARM_COLOURS.get(row.arm, ARM_COLOURS["pose"])
    data: list[list[Any]] = [
        [row.label, n, i / parts, (i + 1) / parts, len(hits), sum(hits)]
        for n, column in cells.items()
        for i, hits in enumerate(column)
    ]

    def draw(axes: "Axes", ink: str) -> None:
        for _, n, top, _, trials, hits in data:
            x, y, share = lengths.index(n), top * parts, hits / trials if trials else 0.0
            axes.bar(x + 0.5, 0.92, 0.94, y + 0.04, color=colour, alpha=0.05 + 0.7 * share, lw=0)
            text = format_share(share) if trials else "–"
            axes.text(x + 0.5, y + 0.52, text, ha="center", va="center", fontsize=9 if parts <= 5 else 7.5)
        axes.set_xlim(0, len(lengths))
        axes.set_ylim(parts, 0)
        axes.set_xticks([i + 0.5 for i in range(len(lengths))], [format_length(n) for n in lengths])
        marks = range(0, parts + 1, 1 if parts <= 5 else 2)
        axes.set_yticks(marks, [f"{i / parts:.0%}" for i in marks])
        axes.set_xlabel("prompt length (tokens)")
        axes.grid(visible=False)

    caption = (
        "0% is the beginning of the prompt, farthest from the question. Each cell is the share of prompts answered "
        "rightly; pale cells are where the number is missed."
    )
    columns = ["model", "length", "depth_from", "depth_to", "trials", "hits"]
    return Plot(name, title, columns, data, draw, caption)


def position_plots(shown: Shown) -> Iterator[Plot]:
    """What far text is worth by position, the loss over the base by position, and perplexity of the first tokens."""
    if not any(folder.models for folder in shown.folders):
        return
    judged, positions = shown.judged, "position (tokens)"
    gain = {j.row.label: {b.end: b.gain for b in j.buckets if b.gain} for j in judged}
    excess = {j.row.label: {b.end: b.excess for b in j.buckets if b.excess} for j in judged}
    first = {j.row.label: {n: Interval(p, math.nan, math.nan) for n, p in j.row.truncated().items()} for j in judged}
    for name, title, axis, curves, caption in (
        (
            "gain",
            "Gain by far text (nats) by position",
            positions,
            gain,
            "How much better a token is predicted with all of its document before it than in a window of the original "
            "length. Above zero, far text is used. Each point stands for the tokens since the point before it.",
        ),
        (
            "excess",
            "Loss over the base (nats) by position",
            positions,
            excess,
            "The loss less that of the base, which predicts the same tokens in windows of its own length. Below zero, "
            "the model is better than its base.",
        ),
        (
            "first-tokens",
            "Perplexity of the first tokens",
            "tokens read",
            first,
            "From one pass over each document: what follows a token does not change its loss.",
        ),
    ):
        curves = {label: curve for label, curve in curves.items() if curve}
        if any(len(curve) > 1 for curve in curves.values()):
            yield curve_plot(name, title, axis, curves, shown.original, caption)


def loss_plots(shown: Shown) -> Iterator[Plot]:
    """Training loss over tokens where they are known, else over steps; a step that was logged twice counts last."""
    logs: dict[tuple[str, str], dict[int, TrainingRecord]] = {}
    for folder in shown.folders:
        for r in folder.records:
            if isinstance(r, TrainingRecord):
                logs.setdefault((folder.name, r.arm), {})[r.step] = r
    steps = {key: [log[step] for step in sorted(log)] for key, log in logs.items()}
    if not any(len(log) > 1 for log in steps.values()):
        return
    by_tokens = all(a.tokens < b.tokens for log in steps.values() for a, b in pairwise(log))
    several = len(shown.folders) > 1
    labels = [f"{run} · {arm_name(arm)}" if several else arm_name(arm) for run, arm in steps]
    lines = list(zip(labels, steps.values(), _styles_of([arm for _, arm in steps]), strict=True))

    def draw(axes: "Axes", ink: str) -> None:
        for label, log, style in lines:
            x = [r.tokens if by_tokens else r.step for r in log]
            line = {"color": style["color"], "linestyle": style["linestyle"]}
            axes.plot(x, [r.loss for r in log], lw=0.9, alpha=0.35, **line)
            axes.plot(x, _smooth([r.loss for r in log]), lw=1.8, label=named(label), **line)
        axes.set_xlabel("tokens trained on" if by_tokens else "optimizer step")
        axes.xaxis.set_major_formatter(lambda value, _: _short_count(value))
        axes.set_xlim(left=0)

    trained = [f"{label} {counted(log[-1].step, 'step')}, {log[-1].tokens:,} tokens" for label, log, _ in lines]
    caption = f"Pale: as logged; strong: smoothed. Trained: {'; '.join(trained)}."
    columns = ["model", "step", "tokens", "loss", "learning_rate", "grad_norm", "tokens_per_second"]
    data = [
        [label, r.step, r.tokens, r.loss, r.learning_rate, r.grad_norm, r.tokens_per_second]
        for label, log, _ in lines
        for r in log
    ]
    yield Plot("loss", "Training loss (nats per token)", columns, data, draw, caption)


def coverage_plots(shown: Shown) -> Iterator[Plot]:
    """The probability that one example trains each relative distance (the paper's ``fig:prob``)."""
    found = (r for folder in shown.folders for r in folder.records if isinstance(r, CoverageRecord))
    curves = list({(r.label, r.train_length, r.target_length): r for r in found}.values())
    if not curves:
        return
    longest, trained = max(r.target_length for r in curves), curves[0].train_length

    def draw(axes: "Axes", ink: str) -> None:
        for r in curves:
            colour = _COVERAGE_COLOURS.get(r.label, OTHER_COLOUR)
            p, error = np.array(r.probability), 1.96 * np.array(r.standard_error)
            axes.plot(r.distances, p, lw=1.8, color=colour, label=named(r.label))
            if error.any():
                axes.fill_between(r.distances, p - error, p + error, color=colour, alpha=0.2, lw=0)
        ticks = [longest * i // 4 for i in range(5)]
        axes.set_xticks(ticks, [format_length(t) if t else "0" for t in ticks])
        axes.set_xlabel("relative distance (tokens)")
        axes.set_xlim(0, longest)
        axes.set_ylim(0, 1.04)

    caption = (
        f"Training windows of {trained:,} tokens alone never show the model two tokens farther apart than "
        f"{trained - 1:,}; with skipped positions every distance up to the target gets its share of examples."
    )
    columns = ["label", "train_length", "target_length", "distance", "probability", "standard_error"]
    data = [
        [r.label, r.train_length, r.target_length, *point]
        for r in curves
        for point in zip(r.distances, r.probability, r.standard_error, strict=True)
    ]
    yield Plot("coverage", "Chance that one example trains a distance", columns, data, draw, caption)


FIGURES: list[Callable[[Shown], Iterator[Plot]]] = [
    perplexity_plots,
    found_plots,
    depth_plots,
    position_plots,
    loss_plots,
    coverage_plots,
]


def coverage_figure(records: Sequence[CoverageRecord], path: Path) -> None:
    """Draw coverage curves into one file, ``.svg`` or ``.png``."""
    [plot] = coverage_plots(Shown([Folder("", list(records))]))
    write_one(plot, path)


def curve_plot(
    name: str,
    title: str,
    axis: str,
    curves: Mapping[str, Mapping[int, Interval]],
    original: int | None = None,
    caption: str = "",
) -> Plot:
    """A line for each label over lengths or steps, logarithmic where values lie far apart.

    ``curves`` maps label -> x -> value; a label that is an arm has the arm's colour, and finite intervals are drawn as
    a band. A dashed line marks the ``original`` length in tokens.
    """
    places = sorted({x for curve in curves.values() for x in curve})
    values = [v.mean for curve in curves.values() for v in curve.values() if math.isfinite(v.mean)]
    low, high = min(values), max(values)

    def draw(axes: "Axes", ink: str) -> None:
        spanned = False
        for (label, curve), style in zip(curves.items(), _styles_of(list(curves)), strict=True):
            points = {x: v for x, v in sorted(curve.items()) if math.isfinite(v.mean)}
            axes.plot(list(points), [v.mean for v in points.values()], label=named(arm_name(label)), **style)
            if band := {x: v for x, v in points.items() if math.isfinite(v.low) and math.isfinite(v.high)}:
                spanned = True
                ends = [v.low for v in band.values()], [v.high for v in band.values()]
                axes.fill_between(list(band), *ends, color=style["color"], alpha=0.15, lw=0)
        length_axis(axes, places, axis)
        if low > 0 and high / low > 3:
            log_axis(axes, low, high)
        if low < 0 or (spanned and axes.get_ylim()[0] < 0):
            axes.axhline(0, color=ink, lw=0.8, alpha=0.5, zorder=1)
        mark_original(axes, original, ink)

    columns = ["label", axis, title, "low_95", "high_95"]
    data = [[label, x, v.mean, v.low, v.high] for label, curve in curves.items() for x, v in sorted(curve.items())]
    return Plot(name, title, columns, data, draw, caption)


def _looks(labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for each label: an arm's own, and for another label what no arm beside it has."""
    looks = {label: (ARM_COLOURS[label], _MARKERS[label]) for label in labels if label in ARM_COLOURS}
    free = [look for look in _FREE if look not in looks.values()]
    others = dict.fromkeys(label for label in labels if label not in looks)
    return looks | {label: free[turn % len(free)] for turn, label in enumerate(others)}


def _arms(rows: Sequence[Row]) -> list[str]:
    """The arm of each row; a base that an evaluation compares with looks as the original of a run."""
    return [row.arm if row.judged or row.arm in ARM_COLOURS else "original" for row in rows]


def _styles_of(labels: Sequence[str]) -> list[dict[str, Any]]:
    """A colour and a marker by label, and a dash for each further line of the same label."""
    looks = _looks(labels)
    return [
        {
            "color": looks[label][0],
            "marker": looks[label][1],
            "linestyle": _DASHES[list(labels[:i]).count(label) % len(_DASHES)],
            "lw": 1.5 if label in BASELINES else 2.2,
        }
        for i, label in enumerate(labels)
    ]


def _listed(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def _smooth(values: list[float]) -> list[float]:
    """Exponential moving average over about a fifteenth of the curve, without bias at its start."""
    keep = 1 - 1 / max(1.0, len(values) / 15)
    mean = weight = 0.0
    smoothed = []
    for value in values:
        mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
        smoothed.append(mean / weight)
    return smoothed


def _short_count(value: float) -> str:
    for size, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"
