"""Numbers -> figures with their captions; ``canvas.py`` writes their files.

A figure is a function from ``ReportData`` to the plots that the records allow. To add one, write such a function and put it
into ``FIGURES``.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill, shorten
from typing import TYPE_CHECKING, Any

import numpy as np

from skipwise.errors import counted
from skipwise.method.lengths import format_length
from skipwise.recipes.names import display_name
from skipwise.report import canvas
from skipwise.report.canvas import LOOKS, Plot, curve_plot, looks_of, named
from skipwise.report.numbers import EXCESS, GAIN, Curves, ReportData, format_share, task_title
from skipwise.report.rows import Row, perplexity_by_step
from skipwise.results.records import CoverageRecord, TrainingRecord, TrialRecord
from skipwise.results.scores import THRESHOLD
from skipwise.results.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW_TRIALS = 100  # prompts of a length: with fewer, depths are in five parts instead of ten
_FOUND = "found (% of prompts)"


def draw_figures(data: ReportData, out: Path) -> list[tuple[Plot, str]]:
    """Draw all figures that the records allow into ``out``; return each with its SVG."""
    return [(plot, canvas.write(plot, out)) for figure in FIGURES for plot in figure(data)]


def _shorter_bases(data: ReportData, curves: Curves) -> tuple[dict[str, int], str]:
    """Return the longest length of bases measured only at shorter lengths, and sentences on their dashed lines."""
    longest = max(max(curve) for curve in curves.values())
    bases = {label: max(curve) for label, curve in curves.items() if label in data.bases and max(curve) < longest}
    return bases, "".join(f" The dashed line is {label} at {length:,} tokens." for label, length in bases.items())


def _data(curves: Curves) -> list[list[Any]]:
    """Return label, length, count and interval of each number."""
    numbers = [(label, length, number) for label, curve in curves.items() for length, number in curve.items()]
    return [[label, n, x.count, x.value.mean, x.value.low, x.value.high] for label, n, x in numbers]


def perplexity_plots(data: ReportData) -> Iterator[Plot]:
    """Plot perplexity by window, a line for each row."""
    curves = data.curves("perplexity", "perplexity")
    if not any(math.isfinite(number.value.mean) for curve in curves.values() for number in curve.values()):
        return
    bases, dashed = _shorter_bases(data, curves)
    caption = f"Lower is better.{dashed}"
    if data.evaluated:
        caption += (
            " A level curve beyond the original length is necessary but proves little: sliding windows of any length score "
            "well on their last few hundred tokens."
        )
    levels = [(curves[label][length].value.mean, data.looks[label].colour, "") for label, length in bases.items()]
    axes, title = ("window (tokens)", "perplexity"), "Perplexity by window"
    plot = curve_plot(
        "perplexity", title, axes, _intervals(curves), data.original, caption, looks=data.looks, levels=levels
    )
    columns = ["model", "window", "documents", "perplexity", "low_95", "high_95"]
    yield replace(plot, columns=columns, data=_data(curves))


def _intervals(curves: Curves) -> dict[str, dict[int, Interval]]:
    return {
        label: {n: number.value.times(number.measure.factor) for n, number in curve.items()}
        for label, curve in curves.items()
    }


def found_plots(data: ReportData) -> Iterator[Plot]:
    """Plot the share of right answers by length, for each task."""
    for task in data.shorts("found"):
        yield _found_plot(task, data.curves("found", task), data)


def _found_plot(task: str, curves: Curves, data: ReportData) -> Plot:
    lengths = sorted({n for curve in curves.values() for n in curve})
    bases, dashed = _shorter_bases(data, curves)

    def draw(axes: "Axes", ink: str) -> None:
        for label, curve in curves.items():
            places = []  # bars of a length are side by side around its tick
            for n in curve:
                at_length = [other for other in curves if n in curves[other]]
                offset = at_length.index(label) - (len(at_length) - 1) / 2
                places.append(lengths.index(n) + offset * 0.84 / len(curves))
            look, shares = data.looks[label], [number.value.times(100) for number in curve.values()]
            style: dict[str, Any] = {
                "color": look.colour,
                "hatch": look.hatch,
                "edgecolor": "#ffffff",
                "lw": 0,
                "label": named(label),
            }
            opacity = 1.0 if look.dash == "-" else 0.55
            axes.bar(places, [share.mean for share in shares], 0.74 / len(curves), alpha=opacity, **style)
            ends = [share.low for share in shares], [share.high for share in shares]
            axes.vlines(places, *ends, color=ink, lw=0.8, alpha=0.5)
            for x, share in zip(places, shares, strict=True):
                if len(lengths) * len(curves) <= 10:  # else the numbers would touch
                    axes.text(x, share.high + 2, format_share(share.mean / 100)[:-1], ha="center", fontsize=9)
        for label in bases:
            canvas.base_line(axes, 100 * curves[label][bases[label]].value.mean, data.looks[label].colour)
        axes.set_xticks(range(len(lengths)), [format_length(n) for n in lengths])
        axes.set_xlabel("prompt length (tokens)")
        axes.set_ylim(0, 114)
        axes.set_yticks(range(0, 101, 25))
        axes.set_ylabel(_FOUND)

    caption = "Five digits are hidden in the prompt, and all must be right. Thin lines are 95% intervals."
    columns = ["model", "length", "trials", "hits", "share", "low_95", "high_95"]
    table = [[label, n, count, round(count * mean), mean, *ends] for label, n, count, mean, *ends in _data(curves)]
    title = f"{task_title(task).capitalize()} found, by prompt length"
    return Plot(re.sub(r"\W+", "-", task), title, columns, table, draw, caption + dashed)


def depth_plots(data: ReportData) -> Iterator[Plot]:
    """Plot right answers by depth and length as heat maps."""
    rows = [row for row in data.rows if row.judged and row.found]
    for number, row in enumerate(rows, 1):
        for task in row.trials:
            model = f", {shorten(row.model, 48, placeholder='…')}" if len(rows) > 1 else ""
            name = re.sub(r"\W+", "-", f"{task}-depth") + (f"-{number}" if len(rows) > 1 else "")
            title = f"{task_title(task).capitalize()} found{model}, by depth"
            yield _depth_plot(name, title, row, row.trials[task], data.looks[row.label].colour)


def _depth_plot(name: str, title: str, row: Row, trials: Mapping[int, Mapping[int, TrialRecord]], colour: str) -> Plot:
    parts = 5 if max(map(len, trials.values())) < _FEW_TRIALS else 10
    table: list[list[Any]] = [
        [row.model, length, i / parts, (i + 1) / parts, len(hits), sum(hits)]
        for length, by_number in trials.items()
        for i in range(parts)
        for hits in [[t.hit for t in by_number.values() if min(int(t.depth * parts), parts - 1) == i]]
    ]

    def draw(axes: "Axes", ink: str) -> None:
        cells = [(n, round(top * parts), hits / prompts if prompts else None) for _, n, top, _, prompts, hits in table]
        _draw_heat_map(axes, list(trials), parts, cells, colour, _FOUND)
        axes.set_yticks([parts * k / 5 for k in range(6)], ["0", "20", "40", "60", "80", "100"])
        axes.set_ylabel("depth in the prompt (%)")

    empty = " A dash is a part without prompts." if any(not prompts for *_, prompts, _ in table) else ""
    caption = (
        "Depth 0% is the start of the prompt, farthest from the question. Each cell is the share of right answers in per "
        f"cent.{empty}"
    )
    columns = ["model", "length", "depth_from", "depth_to", "trials", "hits"]
    return Plot(name, title, columns, table, draw, caption)


def _draw_heat_map(
    axes: "Axes",
    lengths: Sequence[int],
    rows: int,
    cells: Iterable[tuple[int, int, float | None]],
    colour: str,
    unit: str,
) -> None:
    """Draw a share for each (length, row), a dash for None."""
    colours = canvas.share_colours(axes, colour, unit)
    for length, y, share in cells:
        x = lengths.index(length) + 0.5
        if share is not None:
            axes.bar(x, 0.92, 0.94, y + 0.04, lw=0, color=colours(share))
        text = "–" if share is None else format_share(share)[:-1]
        axes.text(x, y + 0.52, text, ha="center", va="center", fontsize=9)
    axes.set_xlim(0, len(lengths))
    axes.set_ylim(rows, 0)
    axes.set_xticks([x + 0.5 for x in range(len(lengths))], [format_length(n) for n in lengths])
    axes.set_xlabel("prompt length (tokens)")
    axes.grid(visible=False)


def ruler_plots(data: ReportData) -> Iterator[Plot]:
    """Plot RULER's averages by length, and heat maps of its tasks."""
    rows = [row for row in data.rows if row.ruler]
    if averages := data.curves("ruler"):
        tasks = data.ruler_tasks
        caption = (
            f"The mean of {counted(len(tasks), 'task')}: {', '.join(tasks)}. The dashed line is RULER's limit, {THRESHOLD:.1%}: "
            "what Llama-2-7B scores at 4,096 tokens. Bands are 95% intervals."
        )
        curves, axes = _intervals(averages), ("prompt length (tokens)", "score (%)")
        title, levels = f"{data.ruler_name}, average by prompt length", [(100 * THRESHOLD, "", "")]
        plot = curve_plot(
            "ruler", title, axes, curves, data.original, caption, looks=data.looks, percent=True, levels=levels
        )
        columns = ["model", "length", "tasks", "score", "low_95", "high_95"]
        yield replace(plot, columns=columns, data=_data(averages))
    for number, row in enumerate(rows, 1):
        name = f"ruler-tasks-{number}" if len(rows) > 1 else "ruler-tasks"
        model = f": {shorten(row.model, 40, placeholder='…')}" if len(rows) > 1 else ""
        yield _ruler_heat_map(name, f"{data.ruler_name} by task{model}", row, data)


def _ruler_heat_map(name: str, title: str, row: Row, data: ReportData) -> Plot:
    numbers = {task: data.curves("ruler by task", task).get(row.model, {}) for task in data.shorts("ruler by task")}
    tasks = [task for task, curve in numbers.items() if curve]
    lengths, colour = sorted({n for task in tasks for n in numbers[task]}), data.looks[row.label].colour
    heads = [fill(re.sub("[:,]", r"\g<0> ", data.ruler_task(task)), 24) for task in tasks]
    table: list[list[Any]] = [
        [row.model, task, n, numbers[task][n].count, numbers[task][n].value.mean]
        for task in tasks
        for n in lengths
        if n in numbers[task]
    ]

    def draw(axes: "Axes", ink: str) -> None:
        cells = [(length, tasks.index(task), mean) for _, task, length, _, mean in table]
        _draw_heat_map(axes, lengths, len(tasks), cells, colour, "score (%)")
        axes.set_yticks([y + 0.5 for y in range(len(tasks))], heads)
        axes.set_ylabel("task")

    caption = (
        "The mean score of each task in per cent. Empty cells were not measured: the task has no prompt that short, or the model "
        "is a base, measured only inside its own window."
    )
    columns = ["model", "task", "length", "prompts", "score"]
    lines = 1 + max(head.count("\n") for head in heads)
    height = 1.0 + len(tasks) * (0.07 + 0.14 * lines)  # inches
    return Plot(name, title, columns, table, draw, caption, height=height)


def position_plots(data: ReportData) -> Iterator[Plot]:
    """Plot gain by far text and loss over the base by position, and perplexity of the first tokens."""
    if not data.evaluated:
        return
    read = [*(judged.row for judged in data.judged), *(row for row in data.rows if row.label in data.bases)]
    first = {row.label: {n: Interval(p.mean, math.nan, math.nan) for n, p in row.truncated().items()} for row in read}
    gain, excess = (_intervals(data.curves("position", measure.short)) for measure in (GAIN, EXCESS))
    bases = [row.label for row in read if not row.judged]
    plots = {
        "gain": ("Gain by far text, by position", "gain (nats per token)", gain, "no gain"),
        "excess": ("Loss over the base, by position", "difference (nats per token)", excess, " and ".join(bases)),
        "first-tokens": ("Perplexity of the first tokens", "perplexity", first, ""),
    }
    captions = {
        "gain": "Loss of a token in a window of the original length, minus its loss with the whole document as context. Above "
        "zero, the model uses far text. Each point covers the tokens since the point before it.",
        "excess": "The loss minus the base's, which predicts the same tokens in windows of its original length. Below zero, the "
        "model is better than its base.",
        "first-tokens": "From one pass over each document: a token's loss does not depend on later text."
        + (f" {bases[0]} reads no farther than its own window." if len(bases) == 1 else ""),
    }
    for name, (title, axis, curves, zero) in plots.items():
        if any(len(curve) > 1 for curve in curves.values()):
            axes = "tokens read" if name == "first-tokens" else "position (tokens)", axis
            lines = {label: curve for label, curve in curves.items() if curve}
            levels = [(0.0, LOOKS["original"].colour, zero)] if zero else []
            yield curve_plot(name, title, axes, lines, data.original, captions[name], looks=data.looks, levels=levels)


def loss_plots(data: ReportData) -> Iterator[Plot]:
    """Plot training loss over tokens; a repeated step replaces the older one."""
    logs: dict[tuple[str, str], dict[int, TrainingRecord]] = {}
    for folder in data.folders:
        for r in folder.records:
            if isinstance(r, TrainingRecord):
                logs.setdefault((folder.name, r.arm), {})[r.step] = r
    steps = {key: [log[step] for step in sorted(log)] for key, log in logs.items()}
    if not any(len(log) > 1 for log in steps.values()):
        return
    several = len(data.folders) > 1
    labels = [f"{run} · {display_name(name)}" if several else display_name(name) for run, name in steps]
    lines = list(zip(labels, steps.values(), looks_of([name for _, name in steps]), strict=True))

    def draw(axes: "Axes", ink: str) -> None:
        for label, log, look in lines:
            x = [r.tokens for r in log]
            axes.plot(x, [r.loss for r in log], color=look.colour, lw=0.9, alpha=0.35)
            axes.plot(x, _smooth([r.loss for r in log]), label=named(label), markevery=0.15, **look.line)
        axes.set_ylabel("loss (nats per token)")
        axes.set_xlabel("tokens trained on")
        canvas.count_axis(axes.xaxis)
        axes.set_xlim(left=0)

    trained = [f"{label} {counted(log[-1].step, 'step')}, {log[-1].tokens:,} tokens" for label, log, _ in lines]
    caption = f"Pale: as logged; strong: smoothed. Trained: {'; '.join(trained)}."
    columns = ["step", "tokens", "loss", "learning_rate", "grad_norm", "tokens_per_second"]
    table = [[label, *(getattr(r, column) for column in columns)] for label, log, _ in lines for r in log]
    yield Plot("loss", "Training loss", ["model", *columns], table, draw, caption)


def step_plots(data: ReportData) -> Iterator[Plot]:
    """Plot perplexity during training, at the measured steps."""
    curves = {}
    for folder in data.folders:
        for (mode, window), curve in perplexity_by_step(folder).items():
            name = f"windows of {window:,} tokens" if mode == "sliding" else "far text"
            curves[f"{folder.name} · {name}" if len(data.folders) > 1 else name] = curve
    if not any(len(curve) > 1 for curve in curves.values()):
        return
    caption = "Of the first text. Lower is better."
    if any("far text" in label for label in curves):
        caption += " Far text: the tokens beyond the original window, which decide the best step."
    yield curve_plot("steps", "Perplexity by training step", ("optimizer step", "perplexity"), curves, caption=caption)


def coverage_plots(data: ReportData) -> Iterator[Plot]:
    """Plot the probability that one example trains a distance (``fig:prob``)."""
    unique: dict[object, tuple[str, CoverageRecord]] = {}
    for folder in data.folders:
        for r in folder.records:
            if isinstance(r, CoverageRecord):  # equal curves of several runs are one
                unique.setdefault((r.label, tuple(r.probability)), (folder.name, r))
    if not unique:
        return
    curves = [r for _, r in unique.values()]
    several = Counter(r.label for r in curves)
    labels = [r.label if several[r.label] == 1 else f"{run} · {r.label}" for run, r in unique.values()]
    longest, looks = max(r.target_length for r in curves), looks_of([r.label for r in curves])
    trained = max(r.train_length for r in curves)

    def draw(axes: "Axes", ink: str) -> None:
        for i, (label, r) in enumerate(zip(labels, curves, strict=True)):
            colour, dash = looks[i].colour, looks[i].dash
            p, error = np.array(r.probability), 1.96 * np.array(r.standard_error)
            axes.plot(r.distances, p, lw=1.8, color=colour, linestyle=dash, label=named(label))
            if error.any():
                axes.fill_between(r.distances, p - error, p + error, color=colour, alpha=0.2, lw=0)
        ticks = [longest * quarter // 4 for quarter in range(5)]
        axes.set_xticks(ticks, ["0", *map(format_length, ticks[1:])])
        axes.set_xlabel("relative distance (tokens)")
        axes.set_xlim(0, longest)
        axes.set_ylabel("probability")
        axes.set_ylim(0, 1.04)

    caption = f"Windows of {trained:,} tokens without skips train no distance above {trained - 1:,}."
    columns = ["label", "train_length", "target_length", "distance", "probability", "standard_error"]
    table = [
        [label, r.train_length, r.target_length, *point]
        for label, r in zip(labels, curves, strict=True)
        for point in zip(r.distances, r.probability, r.standard_error, strict=True)
    ]
    yield Plot("coverage", "Chance that one example trains a distance", columns, table, draw, caption)


FIGURES: list[Callable[[ReportData], Iterator[Plot]]] = [
    perplexity_plots,
    found_plots,
    depth_plots,
    ruler_plots,
    position_plots,
    loss_plots,
    step_plots,
    coverage_plots,
]


def _smooth(values: list[float]) -> list[float]:
    """Return the unbiased moving average over a fifteenth of the curve."""
    from scipy.signal import lfilter

    keep = 1 - 1 / max(1.0, len(values) / 15)
    mean = lfilter([1 - keep], [1, -keep], values)
    return list(mean / (1 - keep ** np.arange(1, len(values) + 1)))
