"""A plot with its data -> SVG, PNG and CSV. The only file that imports matplotlib.

The SVG takes its text colour from the page (``currentColor``) and keeps text as text, so that one file reads
on light and dark; the same records give the same bytes.
"""

import io
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from skipwise.errors import RecipeError, RunError
from skipwise.method.lengths import format_length
from skipwise.report.svg import FAINT, INK, for_any_page, standalone
from skipwise.results.files import replacing, write_csv, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_PNG_INK, _PNG_FAINT = "#2b3138", "#e2e5e9"
# On a phone the figure is about 340 pixels wide, so the smallest text, of 9 points, is at least 10 pixels high.
_WIDTH, _HEIGHT = 4.2, 3.1  # inches
_STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.linewidth": 0.8,
    "ytick.left": False,
    "xtick.major.size": 3.5,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "axes.labelsize": 9.5,
    "legend.handlelength": 1.8,
    "legend.columnspacing": 1.4,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "hatch.linewidth": 0.8,
}


@dataclass(frozen=True)
class Figure:
    """A figure that was written, as ``NAME.svg``, ``.png`` and ``.csv``; ``svg`` is to be put into a page."""

    name: str
    title: str
    svg: str
    caption: str


@dataclass(frozen=True)
class Plot:
    """A figure to be drawn: its data as a table, the function that draws it on ``(axes, ink)``, and its caption."""

    name: str
    title: str
    columns: list[str]
    data: list[list[Any]]
    draw: Callable[["Axes", str], None]
    caption: str = ""
    height: float = 0.0  # inches, if more than usual


def write(plot: Plot, folder: Path, *, png: bool = True) -> Figure:
    """Draw a plot as ``NAME.svg``, ``.csv`` and, if asked, ``.png``, replacing what lies there."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / f"{plot.name}.csv", [plot.columns, *plot.data])
    if png:
        with replacing(folder / f"{plot.name}.png") as file:
            file.write(_png(plot))
    svg = _svg(plot)
    write_text(folder / f"{plot.name}.svg", standalone(svg))
    return Figure(plot.name, plot.title, svg, plot.caption)


def write_one(plot: Plot, path: Path) -> None:
    """Draw a plot into one file, ``.svg`` or ``.png``."""
    require_figure_ending(path)
    drawn = _png(plot) if path.suffix == ".png" else standalone(_svg(plot)).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(drawn)
    except OSError as error:
        raise RunError(f"figure {path} cannot be written: {error}; give another path") from None


def require_figure_ending(path: Path) -> None:
    """Require a path whose ending says how to draw."""
    if path.suffix not in (".svg", ".png"):
        raise RecipeError(f"figure {str(path)!r} must end in .svg or .png")


def length_axis(axes: "Axes", lengths: list[int], title: str) -> None:
    """A logarithmic x axis of lengths in tokens or of steps: ticks at powers of two, nine at the most."""
    axes.set_xscale("log", base=2)
    ticks = powers_of_two(lengths[0], lengths[-1])
    ticks = ticks[:: math.ceil(len(ticks) / 9)]
    axes.set_xticks(ticks, [format_length(n) for n in ticks])
    axes.minorticks_off()
    axes.set_xlabel(title)


def powers_of_two(low: int, high: int) -> list[int]:
    """The powers of two from ``low`` to ``high``, and if these are no powers, the next ones outside."""
    return [2**k for k in range(max(low, 1).bit_length() - 1, (high - 1).bit_length() + 1)]


def percent_axis(axis: "Axis", title: str, step: int = 25) -> None:
    """Ticks from 0 to 100; the title says of what they are per cent."""
    axis.set_ticks(range(0, 101, step))
    axis.set_label_text(title)


def shade(colour: str, share: float) -> dict[str, Any]:
    """A colour that is seen through the less, the more is found; so it is right on light and dark pages."""
    return {"color": colour, "alpha": 0.05 + 0.7 * share}


def draw_scale(axes: "Axes", colour: str, title: str) -> None:
    """Beside a heat map, what its colours mean: ``title`` says of what they are per cent."""
    scale, steps = axes.inset_axes((1.04, 0, 0.05, 1)), 20
    for step in range(steps):
        scale.bar(0, 100 / steps, 1, 100 * step / steps, lw=0, **shade(colour, step / (steps - 1)))
    scale.set_xlim(-0.5, 0.5)
    scale.set_ylim(0, 100)
    scale.set_xticks([])
    scale.spines["bottom"].set_visible(False)
    scale.yaxis.tick_right()
    scale.yaxis.set_label_position("right")
    percent_axis(scale.yaxis, title)
    scale.grid(visible=False)


def base_line(axes: "Axes", value: float, colour: str, label: str = "") -> None:
    """A level dashed line over the whole width: what a base scored, or the zero of differences."""
    axes.axhline(value, color=colour, lw=1.4, ls=(0, (4, 3)), zorder=1.5, label=label or None)


def log_axis(axes: "Axes", low: float, high: float) -> None:
    """Ticks at 1, 2, 5 times powers of ten (over three decades, the powers alone)."""
    axes.set_yscale("log")
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**k for k in powers for m in steps if low / 1.3 <= m * 10.0**k <= high * 1.3]
    axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()


def mark_original(axes: "Axes", length: int | None, ink: str) -> None:
    """A dashed line at the original length; its name stands above the curves."""
    if length is None:
        return
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.1 if axes.get_yscale() == "log" else high + 0.1 * (high - low))
    axes.axvline(length, color=ink, lw=0.9, ls=(0, (3, 3)), alpha=0.6, zorder=1)
    axes.annotate(
        f"original length {format_length(length)}", (length, 1), (5, -2), xycoords=("data", "axes fraction"),
        textcoords="offset points", va="top", fontsize=9, alpha=0.8,
    )  # fmt: skip


def named(label: str) -> str:
    """The label as a legend shows it: a long one without its middle. Matplotlib hides what begins with an underscore."""
    label = label if len(label) <= 44 else f"{label[:22]}…{label[-21:]}"
    return f"\u200b{label}" if label.startswith("_") else label


def _png(plot: Plot) -> bytes:
    return _render(plot, "png", _PNG_INK, _PNG_FAINT)


def _svg(plot: Plot) -> str:
    return for_any_page(_render(plot, "svg", INK, FAINT).decode(), plot.title)


def _render(plot: Plot, kind: Literal["svg", "png"], ink: str, faint: str) -> bytes:
    from matplotlib import style as styles
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    inked = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    style: Any = {**_STYLE, **dict.fromkeys(inked, ink), "grid.color": faint, "svg.hashsalt": plot.name}
    # Matplotlib reads a matplotlibrc of the working folder, which may have LaTeX run on our texts: begin without it.
    with styles.context(style, after_reset=True):
        figure = Canvas(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        plot.draw(axes, ink)
        title = textwrap.wrap(plot.title, 42)
        figure.suptitle("\n".join(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
        handles, labels = axes.get_legend_handles_labels()
        rows = 0
        if len(handles) > 1:
            columns = max(1, min(4, 44 // (max(map(len, labels)) + 6)))
            rows = math.ceil(len(labels) / columns)
            figure.legend(handles, labels, loc="outside lower left", ncols=columns)
        figure.set_figheight(max(plot.height, _HEIGHT) + 0.2 * max(0, rows - 1) + 0.18 * (len(title) - 1))
        buffer = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=200, transparent=kind == "svg", metadata=metadata)
    return buffer.getvalue()
