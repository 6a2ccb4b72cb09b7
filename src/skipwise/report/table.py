"""A table of text, as pages, terminals and Markdown show it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skipwise.results.statistics import Interval


@dataclass(frozen=True)
class Table:
    """A table of text."""

    title: str
    group: str  # what its numbers are, where tables stand side by side
    head: list[str]  # of each column; the first is of the rows' labels
    rows: list[list[str]]  # cells, the label first
    strong: frozenset[int] = frozenset()  # numbers of the rows that stand out


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a Markdown table, its first ``left`` columns to the left and the others to the right."""
    rows = [head, ["---"] * left + ["---:"] * (len(head) - left), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def format_interval(value: Interval | None, brief: bool) -> str:
    """Write a perplexity with its interval, or without it if ``brief`` or if one document gives none."""
    if value is None:
        return "–"
    if brief or math.isinf(value.high):
        return format_number(value.mean)
    return f"{format_number(value.mean)} [{format_number(value.low)}, {format_number(value.high)}]"


def format_points(share: Interval) -> str:
    """Write a difference of shares in points, with its interval."""
    mean, low, high = (100 * value for value in (share.mean, share.low, share.high))
    return f"{mean:+.1f} [{low:+.0f}, {high:+.0f}]"


def format_number(value: float) -> str:
    """Write a perplexity in two to three digits: 4.84, 15.7, 134, 1.2e4, ∞."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    if value >= 999.5:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
