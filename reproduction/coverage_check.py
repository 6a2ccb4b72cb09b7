"""The chance that an example trains each relative distance (the paper's Figures 5 and 6): closed form, Monte Carlo and figure."""

from pathlib import Path

import numpy as np

from reproduction import paper
from reproduction.claims import Finding
from skipwise.method.coverage import Coverage, coverage
from skipwise.method.positions import ChunkRules
from skipwise.report.canvas import write
from skipwise.report.figures import coverage_plots
from skipwise.report.numbers import ReportData
from skipwise.report.page import markdown_table
from skipwise.report.rows import Folder
from skipwise.results.records import CoverageRecord

TRAIN, TARGET = 2048, 16384
_SAMPLES = 200_000
_ERRORS = 4  # standard errors
_READ_OFF = 0.02  # how far a value may lie from one read off the paper's figure


def coverage_section(figures: Path) -> tuple[str, list[Finding]]:
    """The exhibit as Markdown, and its findings; the curves are drawn into the folder ``figures``."""
    curves = {
        "original": coverage(TRAIN, TARGET, scheme="no_skip"),
        "2 chunks": coverage(TRAIN, TARGET),
        "3 chunks": coverage(TRAIN, TARGET, ChunkRules(chunks=3)),
        "RandPos": coverage(TRAIN, TARGET, scheme="randpos"),
    }
    findings = [agreement(curves["2 chunks"]), rising(list(curves.values())[1:]), papers(curves)]
    shown = [TRAIN // 2, TRAIN - 1, TRAIN, TARGET // 2, TARGET - TRAIN, TARGET - TRAIN // 2, TARGET - 1]
    lines = [[name, *(f"{c.probability[d - 1]:.4f}" for d in shown)] for name, c in curves.items()]
    records = [CoverageRecord.of(curve, label) for label, curve in curves.items()]
    [plot] = coverage_plots(ReportData([Folder("", records)]))
    write(plot, figures, png=False)
    parts = [
        "From 2,048 to 16,384 tokens; computed, nothing is trained.",
        "\n".join(map(str, findings)),
        f"![coverage]({figures.name}/coverage.svg)",
        markdown_table(["chance by distance", *map(str, shown)], lines),
    ]
    return "\n\n".join(parts), findings


def agreement(exact: Coverage) -> Finding:
    """Whether the closed form of two chunks is within four standard errors of Monte Carlo at every distance.

    The standard error of a share p over n examples is sqrt(p (1 - p) / n) with the exact p; where p is 0 or 1 any
    difference is infinitely many standard errors.
    """
    drawn = coverage(exact.train_length, exact.target_length, samples=_SAMPLES)
    error = np.sqrt(exact.probability * (1 - exact.probability) / _SAMPLES)
    apart = np.abs(drawn.probability - exact.probability)
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(apart < 1e-12, 0.0, apart / error)
    rule = f"closed form of 2 chunks within {_ERRORS} standard errors of {_SAMPLES:,} examples, at every distance"
    return Finding(rule, bool(errors.max() <= _ERRORS), f"at most {errors.max():.2f}, at {errors.argmax() + 1:,}")


def rising(curves: list[Coverage]) -> Finding:
    """Whether more chunks cover distances beyond the window more often, and those inside it less, in the mean."""
    far = [float(curve.probability[TRAIN - 1 :].mean()) for curve in curves]
    near = [float(curve.probability[: TRAIN - 1].mean()) for curve in curves[:2]]  # RandPos is near 1 everywhere
    holds = far == sorted(far) and near == sorted(near, reverse=True)
    means = f"beyond the window in the mean {', '.join(f'{share:.3f}' for share in far)}"
    return Finding(
        "the chance beyond the window rises with the number of chunks: 2, 3, as many as tokens", holds, means
    )


def papers(curves: dict[str, Coverage]) -> Finding:
    """Whether the chances at the window, in the middle and a window below the target are those of the paper's figure."""
    rule = f"the paper's values, read off its figure, to {_READ_OFF:g}"
    apart = [
        (abs(float(curves[name].probability[place - 1]) - value), f"{name} at {place:,}")
        for name, values in paper.COVERAGE.items()
        for place, value in zip((TRAIN, TARGET // 2, TARGET - TRAIN), values, strict=True)
    ]
    worst, where = max(apart)
    return Finding(rule, worst <= _READ_OFF, f"at most {worst:.3f} away, {where}")
