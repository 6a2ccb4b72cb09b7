"""The coverage of each way to draw positions (the paper's Figure 5), and its closed forms checked by Monte Carlo."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.verdicts import Finding
from skipwise.method.coverage import Coverage, closed_form, coverage
from skipwise.method.lengths import format_length
from skipwise.method.positions import ChunkRules
from skipwise.report.figures import coverage_figure
from skipwise.report.tables import markdown_table
from skipwise.results.records import CoverageRecord

SIZES = ((256, 2048), (2048, 16384))  # the embedded model's, and the paper's
_SAMPLES = 200_000
_ERRORS = 4  # standard errors
_TOLERANCE = 0.02

CLOSED = {
    "2 chunks": ChunkRules(),
    "2 chunks, released": ChunkRules(lengths="released"),
    "2 chunks, end-anchored": ChunkRules(skips="end_anchored"),
}
DRAWN: dict[str, dict[str, Any]] = {
    "3 chunks": {"rules": ChunkRules(chunks=3)},
    "RandPos": {"scheme": "randpos"},
    "CREAM": {"scheme": "cream"},
}


@dataclass(frozen=True)
class Check:
    """A closed form beside its Monte Carlo estimate: the largest difference in standard errors, and its distance."""

    exact: Coverage
    errors: float
    distance: int


def check_closed_form(train_length: int, target_length: int, rules: ChunkRules) -> Check:
    """Compare a closed form with ``_SAMPLES`` examples that are drawn by the rule.

    The standard error of a share p over n examples is sqrt(p (1 - p) / n) with the exact p; where p is 0 or 1 any
    difference is infinitely many standard errors.
    """
    exact = closed_form(train_length, target_length, rules)
    drawn = coverage(train_length, target_length, rules, samples=_SAMPLES)
    error = np.sqrt(exact.probability * (1 - exact.probability) / _SAMPLES)
    apart = np.abs(drawn.probability - exact.probability)
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(apart < 1e-12, 0.0, apart / error)
    worst = int(errors.argmax())
    return Check(exact, float(errors[worst]), worst + 1)


def coverage_section(figures: Path) -> tuple[str, list[tuple[str, Finding]]]:
    """The exhibit as Markdown, and its findings by size.

    It has the probabilities by distance, the distance of each closed form from Monte Carlo, and the evenness of
    end-anchored skips; the curves are drawn into the folder ``figures``.
    """
    parts, findings = [], []
    for train, target in SIZES:
        size = f"{format_length(train)} to {format_length(target)}"
        checks = {name: check_closed_form(train, target, rules) for name, rules in CLOSED.items()}
        curves = {name: check.exact for name, check in checks.items()}
        curves |= {name: coverage(train, target, **rule) for name, rule in DRAWN.items()}
        shown = [train // 2, train - 1, train, target // 2, target - train, target - train // 2, target - 1]
        lines = [[name, *(f"{c.probability[d - 1]:.4f}" for d in shown)] for name, c in curves.items()]
        found = [*agreements(checks), evenness(checks["2 chunks, end-anchored"].exact)]
        name = f"coverage-{format_length(target)}.svg"
        coverage_figure([CoverageRecord.of(curve, label) for label, curve in curves.items()], figures / name)
        parts += [
            f"## {size}",
            markdown_table(["chance by distance", *map(str, shown)], lines),
            "\n".join(map(str, found)),
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
