"""A table of text, as pages, terminals and Markdown show it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table of text."""

    title: str
    group: str  # what its numbers are, where tables stand side by side
    head: list[str]  # of each column; the first is of the rows' labels
    rows: list[list[str]]  # cells, the label first
    strong: frozenset[int] = frozenset()  # numbers of the rows that stand out
