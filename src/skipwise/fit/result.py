"""What a fit found: ``fit.json``, the settings that it recommends, and the table."""

import json
import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from pydantic import TypeAdapter

from skipwise.errors import RunError
from skipwise.evaluation.windows import position_buckets
from skipwise.fit.score import Score
from skipwise.method.interpolation import rope_parameters
from skipwise.method.lengths import format_length
from skipwise.model.extension import Extension
from skipwise.recipes.loading import to_text
from skipwise.report.canvas import LOOKS, Plot, curve_plot, write
from skipwise.report.page import Table, render
from skipwise.results.files import read_json, write_json, write_text
from skipwise.results.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE = "fit.json"
PUBLISHED = "YaRN as published"
_WORTH = 0.01  # nats per token; what gains less is no reason to leave YaRN as published
_HARMLESS = 0.15  # nats per token after a skip; settings that lose less are not ranked by it (docs/method.md)
_COLUMNS = 3  # of far places in the table
_PLAIN = ("yarn", "ntk", "theta")  # what every engine serves
_REQUEST = ("fingerprint", "original", "target", "text", "seed")  # what decides the measurements


@dataclass(frozen=True)
class Candidate:
    """An interpolation that was measured; ``role`` is its name in the table."""

    role: str
    extension: Extension
    score: Score

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe's settings: ``interpolation`` and ``rope``."""
        given = {key: value for key, value in vars(self.extension.settings).items() if value is not None}
        return {"interpolation": self.extension.interpolation, "rope": given}

    @property
    def rope_parameters(self) -> dict[str, Any]:
        chosen = self.extension
        return rope_parameters(chosen.interpolation, chosen.rope, chosen.factor, chosen.settings)


@dataclass
class Fit:
    """A search: its request, and what was measured so far."""

    model: str
    fingerprint: str
    data: str
    text: str  # the fingerprint of its tokens
    original: int
    target: int
    seed: int
    documents: int = 0  # contiguous windows that each candidate reads
    dense: int = 0  # tokens of one
    base: dict[int, float] = field(default_factory=dict)  # the base's loss by place, in windows of its original length
    seconds: float = 0.0
    finished: bool = False
    candidates: list[Candidate] = field(default_factory=list)

    @property
    def edges(self) -> list[int]:
        """Edges of the places in the contiguous window; the original length is one of them."""
        return position_buckets(self.dense, self.original)

    def total(self, candidate: Candidate) -> float:
        """Return what the search lowers: far loss, and harm beyond the window; infinite if given up."""
        if candidate.score.places is None:
            return math.inf
        harm = max(0.0, candidate.score.harm(self.dense) - _HARMLESS)
        return self._mean(candidate.score.places, self.original, self.dense) + harm

    @property
    def published(self) -> Candidate:
        return next(candidate for candidate in self.candidates if candidate.role == PUBLISHED)

    @property
    def best(self) -> Candidate:
        """The lowest total, or YaRN as published if at most 0.01 nats worse."""
        best = min(self.candidates, key=self.total)
        return self.published if self.total(self.published) <= self.total(best) + _WORTH else best

    @property
    def plain(self) -> Candidate:
        """The best candidate that every engine serves."""
        return min((c for c in self.candidates if c.extension.interpolation in _PLAIN), key=self.total)

    def excess(self, candidate: Candidate) -> dict[int, float]:
        """Return by place what a candidate loses to the base, in nats per token."""
        return {end: loss - self.base[end] for end, loss in (candidate.score.places or {}).items()}

    @property
    def verdict(self) -> str:
        """What to do, in a sentence."""
        if self.best is self.published:
            return "YaRN as published is as good as anything that was measured: use it."
        lower = 1 - math.exp(self.total(self.best) - self.total(self.published))
        name = self.best.extension.interpolation
        return f"Perplexity of far text is {lower:.0%} lower under {name} than under YaRN as published."

    @property
    def caveats(self) -> str:
        """Sentences on the distance to the base, on the window, and on a missing search."""
        far = self._mean(self.excess(self.best), self.original, self.dense)
        read = f"Far text: to {format_length(self.dense)} of {format_length(self.target)}. "
        searched = any(candidate.role == "fitted" for candidate in self.candidates)
        return (
            f"{'' if self.dense == self.target else read}Untrained, its perplexity is {math.exp(far) - 1:+.0%} against the base's in "
            f"windows of {format_length(self.original)}."
            + ("" if searched else " Nothing was searched; give longer text, or more --minutes.")
        )

    def shown(self) -> list[Candidate]:
        """Return the candidates of the table: the best of each role, in the order measured."""
        roles = dict.fromkeys(candidate.role for candidate in self.candidates)
        return [
            min((candidate for candidate in self.candidates if candidate.role == role), key=self.total)
            for role in roles
        ]

    @property
    def table(self) -> Table:
        """The excess of each candidate over the base; the star is the recommendation."""
        far = [edge for edge in self.edges if edge >= self.original]
        # Every n-th edge, counted from the last.
        far = sorted({self.original, *far[:: -math.ceil((len(far) - 1) / _COLUMNS)]})
        rows = []
        for candidate in self.shown():
            excess = self.excess(candidate)
            answers = [loss for skip, loss in (candidate.score.answers or {}).items() if skip]
            places = [f"{self._mean(excess, a, b):+.2f}" if excess else "-" for a, b in pairwise([0, *far])]
            skips = f"{max(candidate.score.skipped.values()):+.2f}"
            label = candidate.role + (" *" if candidate is self.best else "")
            rows.append([label, *places, skips, f"{np.mean(answers):.2f}" if answers else "-"])
        head = ["", "near", *(f"to {format_length(edge)}" for edge in far[1:]), "skips", "answers"]
        return Table("nats per token above the base", "fit", head, rows, {f"{self.best.role} *"})

    def write(self, folder: Path) -> None:
        """Write ``fit.json`` whole; a reader sees the old file or the new one."""
        best = {"best": self.best.recipe, "rope_parameters": self.best.rope_parameters} if self.finished else {}
        write_json(folder / FILE, {**_FITS.dump_python(self, mode="json", exclude_none=True), **best})

    def resumed(self, folder: Path) -> "Fit":
        """Return the interrupted search of the same request."""
        before = read_fit(folder / FILE)
        for key in _REQUEST:
            if (was := getattr(before, key)) != (now := getattr(self, key)):
                raise RunError(f"{folder} holds a fit with {key} {was!r}, now it is {now!r}; give another --out")
        return before

    def _mean(self, places: dict[int, float], begin: int, end: int) -> float:
        """Return the mean from one edge to another, each token counting once."""
        chosen = [(places[b], b - a) for a, b in pairwise(self.edges) if begin < b <= end]
        return float(np.average([loss for loss, _ in chosen], weights=[width for _, width in chosen]))


_FITS = TypeAdapter(Fit)


def read_fit(path: Path) -> Fit:
    """Read ``fit.json``."""
    try:
        return _FITS.validate_python(read_json(path))
    except ValueError as error:
        raise RunError(
            f"{path} is not a whole fit ({str(error).splitlines()[0]}); run skipwise fit with another --out"
        ) from error


_LOOKS = {
    PUBLISHED: "untrained",
    "fitted": "pose",
    "power, no search": "cream",
    "NTK": "randpos",
    "YaRN, fitted": "full_length",
}
_HIGHEST = 1.0  # nats above the lowest curve; what lies beyond failed


def write_fit_page(fit: Fit, folder: Path) -> Path:
    """Write ``report.html`` and its figure into the fit's folder, and return the page's path."""
    plot = loss_plot(fit)
    page = render(
        "fit.html.j2",
        name=Path(fit.model).name,
        fit=fit,
        lengths=[format_length(fit.original), format_length(fit.target)],
        table=fit.table,
        caption=plot.caption,
        svg=Markup(write(plot, folder / "figures")),
        recipe=to_text(fit.best.recipe),
        parameters=json.dumps(fit.best.rope_parameters),
        plain=fit.plain,
        plain_parameters=json.dumps(fit.plain.rope_parameters),
        file=folder / FILE,
    )
    write_text(folder / "report.html", page)
    return folder / "report.html"


def loss_plot(fit: Fit) -> Plot:
    """Plot by place what each interpolation loses to the base, a line for each."""
    curves = {c.role: fit.excess(c) for c in fit.shown() if c.score.places and c.role in _LOOKS}
    lowest = min(max(curve.values()) for curve in curves.values())
    caption = (
        f"Lower is better. One window of {fit.dense:,} tokens, not trained; the base reads the same text in windows of "
        f"{fit.original:,} (dashed line)."
    )
    plot = curve_plot(
        "loss-by-place",
        "Loss by place in one window",
        ("place in one window (tokens)", "nats above the base"),
        {
            role: {end: Interval(loss, math.nan, math.nan) for end, loss in curve.items()}
            for role, curve in curves.items()
        },
        fit.original,
        caption,
        looks={role: LOOKS[_LOOKS[role]] for role in curves},
        levels=[(0.0, LOOKS["original"].colour, "")],
    )

    def draw(axes: "Axes", ink: str) -> None:
        plot.draw(axes, ink)
        axes.set_ylim(top=min(axes.get_ylim()[1], lowest + _HIGHEST))

    columns = ["interpolation", "end", "excess"]
    return replace(plot, columns=columns, data=[row[:3] for row in plot.data], draw=draw)
