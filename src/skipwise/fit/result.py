"""What a fit found: ``fit.json``, the settings that it recommends, and the table that is printed."""

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from skipwise.errors import RunError, counted
from skipwise.fit.score import Score, Windows, total
from skipwise.method.interpolation import RopeSettings, rope_parameters
from skipwise.method.lengths import format_length
from skipwise.model.extension import Extension
from skipwise.results.files import read_json, write_json

FILE = "fit.json"
_WORTH = 0.01  # nats per token; what gains less is no reason to leave YaRN as published
_PLAIN = ("yarn", "ntk", "theta")  # what every engine serves


@dataclass(frozen=True)
class Candidate:
    """An interpolation that was measured; ``role`` is its name in the table."""

    role: str
    extension: Extension
    score: Score

    @property
    def whole(self) -> bool:
        """Whether it was read whole: a bad one is given up early."""
        return self.score.places is not None


@dataclass
class Fit:
    """A search: its request, the text of every candidate, the measurements so far."""

    request: dict[str, Any]  # what decides the measurements
    windows: Windows
    base: dict[int, float]  # the base's loss by place, in windows of its original length
    seconds: float = 0.0
    finished: bool = False
    candidates: list[Candidate] = field(default_factory=list)

    def find(self, extension: Extension) -> Candidate | None:
        """Return the measurement of an extension, if there is one."""
        return next((one for one in self.candidates if one.extension == extension), None)

    def total(self, one: Candidate) -> float:
        """Return what the search lowers; infinite for a candidate that was given up."""
        return total(one.score, self.windows) if one.whole else math.inf

    @property
    def best(self) -> Candidate:
        """The candidate to use: the lowest total, but YaRN as published where that costs no more than 0.01 nats."""
        published = next(one for one in self.candidates if one.role == "YaRN as published")
        best = min(self.candidates, key=self.total)
        return published if self.total(published) <= self.total(best) + _WORTH else best

    @property
    def plain(self) -> Candidate:
        """The best candidate that every engine serves."""
        return min((c for c in self.candidates if c.extension.interpolation in _PLAIN), key=self.total)

    def excess(self, one: Candidate) -> dict[int, float]:
        """Return by place what a candidate loses to the base, in nats per token."""
        places = one.score.places or {}
        return {end: loss - self.base[end] for end, loss in places.items()}

    def near(self, one: Candidate) -> float | None:
        """Return what near text costs: the mean excess inside the original length."""
        edges, excess = self.windows.edges, self.excess(one)
        inside = [(excess[b], b - a) for a, b in pairwise(edges) if b <= self.windows.original and excess]
        return float(np.average([e for e, _ in inside], weights=[w for _, w in inside])) if inside else None

    @property
    def verdict(self) -> str:
        """What to do, in a sentence."""
        best, published = self.best, next(one for one in self.candidates if one.role == "YaRN as published")
        if best is published:
            return "YaRN as published is as good as anything that was measured: use it."
        lower = 1 - math.exp(self.total(best) - self.total(published))
        return f"Perplexity of far text is {lower:.0%} lower under {best.extension.interpolation} than under YaRN as published."

    def shown(self) -> list[Candidate]:
        """Return the candidates of the table: one for each role, the best, in the order measured."""
        by_role: dict[str, Candidate] = {}
        for one in self.candidates:
            if one.role not in by_role or self.total(one) < self.total(by_role[one.role]):
                by_role[one.role] = one
        return list(by_role.values())

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return head and rows of the table: excess over the base in nats per token."""
        edges = [edge for edge in self.windows.edges if edge > self.windows.original]
        head = ["", "near", *(f"to {format_length(edge)}" for edge in edges), "skips", "answers"]
        rows = []
        for one in self.shown():
            excess, answers = self.excess(one), one.score.answers or {}
            far = [value for skip, value in answers.items() if skip]
            cells = [self.near(one), *(excess.get(edge) for edge in edges), max(one.score.skipped.values())]
            numbers = [
                *("-" if cell is None else f"{cell:+.2f}" for cell in cells),
                f"{np.mean(far):.2f}" if far else "-",
            ]
            rows.append([f"{one.role}{' *' if one is self.best else ''}", *numbers])
        return head, rows

    def write(self, folder: Path) -> None:
        """Write ``fit.json`` whole; a reader sees the old file or the new one."""
        best = self.best if any(one.whole for one in self.candidates) else None
        write_json(
            folder / FILE,
            {
                "request": self.request,
                "finished": self.finished,
                "seconds": self.seconds,
                "window": {"documents": len(self.windows.documents), "dense": self.windows.dense},
                "base": {str(end): loss for end, loss in self.base.items()},
                "best": best and recipe_lines(best.extension),
                "rope_parameters": best and parameters_of(best.extension),
                "candidates": [
                    {"role": one.role, **recipe_lines(one.extension), "score": _by_text(one.score)}
                    for one in self.candidates
                ],
            },
        )

    def resume(self, folder: Path, template: Extension) -> None:
        """Take what an interrupted search of the same request has measured.

        Raises:
            RunError: ``fit.json`` is damaged, or of another request.
        """
        about = read_fit(folder / FILE)
        for key, value in self.request.items():
            if (before := about["request"].get(key)) != value:
                raise RunError(f"{folder} holds a fit with {key} = {before!r}, now it is {value!r}; give another --out")
        self.seconds, self.finished = about["seconds"], about["finished"]
        self.windows, self.base = self.windows.shortened(**about["window"]), _by_number(about["base"])
        for one in about["candidates"]:
            extension = replace(template, interpolation=one["interpolation"], settings=RopeSettings(**one["rope"]))
            score = {name: _by_number(value) for name, value in one["score"].items()}
            self.candidates.append(Candidate(one["role"], extension, Score(**score)))


def recipe_lines(extension: Extension) -> dict[str, Any]:
    """Return the recipe's settings of an extension: ``interpolation`` and ``rope``."""
    given = {key: value for key, value in vars(extension.settings).items() if value is not None}
    return {"interpolation": extension.interpolation, "rope": given}


def parameters_of(extension: Extension) -> dict[str, Any]:
    """Return the config's ``rope_parameters`` of an extension."""
    return rope_parameters(extension.interpolation, extension.rope, extension.factor, extension.settings)


def read_fit(path: Path) -> dict[str, Any]:
    """Read ``fit.json``.

    Raises:
        RunError: it is missing or damaged.
    """
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is not a whole fit ({error}); run skipwise fit with another --out") from error


def fitted_settings(path: Path, model: str, fingerprint: str, target: int) -> dict[str, Any]:
    """Return the recipe's settings that a finished fit of this model and target found.

    Raises:
        RunError: the fit is damaged, not finished, or of another model or target.
    """
    about = read_fit(path)
    request = about["request"]
    if request["fingerprint"] != fingerprint:
        raise RunError(f"{path} is a fit of {request['model']}, not of {model}; run skipwise fit {model}")
    if request["target"] != target:
        raise RunError(
            f"{path} is a fit for {request['target']:,} tokens, not {target:,}; fit again, or give --target {request['target']}"
        )
    if not about["finished"] or not about["best"]:
        raise RunError(
            f"{path} is not finished ({counted(len(about['candidates']), 'candidate')} measured); run the same skipwise fit again"
        )
    best: dict[str, Any] = about["best"]
    return best


def _by_text(score: Score) -> dict[str, Any]:
    """Return a score for JSON, whose keys are text."""
    return {
        name: {str(key): loss for key, loss in value.items()} if isinstance(value, dict) else value
        for name, value in vars(score).items()
    }


def _by_number(value: Any) -> Any:
    return {int(key): loss for key, loss in value.items()} if isinstance(value, dict) else value
