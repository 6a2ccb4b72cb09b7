"""The page of a fit: what to do, the table, the loss by distance, and the settings to copy."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from skipwise.fit.result import FILE, PUBLISHED, Fit
from skipwise.method.lengths import format_length
from skipwise.recipes.loading import to_text
from skipwise.report.canvas import ARM_LOOKS, Plot, base_line, length_axis, mark_original, write
from skipwise.results.files import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOOKS = dict(
    zip(
        (PUBLISHED, "fitted", "power, no search", "NTK", "YaRN, fitted"),
        ("pi-only", "pose", "cream", "randpos", "full"),
        strict=True,
    )
)
_HIGHEST = 1.0  # nats above the lowest curve; what lies beyond failed


def write_fit_page(found: Fit, folder: Path) -> Path:
    """Write ``report.html`` and its figure into the fit's folder, and return the page's path."""
    figure = write(loss_plot(found), folder / "figures")
    head, rows = found.table()
    environment = Environment(
        loader=PackageLoader("skipwise", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("fit.html.j2").render(
        name=Path(found.model).name,
        found=found,
        lengths=[format_length(found.original), format_length(found.target)],
        head=head,
        rows=rows,
        best=next((i for i, one in enumerate(found.shown()) if one is found.best), None),
        figure=figure,
        svg=Markup(figure.svg),
        recipe=to_text(found.best.recipe),
        parameters=json.dumps(found.best.rope_parameters),
        plain=found.plain,
        plain_parameters=json.dumps(found.plain.rope_parameters),
        file=folder / FILE,
    )
    write_text(folder / "report.html", page)
    return folder / "report.html"


def loss_plot(found: Fit) -> Plot:
    """Plot by place what each interpolation loses to the base, a line for each."""
    shown = [one for one in found.shown() if one.score.places and one.role in _LOOKS]
    curves = {one.role: found.excess(one) for one in shown}
    lowest = min(max(curve.values()) for curve in curves.values())

    def draw(axes: "Axes", ink: str) -> None:
        for role, curve in curves.items():
            axes.plot(list(curve), list(curve.values()), label=role, **ARM_LOOKS[_LOOKS[role]].line)
        base_line(axes, 0.0, ARM_LOOKS["original"].colour)
        axes.set_ylim(top=min(max(map(max, (c.values() for c in curves.values()))) * 1.05, lowest + _HIGHEST))
        length_axis(axes, found.edges[1:], "place in one window (tokens)")
        axes.set_ylabel("nats above the base")
        mark_original(axes, found.original, ink)

    data = [[role, end, loss] for role, curve in curves.items() for end, loss in curve.items()]
    caption = (
        f"Lower is better. One window of {found.dense:,} tokens, not trained; the base reads the same text in windows of "
        f"{found.original:,} (dashed line)."
    )
    return Plot("loss-by-place", "Loss by place in one window", ["interpolation", "end", "excess"], data, draw, caption)
