"""Numbers -> tables of text, and their form in terminals and Markdown."""

import html
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from skipwise.data.names import printable
from skipwise.errors import counted
from skipwise.method.lengths import format_length
from skipwise.recipes.names import arm_name
from skipwise.report.folder import Folder
from skipwise.report.numbers import EXCESS, GAIN, LOSS, ReportData, paper_differences, with_average
from skipwise.report.rows import Row, benchmarks_of, other_text_warning, other_texts
from skipwise.results.records import BenchmarkRecord
from skipwise.results.scores import PAPER, Score, is_of_paper, paper_records, score

_MOST_COLUMNS = 10  # of numbers, in 80 columns of text
_MOST_MODELS = 4  # with tables and figures of RULER's tasks
SUMMARY = ("perplexity", "found", "ruler")  # groups of the summary of a run


@dataclass(frozen=True)
class Table:
    """A table of text."""

    title: str
    group: str  # of its numbers: a short name for the heads of joined tables
    head: list[str]  # of each column; the first is of the rows' labels
    rows: list[list[str]]  # cells, the label first
    strong: frozenset[int] = frozenset()  # numbers of the highlighted rows


def _grid(
    title: str,
    group: str,
    corner: str,
    cells: Mapping[tuple[str, Any], str],
    columns: Iterable[Any],
    head: Callable[[Any], str] = str,
    strong: Iterable[str] = (),
) -> Table:
    """Arrange cells by (row, column), a dash for each missing one."""
    columns, labels = list(columns), list(dict.fromkeys(row for row, _ in cells))
    rows = [[label, *(cells.get((label, column), "–") for column in columns)] for label in labels]
    highlighted = frozenset(i for i, label in enumerate(labels) if label in strong)
    highlighted = highlighted if len(highlighted) < len(labels) else frozenset()  # all is none
    return Table(title, group, [corner, *map(head, columns)], rows, highlighted)


def tables_of(data: ReportData, *, brief: bool = False) -> list[Table]:
    """Return every table that the records allow; ``brief`` tables have no intervals."""
    tables = [table for group in SUMMARY for table in _by_length(data, group, brief)]
    tables += _ruler_tables(data, brief)
    tables.append(_differences_table(data))
    for folder in data.folders:
        tables += other_text_tables(folder, f" ({folder.name})" if len(data.folders) > 1 else "")
    tables.append(_paper_table(data.folders, brief))
    tables.append(_benchmarks_table([r for r in benchmarks_of(data.folders) if not is_of_paper(r)]))
    if data.evaluated:
        tables += _position_tables(data)
    return [table for table in tables if table.rows]


def _by_length(data: ReportData, group: str, brief: bool) -> list[Table]:
    """Return for each measure of a group a table: a row for each model, a column for each length."""
    tables = []
    for short in data.shorts(group):
        curves = data.curves(group, short)
        lengths = sorted({length for curve in curves.values() for length in curve})
        short_form = brief and (group != "found" or len(lengths) > 4 or not data.evaluated)
        cells = {
            (label, length): number.measure.form(number.value, short_form)
            for label, curve in curves.items()
            for length, number in curve.items()
        }
        title = next(number.measure.title for curve in curves.values() for number in curve.values())
        corner = "window" if group == "perplexity" else "prompt"
        tables.append(_grid(title, short, corner, cells, lengths, format_length, data.extended))
    return tables


def _ruler_tables(data: ReportData, brief: bool) -> list[Table]:
    """Return for each model a table of RULER's tasks by length."""
    tables, note = [], ruler_note(data.rows)
    for model in (row.model for row in ruler_rows(data.rows)):
        numbers = {task: data.curves("ruler by task", task).get(model, {}) for task in data.shorts("ruler by task")}
        cells = {
            (task_name(data, task), length): number.measure.form(number.value, brief)
            for task, curve in numbers.items()
            for length, number in curve.items()
        }
        title = f"{data.ruler_name} by task in %: {model}{f' ({note})' if note else ''}"
        lengths = sorted({length for _, length in cells})
        tables.append(_grid(title, "ruler by task", "prompt", cells, lengths, format_length))
    return tables


def ruler_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with tables of RULER's tasks: the bases and the first four extended models."""
    rows = [row for row in rows if row.ruler]
    first = [row for row in rows if row.judged][:_MOST_MODELS]
    return [row for row in rows if row in first or not row.judged]


def ruler_note(rows: Sequence[Row]) -> str:
    """Return which models have tables of RULER's tasks; empty for all."""
    models = sum(row.judged for row in rows if row.ruler)
    return f"the first {_MOST_MODELS} of {models} models; numbers.csv has all" if models > _MOST_MODELS else ""


def task_name(data: ReportData, task: str) -> str:
    """Return the name of a RULER task, marked if another text replaces RULER's."""
    return f"{task} (style)" if task in data.stand_in_tasks else task


def _differences_table(data: ReportData) -> Table:
    numbers = [number for number in data.numbers if number.measure.group == "differences"]
    cells = {
        (f"{number.measure.short}, {format_length(number.length or 0)}", number.model): number.measure.form(
            number.value, False
        )
        for number in numbers
    }
    title = numbers[0].measure.title if numbers else ""
    return _grid(title, "differences", "prompt", cells, dict.fromkeys(number.model for number in numbers))


def _position_tables(data: ReportData) -> list[Table]:
    """Return for each extended model its loss by position."""
    columns = [measure.short for measure in (LOSS, GAIN, EXCESS)]
    tables = []
    for label in data.curves("position"):
        curves = {short: data.curves("position", short).get(label, {}) for short in columns}
        ends = sorted({end for curve in curves.values() for end in curve})
        cells = {
            (f"{begin:,} .. {end - 1:,}", short): curve[end].measure.form(curve[end].value, False)
            for begin, end in pairwise([1, *ends])
            for short, curve in curves.items()
            if end in curve
        }
        known = [short for short in columns if curves[short]]
        tables.append(_grid(f"Loss by position: {label}", "loss by position", "position", cells, known))
    return tables


def other_text_tables(folder: Folder, named: str = "") -> list[Table]:
    """Return for each model its loss and next-token accuracy by kind of other text, and its base's."""
    texts = sorted(other_texts(folder), key=lambda text: text.measure, reverse=True)  # loss first
    tables = []
    for arm in dict.fromkeys(text.arm for text in texts):
        cells = {}
        for text in (text for text in texts if text.arm == arm):
            row, digits = f"{text.kind}, {text.measure}", 2 if text.measure.endswith("(%)") else 3
            cells[row, "model" if text.change is None else "extended"] = f"{text.own:.{digits}f}"
            if text.change:
                mean, low, high = (f"{x:+.{digits}f}" for x in (text.change.mean, text.change.low, text.change.high))
                few = f"{counted(text.segments, 'segment')}: too few for an interval"
                cells[row, "base"] = f"{text.base:.{digits}f}"
                cells[row, "difference"] = f"{mean} [{few if math.isnan(text.change.low) else f'{low}, {high}'}]"
        columns = [name for name in ("model", "base", "extended", "difference") if any(name == c for _, c in cells)]
        title = f"Short ability: other text inside the original window{named}"
        title += f": {arm_name(arm)}" if folder.models else ""
        tables.append(_grid(title, "other text", "text", cells, columns))
    return tables


def _paper_table(folders: Sequence[Folder], brief: bool) -> Table:
    """Return the paper's Table 3: a row for each model, bases first, and each difference to a base.

    Standard errors follow the values, or if ``brief`` those of differences have their own row.
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
    """Return the head of a paper's task, on several lines in a brief table."""
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
    """Format a standard error, with a star for an unpaired difference; empty if unknown."""
    if value is None or value.error is None:
        return ""
    return f"{value.error:.2f}" + ("*" if value.paired is False else "")


def _benchmarks_table(records: Sequence[BenchmarkRecord]) -> Table:
    cells = {
        (f"{r.task}, {r.fewshot}-shot, {r.metric}", r.arm): f"{r.value:.4f}"
        + ("" if r.standard_error is None else f" ({r.standard_error:.4f})")
        for r in records
    }
    return _grid("Benchmarks (standard error)", "benchmarks", "task", cells, dict.fromkeys(r.arm for r in records))


def rich_table(table: Table) -> RenderableType:
    """Return a table for the terminal, below its title."""
    grid = RichTable(box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(table.head):
        grid.add_column(column, justify="right" if number else "left", no_wrap=True)
    for number, row in enumerate(table.rows):
        grid.add_row(*map(Text, row), style="bold" if number in table.strong else None)
    return Group(Text(table.title), grid) if table.title else grid


def summary_table(folder: Folder) -> RenderableType:
    """Return the results of a run for the terminal: one joined table if it fits 80 columns."""
    data = ReportData([folder])
    tables = [table for group in SUMMARY for table in _by_length(data, group, brief=True)]
    if sum(len(table.head) - 1 for table in tables) <= _MOST_COLUMNS:
        tables = [_joined(tables, "\n")]
    parts = [rich_table(table) for table in tables]
    for table in other_text_tables(folder):
        parts += [Text(""), rich_table(table)]
    if warning := other_text_warning(folder):
        parts.append(Text(warning, style="yellow"))
    return Group(*parts)


def summary_markdown(data: ReportData) -> str:
    """Return the results of a run as a Markdown table; empty without results."""
    table = _joined([table for group in SUMMARY for table in _by_length(data, group, brief=True)], " ")
    if not table.rows:
        return ""
    return markdown_table(table.head, [[plain(row[0]), *row[1:]] for row in table.rows]) + "\n"


def _joined(tables: Sequence[Table], separator: str) -> Table:
    """Join tables side by side. Heads have the group; with line breaks only each table's first head."""
    head: list[str] = []
    cells: dict[tuple[str, int], str] = {}
    for table in tables:
        for number, column in enumerate(table.head[1:], 1):
            group = table.group if number == 1 or separator == " " else ""
            cells |= {(row[0], len(head)): row[number] for row in table.rows}
            head.append(f"{group}{separator}{column}")
    strong = {table.rows[i][0] for table in tables for i in table.strong}
    return _grid("", "", f"{separator.strip(' ')}arm", cells, range(len(head)), lambda i: head[i], strong)


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
    if sentence := missing_benchmarks(folder):
        parts += [Text(""), Text(sentence, style="dim")]
    return Group(*parts)


def missing_benchmarks(folder: Folder) -> str:
    """Return how to run the paper's benchmarks in an evaluation without them; else empty."""
    ran = {record.task for record in benchmarks_of([folder]) if is_of_paper(record)}
    if not folder.models or ran >= set(PAPER):
        return ""
    run = f"Of the paper's six benchmarks {len(ran)} were run" if ran else "The paper's six benchmarks were not run"
    return (
        f"{run}, because their data do not ship with Skipwise. To run them, repeat the command with --benchmarks paper "
        "--data-dir DIR, with their data sets in DIR."
    )


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a Markdown table; its first ``left`` columns are left-aligned, the others right-aligned."""
    rows = [head, ["---"] * left + ["---:"] * (len(head) - left), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def plain(text: str) -> str:
    """Escape HTML, links and bars in a text for Markdown."""
    return html.escape(printable(text), quote=False).replace("|", "\\|").replace("[", "&#91;")
