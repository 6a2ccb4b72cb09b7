"""Records -> figures: what each shows, and in which colours; ``canvas.py`` makes files of them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skipwise.intervals import wilson_interval
from skipwise.lengths import format_length
from skipwise.report.canvas import Figure, Plot, length_axis, log_axis, mark_original, named, write, write_one
from skipwise.report.summary import (
    BASELINES,
    Row,
    arm_name,
    format_share,
    results_table,
)
from skipwise.results import CoverageRecord, PasskeyRecord, Record, TrainingRecord

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
}
OTHER_COLOUR = "#c9508f"
_MARKERS = {
    "original": "o",
    "pi-only": "s",
    "pose": "D",
    "full": "^",
    "randpos": "v",
    "cream": "X",
    "short": "P",
}
# Of labels that are no arm: blue first, and the original's grey last.
_ORDER = ("pose", "pi-only", "full", "randpos", "cream", "short")
_FREE = [(ARM_COLOURS[arm], _MARKERS[arm]) for arm in _ORDER]
_FREE += [(OTHER_COLOUR, "*"), (ARM_COLOURS["original"], _MARKERS["original"])]
_DASHES = ["-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2))]
COVERAGE_COLOURS = {
    "original": "#848c96",
    "1 chunk": "#848c96",
    "2 chunks": "#2f7de1",
    "3 chunks": "#1a9a60",
    "RandPos": "#a162d6",
    "CREAM": "#0f97a8",
}
DEPTH_BINS = 5
_ANNOTATION: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 8, "alpha": 0.85}


def draw_figures(
    runs: Mapping[str, Sequence[Record]], folder: Path, original_length: int | None = None
) -> list[Figure]:
    """Draw what the records of one or more runs allow, into ``folder``.

    Args:
        runs: records by the run's name.
        folder: made if missing; files of the same names are replaced.
        original_length: marked by a dashed line, in tokens.
    """
    table = results_table(runs)
    plots = [
        _perplexity_plot([row for row in table.rows if row.perplexity], original_length),
        _passkey_plot([row for row in table.rows if row.passkey], table.lengths),
        _depth_plot([row for row in table.rows if row.passkey and row.trained]),
        _loss_plot(runs),
        _coverage_plot(runs),
    ]
    return [write(plot, folder) for plot in plots if plot]


def _perplexity_plot(rows: list[Row], original_length: int | None) -> Plot | None:
    """Perplexity by window, a line an arm; logarithmic where an arm explodes."""
    values = [r.perplexity for row in rows for r in row.perplexity.values() if math.isfinite(r.perplexity)]
    if not values:
        return None
    windows = sorted({w for row in rows for w in row.perplexity})
    log = max(values) / min(values) > 3

    def draw(axes: "Axes", ink: str) -> None:
        for row, style in zip(rows, _styles(rows), strict=True):
            curve = {
                w: r.perplexity for w, r in sorted(row.perplexity.items()) if math.isfinite(r.perplexity)
            }
            axes.plot(list(curve), list(curve.values()), label=named(row.label), **style)
        length_axis(axes, windows, "window (tokens)")
        if log:
            log_axis(axes, min(values), max(values))
        mark_original(axes, original_length, ink)

    columns = ["arm", "window", "stride", "documents", "tokens_scored", "nll_nats", "perplexity"]
    data = [
        [row.label, w, r.stride, r.documents, r.tokens, r.nll, r.perplexity]
        for row in rows
        for w, r in sorted(row.perplexity.items())
    ]
    title = "Perplexity by window" + (" (log scale)" if log else "")
    return Plot("perplexity", title, columns, data, draw)


def _passkey_plot(rows: list[Row], lengths: list[int]) -> Plot | None:
    """Passkey accuracy by prompt length, a bar an arm, with Wilson 95% intervals."""
    if not rows:
        return None
    data: list[list[Any]] = [
        [row.label, n, r.trials, sum(r.hits), r.accuracy, *wilson_interval(sum(r.hits), r.trials)]
        for row in rows
        for n, r in sorted(row.passkey.items())
    ]
    width = 0.84 / len(rows)

    def draw(axes: "Axes", ink: str) -> None:
        for i, (row, style) in enumerate(zip(rows, _styles(rows), strict=True)):
            bars = [values[1:] for values in data if values[0] == row.label]
            places = [lengths.index(bar[0]) + (i - (len(rows) - 1) / 2) * width for bar in bars]
            share, low, high = (np.array([100 * bar[k] for bar in bars]) for k in (3, 4, 5))
            fade = 1.0 if style["linestyle"] == "-" else 0.55
            axes.bar(places, share, width * 0.88, color=style["color"], alpha=fade, label=named(row.label))
            spans = [np.clip(share - low, 0, None), np.clip(high - share, 0, None)]
            axes.errorbar(places, share, spans, fmt="none", ecolor=ink, elinewidth=0.8, alpha=0.5)
            for x, bar, top in zip(places, bars, high, strict=True):
                if len(data) <= 20:
                    axes.annotate(format_share(bar[3])[:-1], (x, top), (0, 3), **_ANNOTATION)
        axes.set_xticks(range(len(lengths)), [format_length(n) for n in lengths])
        axes.set_xlabel("prompt length (tokens)")
        axes.set_ylim(0, 112)
        axes.set_yticks(range(0, 101, 25), [f"{p}%" for p in range(0, 101, 25)])

    columns = ["arm", "length", "trials", "hits", "accuracy", "low_95", "high_95"]
    return Plot("passkey", "Passkey found, by prompt length", columns, data, draw)


def _depth_plot(rows: list[Row]) -> Plot | None:
    """Passkey accuracy of the trained arm by depth and length; one arm only, to stay readable."""
    if len(rows) != 1:
        return None
    row = rows[0]
    cells = {length: hits_by_depth(row.passkey[length]) for length in sorted(row.passkey)}
    title = f"Passkey found by {row.label}, by depth in the prompt"
    return _heat_map("passkey-depth", title, row.label, cells, ARM_COLOURS.get(row.arm, OTHER_COLOUR))


def depth_figure(
    folder: Path, name: str, title: str, label: str, cells: Mapping[int, Sequence[Sequence[bool]]]
) -> Figure:
    """Draw a heat map of hits by prompt length and depth, into ``folder``.

    Args:
        folder: made if missing; files of the same names are replaced.
        name: of the files.
        title: above the figure.
        label: the model's, for the data.
        cells: hits by length in tokens, and by equal parts of the prompt, the first part first.
    """
    return write(_heat_map(name, title, label, cells, ARM_COLOURS["pose"]), folder)


def _heat_map(
    name: str, title: str, label: str, cells: Mapping[int, Sequence[Sequence[bool]]], colour: str
) -> Plot:
    lengths, parts = list(cells), max(len(column) for column in cells.values())
    data: list[list[Any]] = [
        [label, n, i / parts, (i + 1) / parts, len(hits), sum(hits)]
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

    columns = ["arm", "length", "depth_from", "depth_to", "trials", "hits"]
    return Plot(name, title, columns, data, draw)


def _loss_plot(runs: Mapping[str, Sequence[Record]]) -> Plot | None:
    """Training loss; over tokens where they are known, else over steps. A step logged twice counts last."""
    logs: dict[tuple[str, str], dict[int, TrainingRecord]] = {}
    for run, records in runs.items():
        for r in records:
            if isinstance(r, TrainingRecord):
                logs.setdefault((run, r.arm), {})[r.step] = r
    steps = {key: [log[step] for step in sorted(log)] for key, log in logs.items()}
    if not any(len(log) > 1 for log in steps.values()):
        return None
    by_tokens = all(a.tokens < b.tokens for log in steps.values() for a, b in pairwise(log))
    rows = [
        Row(run, arm, "", f"{run} · {arm_name(arm)}" if len(runs) > 1 else arm_name(arm))
        for run, arm in steps
    ]

    def draw(axes: "Axes", ink: str) -> None:
        for row, log, style in zip(rows, steps.values(), _styles(rows), strict=True):
            x = [r.tokens if by_tokens else r.step for r in log]
            line = {"color": style["color"], "linestyle": style["linestyle"]}
            axes.plot(x, [r.loss for r in log], lw=0.9, alpha=0.35, **line)
            axes.plot(x, _smooth([r.loss for r in log]), lw=1.8, label=named(row.label), **line)
        axes.set_xlabel("tokens trained on" if by_tokens else "optimizer step")
        axes.xaxis.set_major_formatter(lambda value, _: _short_count(value))
        axes.set_xlim(left=0)

    columns = ["arm", "step", "tokens", "loss", "learning_rate", "grad_norm", "tokens_per_second"]
    data = [
        [row.label, r.step, r.tokens, r.loss, r.learning_rate, r.grad_norm, r.tokens_per_second]
        for row, log in zip(rows, steps.values(), strict=True)
        for r in log
    ]
    return Plot("loss", "Training loss (nats per token)", columns, data, draw)


def _coverage_plot(runs: Mapping[str, Sequence[Record]]) -> Plot | None:
    """The probability that one example trains each relative distance (the paper's ``fig:prob``)."""
    found = (r for records in runs.values() for r in records if isinstance(r, CoverageRecord))
    curves = list({(r.label, r.train_length, r.target_length): r for r in found}.values())
    if not curves:
        return None
    longest = max(r.target_length for r in curves)

    def draw(axes: "Axes", ink: str) -> None:
        for r in curves:
            colour = COVERAGE_COLOURS.get(r.label, OTHER_COLOUR)
            p, error = np.array(r.probability), 1.96 * np.array(r.standard_error)
            axes.plot(r.distances, p, lw=1.8, color=colour, label=named(r.label))
            if error.any():
                axes.fill_between(r.distances, p - error, p + error, color=colour, alpha=0.2, lw=0)
        ticks = [longest * i // 4 for i in range(5)]
        axes.set_xticks(ticks, [format_length(t) if t else "0" for t in ticks])
        axes.set_xlabel("relative distance (tokens)")
        axes.set_xlim(0, longest)
        axes.set_ylim(0, 1.04)

    columns = ["label", "train_length", "target_length", "distance", "probability", "standard_error"]
    data = [
        [r.label, r.train_length, r.target_length, *point]
        for r in curves
        for point in zip(r.distances, r.probability, r.standard_error, strict=True)
    ]
    return Plot("coverage", "Chance that one example trains a distance", columns, data, draw)


def coverage_figure(records: Sequence[CoverageRecord], path: Path) -> None:
    """Draw coverage curves into one file, ``.svg`` or ``.png``.

    Raises:
        RecipeError: the path has another ending.
        RunError: it cannot be written.
    """
    plot = _coverage_plot({"": records})
    assert plot is not None, "no curve to draw"
    write_one(plot, path)


def curve_figure(
    folder: Path,
    name: str,
    title: str,
    axis: str,
    curves: Mapping[str, Mapping[int, float]],
    original_length: int | None = None,
    spans: Mapping[str, Mapping[int, tuple[float, float]]] | None = None,
    limits: tuple[float, float] | None = None,
) -> Figure:
    """Draw a line for each label over lengths or steps, into ``folder``; logarithmic where values lie far apart.

    Args:
        folder: made if missing; files of the same names are replaced.
        name: of the files.
        title: above the figure.
        axis: title of the x axis.
        curves: label -> x -> value; a label that is an arm has the arm's colour.
        original_length: marked by a dashed line, in tokens.
        spans: the ends of each value's interval, drawn as a band where they are finite.
        limits: of the y axis; where zero lies between the values it is marked.
    """
    looks = _looks(curves)
    places = sorted({x for curve in curves.values() for x in curve})
    values = [y for curve in curves.values() for y in curve.values() if math.isfinite(y)]
    low, high = min(values), max(values)

    def draw(axes: "Axes", ink: str) -> None:
        for label, curve in curves.items():
            colour, marker = looks[label]
            width = 1.5 if label in BASELINES else 2.2
            points = {x: y for x, y in sorted(curve.items()) if math.isfinite(y)}
            shown = named(arm_name(label))
            axes.plot(list(points), list(points.values()), label=shown, color=colour, marker=marker, lw=width)
            spanned = sorted(spans.get(label, {}).items()) if spans else ()
            ends = {x: e for x, e in spanned if all(map(math.isfinite, e))}
            if ends:
                low_ends, high_ends = zip(*ends.values(), strict=True)
                axes.fill_between(list(ends), low_ends, high_ends, color=colour, alpha=0.15, lw=0)
        length_axis(axes, places, axis)
        if limits:
            axes.set_ylim(*limits)
        elif low > 0 and high / low > 3:
            log_axis(axes, low, high)
        if low < 0 or (spans and not limits and axes.get_ylim()[0] < 0):
            axes.axhline(0, color=ink, lw=0.8, alpha=0.5, zorder=1)
        mark_original(axes, original_length, ink)

    columns = ["label", axis, title, *(["low_95", "high_95"] if spans else [])]
    data = [
        [label, x, y, *(_ends(spans, label, x) if spans else ())]
        for label, curve in curves.items()
        for x, y in sorted(curve.items())
    ]
    return write(Plot(name, title, columns, data, draw), folder)


def _ends(spans: Mapping[str, Mapping[int, tuple[float, float]]], label: str, x: int) -> tuple[float, float]:
    return spans.get(label, {}).get(x, (math.nan, math.nan))


def hits_by_depth(record: PasskeyRecord, bins: int = DEPTH_BINS) -> list[list[bool]]:
    """Sort the trials' hits by depth into ``bins`` equal parts of the prompt, first part first."""
    parts: list[list[bool]] = [[] for _ in range(bins)]
    for depth, hit in zip(record.depths, record.hits, strict=True):
        parts[min(int(depth * bins), bins - 1)].append(hit)
    return parts


def _looks(labels: Iterable[str]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for each label: an arm's own, and for another label what no arm beside it has."""
    looks = {label: (ARM_COLOURS[label], _MARKERS[label]) for label in labels if label in ARM_COLOURS}
    taken = set(looks.values())
    free = [look for look in _FREE if look not in taken]
    others = [label for label in labels if label not in looks]
    return looks | {label: free[turn % len(free)] for turn, label in enumerate(others)}


def _styles(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A colour and marker by arm, a dash by the run among those that share the arm."""
    seen: dict[str, int] = {}
    styles = []
    for row in rows:
        turn = seen[row.arm] = seen.get(row.arm, -1) + 1
        styles.append(
            {
                "color": ARM_COLOURS.get(row.arm, OTHER_COLOUR),
                "marker": _MARKERS.get(row.arm, "o"),
                "linestyle": _DASHES[turn % len(_DASHES)],
                "lw": 1.5 if row.arm in BASELINES else 2.2,
            }
        )
    return styles


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
