"""Tables as a user sees them, taken out of what surrounds them: lines of text, and the cells of each line.

A line of a table has two cells or more, with two spaces or a rule between them. Sentences have one; how they are worded is
not compared. Nor is how wide a column is.
"""

import csv
import re
from collections.abc import Callable
from pathlib import Path

_BARS = re.compile(r"[━╸╺]")  # of progress
_RULES = re.compile(r"[│┃]|(?<!\S)\|(?!\S)")  # and no bar inside a word
_MARKDOWN_RULE = re.compile(r"[\s|:-]+")
_LABELLED = re.compile(r"\w+:  ")  # "model:  runs/demo/model"


def printed_tables(text: str) -> list[str]:
    """The lines of every table in what a command printed, an empty one between two tables."""
    kept: list[str] = []
    for line in text.splitlines():
        if len(cells(line)) > 1 and not _BARS.search(line) and not _LABELLED.match(line):
            kept.append(line.rstrip())
        elif kept and kept[-1]:
            kept.append("")
    return kept[:-1] if kept and not kept[-1] else kept


def markdown_table(page: Path) -> list[str]:
    """The lines of the only table of a Markdown page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("|") and not _MARKDOWN_RULE.fullmatch(line)]


def csv_lines(file: Path) -> list[str]:
    """The lines of a file of comma-separated values."""
    return file.read_text(encoding="utf-8").splitlines()


def rows(lines: list[str], split: Callable[[str], list[str]]) -> dict[str, list[str]]:
    """The cells of each line that has any."""
    return {f"line {number}": split(line) for number, line in enumerate(lines, 1) if line.strip()}


def cells(line: str) -> list[str]:
    """The cells of a line of a printed or a Markdown table."""
    return [cell.strip() for cell in re.split(r"\s{2,}", _RULES.sub("  ", line).strip()) if cell.strip()]


def csv_cells(line: str) -> list[str]:
    """The cells of a line of comma-separated values."""
    return next(csv.reader([line]), [])
