"""Records -> figures with their captions; ``canvas.py`` makes files of them.

A figure is a function from ``Shown`` to the plots that the records allow. To add one, write such a function and put it
into ``FIGURES``.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skipwise.errors import counted
from skipwise.method.lengths import format_length
from skipwise.recipes.names import arm_name
from skipwise.report.by_step import perplexity_by_step
from skipwise.report.canvas import (
    Figure,
    Plot,
    base_line,
    length_axis,
    log_axis,
    mark_original,
    named,
    percent_axis,
    powers_of_two,
    write,
    write_one,
)
from skipwise.report.folder import Folder
from skipwise.report.retrieval_figures import depth_plots, found_plots
from skipwise.report.ruler_figures import ruler_plots
from skipwise.report.shown import ARM_LOOKS, DASHES, OTHER_LOOK, Look, Shown, listed, looks_of
from skipwise.report.summary import Row
from skipwise.report.table import format_number
from skipwise.results.records import CoverageRecord, TrainingRecord
from skipwise.results.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NEAR = 2  # times the lowest curve's end
_COVERAGE_LOOKS = {
    "original": ("#848c96", DASHES[0]),
    "1 chunk": ("#848c96", DASHES[0]),
    "2 chunks": ("#2f7de1", DASHES[0]),
    "3 chunks": ("#1a9a60", DASHES[1]),
    "RandPos": ("#a162d6", DASHES[2]),
    "CREAM": ("#0f97a8", DASHES[3]),
}


def draw_figures(shown: Shown, out: Path) -> list[Figure]:
    """Draw what the records allow into the folder ``out``, replacing files of the same names."""
    return [write(plot, out) for figure in FIGURES for plot in figure(shown)]


def perplexity_plots(shown: Shown) -> Iterator[Plot]:
    """Perplexity by window, a line for each row; logarithmic where a model fails."""
    rows = [row for row in shown.rows if row.perplexity]
    points = [(row, w, p) for row in rows for w, p in row.perplexity.items()]
    values = [p.mean for _, _, p in points if math.isfinite(p.mean)]
    if not values:
        return
    log = max(values) / min(values) > 3
    longest = max(w for _, w, _ in points)
    bases = [row for row in rows if row in shown.bases and max(row.perplexity) < longest]

    def draw(axes: "Axes", ink: str) -> None:
        for row in rows:
            curve = {w: p.mean for w, p in row.perplexity.items() if math.isfinite(p.mean)}
            axes.plot(list(curve), list(curve.values()), label=named(row.label), **shown.looks[row.label].line)
        for row in bases:
            base_line(axes, row.perplexity[max(row.perplexity)].mean, shown.looks[row.label].colour)
        length_axis(axes, sorted({w for _, w, _ in points}), "window (tokens)")
        axes.set_ylabel("perplexity")
        if log:
            log_axis(axes, min(values), max(values))
        mark_original(axes, shown.original, ink)

    changes = [_change(row) for row in shown.few if row.perplexity]
    caption = f"Lower is better. From the shortest window to the longest, {listed(changes)}."
    caption += "".join(f" The dashed line is {row.label} at {max(row.perplexity):,} tokens." for row in bases)
    if shown.evaluated:
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


def position_plots(shown: Shown) -> Iterator[Plot]:
    """What far text is worth by position, the loss over the base by position, and perplexity of the first tokens."""
    if not shown.evaluated:
        return
    gain = {j.row.label: {b.end: b.gain for b in j.buckets if b.gain} for j in shown.judged}
    excess = {j.row.label: {b.end: b.excess for b in j.buckets if b.excess} for j in shown.judged}
    read = [*(j.row for j in shown.judged), *shown.bases]
    first = {row.label: {n: Interval(p.mean, math.nan, math.nan) for n, p in row.truncated().items()} for row in read}
    bases = listed([row.label for row in shown.bases])
    for name, title, axes, curves, zero, caption in (
        (
            "gain",
            "Gain by far text, by position",
            ("position (tokens)", "gain (nats per token)"),
            gain,
            "no gain",
            "How much better a token is predicted with all of its document before it than in a window of the original "
            "length. Above zero, far text is used. Each point stands for the tokens since the point before it.",
        ),
        (
            "excess",
            "Loss over the base, by position",
            ("position (tokens)", "difference (nats per token)"),
            excess,
            bases,
            "The loss less that of the base, which predicts the same tokens in windows of its own length. Below zero, "
            "the model is better than its base.",
        ),
        (
            "first-tokens",
            "Perplexity of the first tokens",
            ("tokens read", "perplexity"),
            first,
            "",
            "From one pass over each document: what follows a token does not change its loss."
            + (f" {bases} reads no farther than its own window." if len(shown.bases) == 1 else ""),
        ),
    ):
        curves = {label: curve for label, curve in curves.items() if curve}
        if any(len(curve) > 1 for curve in curves.values()):
            yield curve_plot(name, title, axes, curves, shown.original, caption, looks=shown.looks, zero=zero)


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
    lines = list(zip(labels, steps.values(), looks_of([arm for _, arm in steps]), strict=True))

    def draw(axes: "Axes", ink: str) -> None:
        for label, log, look in lines:
            x = [r.tokens if by_tokens else r.step for r in log]
            axes.plot(x, [r.loss for r in log], color=look.colour, lw=0.9, alpha=0.35)
            axes.plot(x, _smooth([r.loss for r in log]), label=named(label), markevery=0.15, **look.line)
        axes.set_ylabel("loss (nats per token)")
        axes.set_xlabel("tokens trained on" if by_tokens else "optimizer step")
        axes.xaxis.set_major_formatter(lambda value, _: _short_count(value))
        axes.set_xlim(left=0)

    trained = [f"{label} {counted(log[-1].step, 'step')}, {log[-1].tokens:,} tokens" for label, log, _ in lines]
    caption = f"Pale: as logged; strong: smoothed. Trained: {'; '.join(trained)}."
    beside = [term for folder in shown.folders for term in _beside_text(folder.info.get("settings", {}))]
    if beside:
        caption += (
            f" The loss holds {listed(list(dict.fromkeys(beside)))}, so it is not that of the text, and it rises in steps that "
            "have more of this."
        )
    columns = ["model", "step", "tokens", "loss", "learning_rate", "grad_norm", "tokens_per_second"]
    data = [
        [label, r.step, r.tokens, r.loss, r.learning_rate, r.grad_norm, r.tokens_per_second]
        for label, log, _ in lines
        for r in log
    ]
    yield Plot("loss", "Training loss", columns, data, draw, caption)


def _beside_text(settings: Mapping[str, Any]) -> list[str]:
    """What the training loss of a run with these settings holds besides the mean loss of its labels."""
    weights = settings.get("data.answer_weight", 1), settings.get("data.first_digit_weight") or 1
    prompts = settings.get("data.retrieval") or settings.get("data.retrieval_end")
    return [
        *(["the teacher's term"] if settings.get("teacher.weight") is not None else []),
        *(["answers with their weights"] if prompts and weights != (1, 1) else []),
    ]


def step_plots(shown: Shown) -> Iterator[Plot]:
    """Perplexity of the model in training, at the steps that were measured."""
    curves = {}
    for folder in shown.folders:
        for (mode, window), curve in perplexity_by_step(folder).items():
            read = f"windows of {window:,} tokens" if mode == "sliding" else "far text"
            curves[f"{folder.name} · {read}" if len(shown.folders) > 1 else read] = curve
    if not any(len(curve) > 1 for curve in curves.values()):
        return
    lowest = listed([f"{label} at step {min(c, key=lambda step: c[step].mean):,}" for label, c in curves.items()])
    caption = f"Of the first text. Lower is better; lowest: {lowest}."
    if any("far text" in label for label in curves):
        caption += " Far text: the tokens beyond the original window, by which the best step is chosen."
    looks = dict(zip(curves, looks_of(list(curves)), strict=True))
    columns = ["read", "step", "perplexity", "low_95", "high_95"]
    data = [[label, step, p.mean, p.low, p.high] for label, curve in curves.items() for step, p in curve.items()]

    def draw(axes: "Axes", ink: str) -> None:
        for label, curve in curves.items():
            axes.plot(list(curve), [p.mean for p in curve.values()], label=named(label), **looks[label].line)
        axes.set_xlabel("optimizer step")
        axes.set_ylabel("perplexity")

    yield Plot("steps", "Perplexity by training step", columns, data, draw, caption)


def coverage_plots(shown: Shown) -> Iterator[Plot]:
    """The probability that one example trains each relative distance (the paper's ``fig:prob``)."""
    found: dict[object, tuple[str, CoverageRecord]] = {}
    for folder in shown.folders:
        for r in folder.records:
            if isinstance(r, CoverageRecord):  # equal curves of several runs are one
                found.setdefault((r.label, tuple(r.probability)), (folder.name, r))
    if not found:
        return
    curves = [r for _, r in found.values()]
    several = Counter(r.label for r in curves)
    labels = [r.label if several[r.label] == 1 else f"{run} · {r.label}" for run, r in found.values()]
    longest = max(r.target_length for r in curves)
    skipping = [
        r for r in curves if any(p for d, p in zip(r.distances, r.probability, strict=True) if d >= r.train_length)
    ]
    trained = max(r.train_length for r in skipping or curves)

    def draw(axes: "Axes", ink: str) -> None:
        for i, (label, r) in enumerate(zip(labels, curves, strict=True)):
            colour, dash = _COVERAGE_LOOKS.get(r.label, (OTHER_LOOK.colour, OTHER_LOOK.dash))
            if several[r.label] > 1:
                dash = DASHES[i % len(DASHES)]
            p, error = np.array(r.probability), 1.96 * np.array(r.standard_error)
            axes.plot(r.distances, p, lw=1.8, color=colour, linestyle=dash, label=named(label))
            if error.any():
                axes.fill_between(r.distances, p - error, p + error, color=colour, alpha=0.2, lw=0)
        ticks = [n for n in powers_of_two(1, longest) if longest / 8 <= n <= longest]  # shorter ones would touch
        axes.set_xticks([0, *ticks], ["0", *map(format_length, ticks)])
        axes.set_xlabel("relative distance (tokens)")
        axes.set_xlim(0, longest)
        axes.set_ylabel("probability")
        axes.set_ylim(0, 1.04)

    with_skips = "; with skipped positions every distance up to the target gets its share of examples"
    with_skips = with_skips if skipping else ", and these runs skip no positions"
    caption = (
        f"Training windows of {trained:,} tokens alone never show the model two tokens farther apart than "
        f"{trained - 1:,}{with_skips}. Examples that are retrieval prompts or text of the base are not counted."
    )
    columns = ["label", "train_length", "target_length", "distance", "probability", "standard_error"]
    data = [
        [label, r.train_length, r.target_length, *point]
        for label, r in zip(labels, curves, strict=True)
        for point in zip(r.distances, r.probability, r.standard_error, strict=True)
    ]
    yield Plot("coverage", "Chance that one example trains a distance", columns, data, draw, caption)


FIGURES: list[Callable[[Shown], Iterator[Plot]]] = [
    perplexity_plots,
    found_plots,
    depth_plots,
    ruler_plots,
    position_plots,
    loss_plots,
    step_plots,
    coverage_plots,
]


def coverage_figure(records: Sequence[CoverageRecord], path: Path) -> None:
    """Draw coverage curves into one file, ``.svg`` or ``.png``."""
    [plot] = coverage_plots(Shown([Folder("", list(records))]))
    write_one(plot, path)


def curve_plot(
    name: str,
    title: str,
    axis: tuple[str, str],
    curves: Mapping[str, Mapping[int, Interval]],
    original: int | None = None,
    caption: str = "",
    *,
    looks: Mapping[str, Look] | None = None,
    zero: str = "",
    percent: bool = False,
    near: bool = False,
) -> Plot:
    """A line for each label over lengths or steps, logarithmic where values lie far apart.

    ``axis`` names the x axis and the y axis, with their units. ``curves`` maps label -> x -> value; finite intervals are
    drawn as a band. A label that is an arm looks as the arm, if ``looks`` does not say otherwise. A dashed line marks the
    ``original`` length in tokens, and another one what ``zero`` names. ``percent`` values have an axis from 0 to 100. With
    ``near`` the axis reaches as far as the curves that end near the lowest one; others leave the figure, and the legend says
    where they end.
    """
    places = sorted({x for curve in curves.values() for x in curve})
    finite = {label: [v.mean for _, v in sorted(c.items()) if math.isfinite(v.mean)] for label, c in curves.items()}
    ends = {label: values[-1] for label, values in finite.items() if values}
    far = {label for label, end in ends.items() if near and end > _NEAR * min(ends.values())}
    low = min(min(values) for values in finite.values() if values)
    high = max(max(values) for label, values in finite.items() if values and label not in far)
    looks = looks or dict(zip(curves, looks_of(list(curves)), strict=True))

    def draw(axes: "Axes", ink: str) -> None:
        for label, curve in curves.items():
            points = {x: v for x, v in sorted(curve.items()) if math.isfinite(v.mean)}
            ending = f" (ends at {format_number(ends[label])})" if label in far else ""
            axes.plot(
                list(points),
                [v.mean for v in points.values()],
                label=named(arm_name(label) + ending),
                **looks[label].line,
            )
            band = {x: v for x, v in points.items() if math.isfinite(v.low) and math.isfinite(v.high)}
            edges = [v.low for v in band.values()], [v.high for v in band.values()]
            axes.fill_between(list(band), *edges, color=looks[label].colour, alpha=0.15, lw=0)
        if zero:
            base_line(axes, 0, ARM_LOOKS["original"].colour, named(zero))
        length_axis(axes, places, axis[0])
        axes.set_ylabel(axis[1])
        if percent:
            axes.set_ylim(-4, 104)
            percent_axis(axes.yaxis, axis[1])
        elif low > 0 and high / low > 3 and not zero:
            log_axis(axes, low, high)
        if far:
            axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
        mark_original(axes, original, ink)

    columns = ["label", axis[0], title, "low_95", "high_95"]
    data = [[label, x, v.mean, v.low, v.high] for label, curve in curves.items() for x, v in sorted(curve.items())]
    return Plot(name, title, columns, data, draw, caption)


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
