"""Draw a plot as SVG, PNG and CSV. The only file that imports matplotlib.

The SVG has the text colour of its page (``currentColor``) and keeps text as text, so that one file is readable on light and
dark. Equal records give equal bytes.
"""

import html
import io
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from skipwise.method.lengths import format_length
from skipwise.recipes.names import BASELINES
from skipwise.results.files import replacing, write_csv, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap

_PNG_INK, _PNG_FAINT = "#2b3138", "#e2e5e9"
_INK, _FAINT = "#010203", "#040506"  # no palette has these: they become the page's text colour
# A mid-tone, 4:1 against white and against near-black, because a file does not know its page.
_FONT = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif"
_STANDALONE = f"<style>svg{{color:#757e89;{_FONT}}}text{{font-family:inherit!important}}</style>"
# On a phone the figure is about 340 pixels wide, so the smallest text, of 9 points, is at least 10 pixels high.
_WIDTH, _HEIGHT = 4.2, 3.1  # inches
_STYLE: dict[str, Any] = {
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left", "ytick.left"), False),
    **dict.fromkeys(("legend.frameon", "text.parse_math"), False),
    **dict.fromkeys(("legend.fontsize", "xtick.labelsize", "ytick.labelsize", "axes.labelsize"), 9.5),
    **dict.fromkeys(("axes.linewidth", "grid.linewidth", "hatch.linewidth"), 0.8),
    **{"axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "xtick.major.size": 3.5},
    **{"font.size": 10, "lines.markersize": 5.5, "legend.handlelength": 1.8, "legend.columnspacing": 1.4},
    **{"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]},
}


class Look(NamedTuple):
    """Style of a model; markers and hatches differ for colour-blind readers."""

    colour: str
    marker: str  # on lines
    hatch: str  # on bars
    dash: Any = "-"
    width: float = 2.2

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of Matplotlib's ``plot``."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.dash, "lw": self.width}


# Mid-tones, at least 3:1 against white and against #15181c.
LOOKS = {
    "original": Look("#848c96", "o", ""),
    "untrained": Look("#d9760f", "s", "///"),
    "pose": Look("#2f7de1", "D", ""),
    "full_length": Look("#1a9a60", "^", "\\\\\\"),
    "randpos": Look("#a162d6", "v", "xxx"),
    "cream": Look("#0f97a8", "X", "---"),
    "no_skip": Look("#a8693d", "P", "..."),
}
# For other labels: blue first, the original's grey last.
_FREE = [LOOKS[name] for name in ("pose", "untrained", "full_length", "randpos", "cream", "no_skip")]
_FREE += [Look("#c9508f", "*", "|||"), LOOKS["original"]]
_DASHES = ["-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2))]


def looks_of(labels: Sequence[str]) -> list[Look]:
    """Return a look for each label; repeated labels differ in dash."""
    looks = {label: LOOKS[label] for label in labels if label in LOOKS}
    free = [look for look in _FREE if look not in looks.values()]
    others = dict.fromkeys(label for label in labels if label not in looks)
    looks |= {label: free[turn % len(free)] for turn, label in enumerate(others)}
    return [
        looks[label]._replace(
            dash=_DASHES[list(labels[:i]).count(label) % len(_DASHES)], width=1.5 if label in BASELINES else 2.2
        )
        for i, label in enumerate(labels)
    ]


@dataclass(frozen=True)
class Figure:
    """A written figure: ``NAME.svg``, ``.png`` and ``.csv``; ``svg`` is for a page."""

    name: str
    title: str
    svg: str
    caption: str


@dataclass(frozen=True)
class Plot:
    """A figure to draw; ``draw`` takes the axes and the text colour."""

    name: str
    title: str
    columns: list[str]
    data: list[list[Any]]
    draw: Callable[["Axes", str], None]
    caption: str = ""
    height: float = 0.0  # inches, if more than usual


def write(plot: Plot, folder: Path, *, png: bool = True) -> Figure:
    """Draw a plot as ``NAME.svg``, ``.csv`` and ``.png``, replacing older files."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / f"{plot.name}.csv", [plot.columns, *plot.data])
    if png:
        with replacing(folder / f"{plot.name}.png") as file:
            file.write(_render(plot, "png"))
    svg = _svg(plot)
    write_text(folder / f"{plot.name}.svg", svg.replace(">", f">{_STANDALONE}", 1))
    return Figure(plot.name, plot.title, svg, plot.caption)


def length_axis(axes: "Axes", lengths: list[int], title: str) -> None:
    """Set a logarithmic x axis with at most nine ticks, at the powers of two that enclose ``lengths``."""
    axes.set_xscale("log", base=2)
    ticks = [2**k for k in range(max(lengths[0], 1).bit_length() - 1, (lengths[-1] - 1).bit_length() + 1)]
    ticks = ticks[:: math.ceil(len(ticks) / 9)]
    axes.set_xticks(ticks, [format_length(n) for n in ticks])
    axes.minorticks_off()
    axes.set_xlabel(title)


def count_axis(axis: "Axis") -> None:
    """Set ticks with SI prefixes, e.g. 20k."""
    from matplotlib.ticker import EngFormatter

    axis.set_major_formatter(EngFormatter(sep=""))


def share_colours(axes: "Axes", colour: str, title: str) -> "Colormap":
    """Return colours of shares, more opaque for larger ones, and draw their scale."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgba

    colours = LinearSegmentedColormap.from_list("shares", [to_rgba(colour, alpha) for alpha in (0.05, 0.75)])
    steps = ScalarMappable(Normalize(0, 100), colours.resampled(20))  # the SVG of more steps would have an image
    scale = axes.figure.colorbar(steps, ax=axes, ticks=range(0, 101, 25), label=title, aspect=20, pad=0.04)
    scale.outline.set_visible(False)
    return colours


def base_line(axes: "Axes", value: float, colour: str, label: str = "") -> None:
    """Draw a horizontal dashed line: a score of the base, or zero."""
    axes.axhline(value, color=colour, lw=1.4, ls=(0, (4, 3)), zorder=1.5, label=label or None)


def log_axis(axes: "Axes", low: float, high: float) -> None:
    """Set a logarithmic y axis with ticks at 1, 2 and 5."""
    from matplotlib.ticker import LogLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()


def mark_original(axes: "Axes", length: int | None, ink: str) -> None:
    """Draw a dashed vertical line at the original length."""
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
    """Shorten a label for a legend; Matplotlib hides those with leading underscore."""
    label = label if len(label) <= 44 else f"{label[:22]}…{label[-21:]}"
    return f"\u200b{label}" if label.startswith("_") else label


def _svg(plot: Plot) -> str:
    """Return the SVG of a plot without fixed text colours and ids."""
    svg = _render(plot, "svg").decode()
    svg = re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg") :])
    svg = svg.replace(f"stroke: {_FAINT}", "stroke: currentColor; stroke-opacity: 0.14")
    svg = svg.replace(_INK, "currentColor")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(plot.title)}" ', 1)


def _render(plot: Plot, kind: Literal["svg", "png"]) -> bytes:
    from matplotlib import style as styles
    from matplotlib.figure import Figure as Canvas

    ink, faint = (_INK, _FAINT) if kind == "svg" else (_PNG_INK, _PNG_FAINT)
    inked = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    style: Any = {**_STYLE, **dict.fromkeys(inked, ink), "grid.color": faint, "svg.hashsalt": plot.name}
    # A matplotlibrc in the working folder could run LaTeX on our texts: leave it out.
    with styles.context(style, after_reset=True):
        figure = Canvas(figsize=(_WIDTH, _HEIGHT), layout="constrained")
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
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type") if kind == "svg" else ("Software",))
        figure.savefig(buffer, format=kind, dpi=200, transparent=kind == "svg", metadata=metadata)
    return buffer.getvalue()
