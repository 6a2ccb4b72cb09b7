"""The coverage of each way to draw positions: closed forms held against Monte Carlo (the paper's Figure 5)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.tables import table
from reproduction.verdicts import Finding, verdict
from skipwise.method.coverage import Coverage, closed_form, coverage, coverage_record, monte_carlo
from skipwise.method.lengths import format_length
from skipwise.report.plots import coverage_figure

SIZES = ((256, 2048), (2048, 16384))  # the embedded model's, and the paper's
_SAMPLES = 200_000
_ERRORS = 4  # standard errors
_TOLERANCE = 0.02

CLOSED: dict[str, dict[str, Any]] = {
    "2 chunks": {},
    "2 chunks, released": {"lengths": "released"},
    "2 chunks, end-anchored": {"skips": "end_anchored"},
}
DRAWN: dict[str, dict[str, Any]] = {
    "3 chunks": {"chunks": 3},
    "RandPos": {"scheme": "randpos"},
    "CREAM": {"scheme": "cream"},
}


@dataclass(frozen=True)
class Check:
    """A closed form beside its Monte Carlo estimate: the largest difference in standard errors, and its distance."""

    exact: Coverage
    errors: float
    distance: int


def check_closed_form(train_length: int, target_length: int, **rule: Any) -> Check:
    """Put a closed form to ``_SAMPLES`` examples drawn by the rule itself.

    The standard error of a share p over n examples is sqrt(p (1 - p) / n) with the exact p; where p is 0 or 1 any
    difference at all is infinitely many.
    """
    exact = closed_form(train_length, target_length, 2, **rule)
    drawn = monte_carlo(train_length, target_length, 2, samples=_SAMPLES, seed=0, **rule)
    error = np.sqrt(exact.probability * (1 - exact.probability) / _SAMPLES)
    apart = np.abs(drawn.probability - exact.probability)
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(apart < 1e-12, 0.0, apart / error)
    worst = int(errors.argmax())
    return Check(exact, float(errors[worst]), worst + 1)


def coverage_section(figures: Path) -> tuple[str, list[tuple[str, Finding]]]:
    """The exhibit as Markdown, and its findings by size.

    Probabilities by distance, how far each closed form is from Monte Carlo, and the evenness of end anchoring; the
    curves are drawn into the folder ``figures``.
    """
    parts, findings = [], []
    for train, target in SIZES:
        size = f"{format_length(train)} to {format_length(target)}"
        checks = {name: check_closed_form(train, target, **rule) for name, rule in CLOSED.items()}
        curves = {name: check.exact for name, check in checks.items()}
        curves |= {name: coverage(train, target, **{"seed": 0, **rule}) for name, rule in DRAWN.items()}
        shown = [train // 2, train - 1, train, target // 2, target - train, target - train // 2, target - 1]
        lines = [[name, *(f"{c.probability[d - 1]:.4f}" for d in shown)] for name, c in curves.items()]
        found = [*agreements(checks), evenness(checks["2 chunks, end-anchored"].exact)]
        name = f"coverage-{format_length(target)}.svg"
        coverage_figure([coverage_record(curve, label) for label, curve in curves.items()], figures / name)
        parts += [
            f"### {size}",
            table(["chance by distance", *map(str, shown)], lines),
            "\n".join(verdict(finding) for finding in found),
            f"![coverage, {size}]({figures.name}/{name})",
        ]
        findings += [(size, finding) for finding in found]
    return "\n\n".join(parts) + "\n", findings


def agreements(checks: dict[str, Check]) -> list[Finding]:
    """Whether each closed form is within four standard errors of Monte Carlo at every distance."""
    return [
        Finding(
            f"{name}: closed form within {_ERRORS} standard errors of {_SAMPLES:,} examples, at every distance",
            check.errors <= _ERRORS,
            f"at most {check.errors:.2f}, at {check.distance:,}",
        )
        for name, check in checks.items()
    ]


def evenness(curve: Coverage) -> Finding:
    """Whether end-anchored skips give every distance from L_c to L_t - 1 the same chance, to two per cent."""
    beyond = curve.probability[curve.train_length - 1 :]
    apart = float(beyond.max() / beyond.min() - 1) if beyond.min() > 0 else float("inf")
    return Finding(
        f"end-anchored: the same chance from {curve.train_length:,} to {curve.target_length - 1:,}, to {_TOLERANCE:.0%}",
        apart <= _TOLERANCE,
        f"most {apart:.2%} above the least",
    )
