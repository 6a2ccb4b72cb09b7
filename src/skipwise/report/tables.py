"""Numbers -> tables of text, and their form in terminals and Markdown."""

import html
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from skipwise.method.lengths import format_length
from skipwise.report.folder import Folder
from skipwise.report.numbers import Number, ReportData, paper_differences, with_average
from skipwise.report.rows import benchmarks_of, other_text_warning
from skipwise.results.scores import PAPER, Score, paper_records, score

_MOST_COLUMNS = 10  # of numbers, in 80 columns of text
SUMMARY = ("perplexity", "found", "ruler")  # groups in the summary of a run
# Groups of numbers in the order of the page, with the head of their rows' labels.
GROUPS = {"perplexity": "window", "found": "prompt", "ruler": "prompt", "ruler by task": "task"}
GROUPS |= {
    "differences": "prompt",
    "other text": "text",
    "paper": "model",
    "benchmarks": "task",
    "position": "position",
}


@dataclass(frozen=True)
class Table:
    """A table of text."""

    title: str
    group: str  # of its numbers: a short name for the heads of joined tables
    head: list[str]  # of each column; the first is of the rows' labels
    rows: list[list[str]]  # cells, the label first
    strong: frozenset[int] = frozenset()  # numbers of the highlighted rows


def tables_of(data: ReportData, groups: Iterable[str] = GROUPS, *, brief: bool = False) -> list[Table]:
    """Return the tables of groups of numbers; ``brief`` tables have no intervals."""
    tables = []
    for group in groups:
        numbers = [number for number in data.numbers if number.measure.group == group and number.table]
        titles = dict.fromkeys(number.table for number in numbers)
        tables += [_table(data, [number for number in numbers if number.table == title], brief) for title in titles]
        tables += [_paper_table(data.folders, brief)] if group == "paper" else []
    return [table for table in tables if table.rows]


def _table(data: ReportData, numbers: Sequence[Number], brief: bool) -> Table:
    """Arrange the numbers of one table by row and column."""
    group = numbers[0].measure.group
    cells: dict[tuple[Any, Any], Number] = {(n.row or n.label, n.column or n.length): n for n in numbers}
    ranks: dict[Any, int] = {}
    for places, number in cells.items():
        ranks |= {place: min(number.measure.rank, ranks.get(place, number.measure.rank)) for place in places}
    labels = sorted(dict.fromkeys(label for label, _ in cells), key=lambda label: ranks[label])
    lengths = all(isinstance(column, int) for _, column in cells)
    columns = sorted(
        dict.fromkeys(column for _, column in cells), key=lambda column: column if lengths else ranks[column]
    )
    brief &= group != "found" or len(columns) > 4 or not data.evaluated

    def write(number: Number | None) -> str:
        return number.measure.form(number.value, brief) if number else "–"

    rows = [[label, *(write(cells.get((label, column))) for column in columns)] for label in labels]
    head = [GROUPS[group], *(format_length(column) if isinstance(column, int) else str(column) for column in columns)]
    name = numbers[0].measure.short if group in SUMMARY else group
    return Table(
        numbers[0].table, name, head, rows, _strong(labels, data.extended) if group in SUMMARY else frozenset()
    )


def _strong(labels: Sequence[str], extended: Collection[str]) -> frozenset[int]:
    """Return the numbers of the extended models among baselines."""
    strong = frozenset(i for i, label in enumerate(labels) if label in extended)
    return strong if len(strong) < len(labels) else frozenset()


def _paper_table(folders: Sequence[Folder], brief: bool) -> Table:
    """Return the paper's Table 3, with differences to bases.

    Standard errors follow the values, or if ``brief`` those of differences have a separate row.
    """
    found, differences = paper_records(benchmarks_of(folders)), paper_differences(folders)
    scores = {label: with_average({task: score(r) for task, r in own.items()}) for label, own in found.items()}
    columns = [task for task in (*PAPER, "average") if any(task in own for own in scores.values())]
    bases = {str(model.get("base") or "") for folder in folders for model in folder.models}
    rows = []
    for label in sorted(scores, key=lambda label: label not in bases):
        rows.append([label, *(_score(scores[label].get(task), "{:.2f}", brief) for task in columns)])
        if changes := differences.get(label):
            named = "  less its base" if brief else f"{label} less its base"
            rows.append([named, *(_score(changes.get(task), "{:+.2f}", brief) for task in columns)])
            if brief:
                rows.append(["  standard error", *(_error(changes.get(task)) or "–" for task in columns)])
    limits = sorted({record.limit for own in found.values() for record in own.values() if record.limit})
    some = f", only the first {' and '.join(map(str, limits))} questions of each" if limits else ""
    starred = any(one.paired is False and _error(one) for changes in differences.values() for one in changes.values())
    notes = "; ".join(filter(None, ["" if brief else "standard error", "* not paired" if starred else ""]))
    title = f"The paper's benchmarks (its Table 3) in %{f' ({notes})' if notes else ''}{some}"
    return Table(title, "benchmarks", ["model", *(_task_head(task, brief) for task in columns)], rows)


def _task_head(task: str, brief: bool) -> str:
    """Return the head of a paper's task; brief heads have several lines."""
    if task not in PAPER:
        return task
    title, shots = PAPER[task].title, f"{PAPER[task].fewshot}-shot"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-\n", title) + f"\n{shots}" if brief else f"{title}, {shots}"


def _score(value: Score | None, form: str, brief: bool) -> str:
    if value is None:
        return "–"
    error = "" if brief else _error(value)
    return form.format(value.value) + (f" ({error})" if error else "")


def _error(value: Score | None) -> str:
    """Format a standard error, with a star for an unpaired difference."""
    if value is None or value.error is None:
        return ""
    return f"{value.error:.2f}" + ("*" if value.paired is False else "")


def rich_table(table: Table) -> RenderableType:
    """Return a table for the terminal, below its title."""
    grid = RichTable(box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(table.head):
        grid.add_column(column, justify="right" if number else "left", no_wrap=True)
    for number, row in enumerate(table.rows):
        grid.add_row(*map(Text, row), style="bold" if number in table.strong else None)
    return Group(Text(table.title), grid) if table.title else grid


def summary_table(folder: Folder) -> RenderableType:
    """Return a run's results for the terminal, in 80 columns."""
    data = ReportData([folder])
    tables = tables_of(data, SUMMARY, brief=True)
    if sum(len(table.head) - 1 for table in tables) <= _MOST_COLUMNS:
        tables = [_joined(tables, "\n")]
    parts = [rich_table(table) for table in tables]
    for table in tables_of(data, ("other text",)):
        parts += [Text(""), rich_table(table)]
    if warning := other_text_warning(folder):
        parts.append(Text(warning, style="yellow"))
    return Group(*parts)


def summary_markdown(data: ReportData) -> str:
    """Return a run's results as a Markdown table, or empty."""
    table = _joined(tables_of(data, SUMMARY, brief=True), " ")
    if not table.rows:
        return ""
    return markdown_table(table.head, [[plain(row[0]), *row[1:]] for row in table.rows]) + "\n"


def _joined(tables: Sequence[Table], separator: str) -> Table:
    """Join tables side by side, with their groups in the heads."""
    head, strong = [f"{separator.strip(' ')}arm"], {table.rows[i][0] for table in tables for i in table.strong}
    cells: dict[str, dict[int, str]] = {}
    for table in tables:
        for number, column in enumerate(table.head[1:], 1):
            for row in table.rows:
                cells.setdefault(row[0], {})[len(head)] = row[number]
            head.append(f"{table.group if number == 1 or separator == ' ' else ''}{separator}{column}")
    rows = [[label, *(row.get(place, "–") for place in range(1, len(head)))] for label, row in cells.items()]
    return Table("", "", head, rows, _strong([row[0] for row in rows], strong))


def evaluation_summary(folder: Folder) -> RenderableType:
    """Return the page of an evaluation for the terminal."""
    data, parts = ReportData([folder]), list[RenderableType]()
    if folder.unfinished:
        parts.append(Text(folder.unfinished, style="yellow"))
    for judgement in data.judged:
        parts.append(Text(f"{judgement.row.label}: {judgement.headline}", style="bold"))
        parts += map(Text, judgement.sentences)
        if judgement.cost and judgement.cost.warning:
            parts.append(Text(judgement.cost.warning, style="yellow"))
    parts += [Text(rule, style="dim") for rule in dict.fromkeys(one.effective.rule for one in data.judged)]
    for table in tables_of(data, brief=True):
        parts += [Text(""), rich_table(table)]
    if warning := other_text_warning(folder):
        parts.append(Text(warning, style="yellow"))
    return Group(*parts)


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a Markdown table with ``left`` left-aligned columns."""
    rows = [head, ["---"] * left + ["---:"] * (len(head) - left), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def plain(text: str) -> str:
    """Escape HTML, links and bars in a text for Markdown."""
    return html.escape(text, quote=False).replace("|", "\\|").replace("[", "&#91;")
