"""Draw a plot as SVG, PNG and CSV. The only file that imports matplotlib.

The SVG has the text colour of its page (``currentColor``) and keeps text as text, so that one file is readable on light and
dark. Equal records give equal bytes.
"""

import html
import io
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from skipwise.method.lengths import format_length
from skipwise.recipes.names import BASELINES, display_name
from skipwise.results.files import replacing, write_csv, write_text
from skipwise.results.statistics import Interval

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
class Plot:
    """A figure to draw; ``draw`` takes the axes and the text colour."""

    name: str
    title: str
    columns: list[str]
    data: list[list[Any]]
    draw: Callable[["Axes", str], None]
    caption: str = ""
    height: float = 0.0  # inches, if more than usual


def write(plot: Plot, folder: Path, *, png: bool = True) -> str:
    """Draw a plot as ``NAME.svg``, ``.csv`` and ``.png``, replacing older files; return the SVG for a page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / f"{plot.name}.csv", [plot.columns, *plot.data])
    if png:
        with replacing(folder / f"{plot.name}.png") as file:
            file.write(_render(plot, "png"))
    svg = _render(plot, "svg").decode()
    svg = re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg") :])
    svg = svg.replace(f"stroke: {_FAINT}", "stroke: currentColor; stroke-opacity: 0.14").replace(_INK, "currentColor")
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(plot.title)}" ', 1)
    write_text(folder / f"{plot.name}.svg", svg.replace(">", f">{_STANDALONE}", 1))
    return svg


def curve_plot(
    name: str,
    title: str,
    axis: tuple[str, str],
    curves: Mapping[str, Mapping[int, Interval]],
    original: int | None = None,
    caption: str = "",
    *,
    looks: Mapping[str, Look] | None = None,
    levels: Sequence[tuple[float, str, str]] = (),
    percent: bool = False,
) -> Plot:
    """Plot a line for each label over lengths or steps.

    ``axis`` has the names of both axes, with units. ``curves`` maps label -> x -> value; finite intervals are bands. ``looks``
    replaces those of ``looks_of``. Dashed lines mark the ``original`` length in tokens and each level (value, colour [text],
    name). ``percent`` sets an axis from 0 to 100.
    """
    points = {label: sorted(curve.items()) for label, curve in curves.items()}
    places = sorted({x for curve in curves.values() for x in curve})
    values = [v.mean for curve in curves.values() for v in curve.values() if math.isfinite(v.mean)]
    looks = looks or dict(zip(curves, looks_of(list(curves)), strict=True))
    # The powers of two that enclose all places, at most nine.
    ticks = [2**k for k in range(max(places[0], 1).bit_length() - 1, (places[-1] - 1).bit_length() + 1)]
    ticks = ticks[:: math.ceil(len(ticks) / 9)]

    def draw(axes: "Axes", ink: str) -> None:
        from matplotlib.ticker import LogLocator

        for label, curve in points.items():
            x, look = [x for x, _ in curve], looks[label]
            axes.plot(x, [v.mean for _, v in curve], label=named(display_name(label)), **look.line)
            low, high = [v.low for _, v in curve], [v.high for _, v in curve]
            axes.fill_between(x, low, high, color=look.colour, alpha=0.15, lw=0)
        for value, colour, name in levels:
            base_line(axes, value, colour or ink, named(name))
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [format_length(n) for n in ticks])
        axes.minorticks_off()
        axes.set_xlabel(axis[0])
        axes.set_ylabel(axis[1])
        if percent:
            axes.set_ylim(-4, 104)
            axes.set_yticks(range(0, 101, 25))
        elif min(values) > 0 and max(values) / min(values) > 3 and all(value > 0 for value, *_ in levels):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(values) / min(values) < 1000 else (1,)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
            axes.set_ylabel(f"{axis[1]} (log scale)")
        if original is not None:
            low_end, top = axes.get_ylim()  # with room for the text
            room = (top / low_end) ** 0.1 * top if axes.get_yscale() == "log" else top + 0.1 * (top - low_end)
            axes.set_ylim(low_end, room)
            axes.axvline(original, color=ink, lw=0.9, ls=(0, (3, 3)), alpha=0.6, zorder=1)
            axes.annotate(
                f"original length {format_length(original)}", (original, 1), (5, -2), xycoords=("data", "axes fraction"),
                textcoords="offset points", va="top", fontsize=9, alpha=0.8,
            )  # fmt: skip

    columns = ["label", axis[0], title, "low_95", "high_95"]
    table = [
        [label, x, v.mean, *("" if math.isinf(end) else end for end in (v.low, v.high))]  # one run has no interval
        for label, curve in points.items()
        for x, v in curve
    ]
    return Plot(name, title, columns, table, draw, caption)


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


def named(label: str) -> str:
    """Shorten a label for a legend; Matplotlib hides those with leading underscore."""
    label = label if len(label) <= 44 else f"{label[:22]}…{label[-21:]}"
    return f"\u200b{label}" if label.startswith("_") else label


def _render(plot: Plot, kind: Literal["svg", "png"]) -> bytes:
    from matplotlib import style as styles
    from matplotlib.figure import Figure

    ink, faint = (_INK, _FAINT) if kind == "svg" else (_PNG_INK, _PNG_FAINT)
    inked = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    style: Any = {**_STYLE, **dict.fromkeys(inked, ink), "grid.color": faint, "svg.hashsalt": plot.name}
    # A matplotlibrc in the working folder could run LaTeX on our texts: leave it out.
    with styles.context(style, after_reset=True):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
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
