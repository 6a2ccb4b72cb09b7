"""Rows -> tables of text, and how a terminal and Markdown show them."""

import html
import math
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from skipwise.data.retrieval_prompts import TASKS
from skipwise.errors import printable
from skipwise.method.lengths import format_length
from skipwise.report.ability_tables import ability_tables, benchmark_tables, benchmarks_sentence
from skipwise.report.difference_table import differences_table
from skipwise.report.folder import Folder
from skipwise.report.longppl_table import longppl_tables
from skipwise.report.price import price_warning
from skipwise.report.ruler_tables import ruler_tables
from skipwise.report.shown import Shown
from skipwise.report.summary import Judgement, Row, standing_out
from skipwise.report.table import Table, format_interval, format_number, markdown_table
from skipwise.results.records import BenchmarkRecord, ReadingRecord, TrialRecord
from skipwise.results.statistics import Interval, difference, found, loss, perplexity, wilson_interval

_SIDE_BY_SIDE = 10  # columns of numbers that fit 80 columns of text


def tables_of(shown: Shown, *, brief: bool = False) -> list[Table]:
    """Every table that the records allow; ``brief`` leaves out intervals for want of room."""
    folders, rows, evaluated = shown.folders, shown.rows, shown.evaluated
    tables = [_perplexity_table([row for row in rows if row.perplexity], brief)]
    tables += [
        _found_table(task, [row for row in rows if task in row.found], brief, evaluated)
        for task in dict.fromkeys(task for row in rows for task in row.found)
    ]
    tables += ruler_tables([row for row in rows if row.ruler], brief)
    if evaluated:
        tables.append(differences_table(rows))
    tables += longppl_tables(shown.longppl, brief)
    for folder in folders:
        tables += ability_tables(folder, f" ({folder.name})" if len(folders) > 1 else "")
    tables += benchmark_tables(folders, brief)
    if evaluated:
        tables += [_position_table(judgement) for judgement in shown.judged]
    return [table for table in tables if table.rows]


def _perplexity_table(rows: Sequence[Row], brief: bool) -> Table:
    windows = sorted({window for row in rows for window in row.perplexity})
    cells = [[row.label, *(format_interval(row.perplexity.get(w), brief) for w in windows)] for row in rows]
    title = "Perplexity by sliding window (lower is better)"
    return Table(title, "perplexity", ["window", *map(format_length, windows)], cells, standing_out(rows))


def _found_table(task: str, rows: Sequence[Row], brief: bool, evaluated: bool) -> Table:
    lengths = sorted({length for row in rows for length in row.found[task]})
    brief &= len(lengths) > 4 or not evaluated
    cells = [[row.model, *(_share(row.found[task].get(n), brief) for n in lengths)] for row in rows]
    title = f"{task_title(task).capitalize()} found, by prompt length (higher is better)"
    return Table(title, task, ["prompt", *map(format_length, lengths)], cells, standing_out(rows))


def task_title(task: str) -> str:
    """What people call a retrieval task; the task's own name if it is unknown here."""
    return TASKS[task].title if task in TASKS else task


def _position_table(judgement: Judgement) -> Table:
    rows = [
        [f"{b.begin:,} .. {b.end - 1:,}", f"{b.loss.mean:.3f}", str(b.gain or "–"), str(b.excess or "–")]
        for b in judgement.buckets
    ]
    head = ["position", "loss (nats)", "gain by far text (nats)", "over the base (nats)"]
    known = [i for i in range(len(head)) if any(row[i] != "–" for row in rows)]
    cells = [[row[i] for i in known] for row in rows]
    return Table(f"Loss by position: {judgement.row.label}", "loss by position", [head[i] for i in known], cells)


def perplexity_table(mode: str, readings: Sequence[ReadingRecord], ends: Sequence[int]) -> Table:
    """What ``skipwise perplexity`` shows of one model.

    ``ends`` are the windows asked for, and in the modes truncated and by-position the ends of the parts that are shown.
    """
    windows = sorted({r.window for r in readings})
    of = {window: [r for r in readings if r.window == window] for window in windows}
    if mode == "sliding":
        rows = [
            [format_length(w), *_with_span(perplexity(of[w])), f"{len(of[w])}", f"{sum(r.tokens for r in of[w]):,}"]
            for w in windows
        ]
        head = ["window", "perplexity", "95% interval", "documents", "tokens"]
        return Table("perplexity", "perplexity", head, rows)
    short, whole = of[windows[0]], of[windows[-1]]
    if mode == "truncated":
        rows = [[format_length(end), *_with_span(perplexity(whole, end))] for end in ends]
        return Table("perplexity of the first tokens", "perplexity", ["tokens", "perplexity", "95% interval"], rows)
    rows = [
        [f"{begin:,} .. {end - 1:,}", f"{loss(whole, begin, end).mean:.3f}", str(gain or "–")]
        for begin, end in pairwise([1, *ends])
        for gain in [difference(short, whole, begin, end)]
    ]
    title = f"loss by position; gain over windows of {windows[0]:,}"
    return Table(title, "loss", ["position", "loss (nats)", "gain by far text (nats)"], rows)


def trials_table(task: str, trials: Sequence[TrialRecord]) -> Table:
    """What ``skipwise passkey`` shows of one model."""
    rows = []
    for length in sorted({trial.length for trial in trials}):
        hits, asked = found(trial for trial in trials if trial.length == length)
        low, high = wilson_interval(hits, asked)
        span = f"{100 * low:.0f} to {100 * high:.0f}%"
        rows.append([format_length(length), f"{hits} of {asked}", format_share(hits / asked), span])
    return Table(task, task, ["length", "found", "share", "95% interval"], rows)


def benchmarks_table(records: Sequence[BenchmarkRecord]) -> Table:
    """What ``skipwise benchmark`` shows of one model, a row for each metric; values as the harness gives them."""
    rows = [
        [
            r.task,
            str(r.fewshot),
            r.metric,
            f"{r.value:.4f}",
            "–" if r.standard_error is None else f"{r.standard_error:.4f}",
            f"{r.samples:,}",
        ]
        for r in records
    ]
    head = ["task", "shots", "metric", "value", "standard error", "questions"]
    return Table("benchmarks", "benchmarks", head, rows)


def rich_table(table: Table) -> RenderableType:
    """A table for the terminal, below its title."""
    grid = RichTable(box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(table.head):
        grid.add_column(column, justify="right" if number else "left", no_wrap=True)
    for number, row in enumerate(table.rows):
        grid.add_row(*map(Text, row), style="bold" if number in table.strong else None)
    return Group(Text(table.title), grid) if table.title else grid


def summary_table(folder: Folder) -> RenderableType:
    """What a run measured, for the terminal; perplexity and passkeys are side by side unless that is too wide."""
    tables = _summary(folder)
    if sum(len(table.head) - 1 for table in tables) <= _SIDE_BY_SIDE:
        head, rows, strong = _beside(tables, "\n")
        tables = [Table("", "", head, rows, strong)]
    parts = [rich_table(table) for table in tables]
    for table in ability_tables(folder):
        parts += [Text(""), rich_table(table)]
    if warning := price_warning(folder):
        parts.append(Text(warning, style="yellow"))
    return Group(*parts)


def summary_markdown(folder: Folder) -> str:
    """Perplexity and passkeys of a run as a Markdown table, for the model card; empty without results."""
    head, rows = summary_cells(folder)
    if not rows:
        return ""
    return markdown_table(head, [[plain(row[0]), *row[1:]] for row in rows]) + "\n"


def summary_cells(folder: Folder) -> tuple[list[str], list[list[str]]]:
    """Perplexity and passkeys of a run: the head of the table, and its rows."""
    head, rows, _ = _beside(_summary(folder), " ")
    return head, rows


def _summary(folder: Folder) -> list[Table]:
    return [table for table in tables_of(Shown([folder]), brief=True) if table.group in ("perplexity", *TASKS, "ruler")]


def _beside(tables: Sequence[Table], separator: str) -> tuple[list[str], list[list[str]], frozenset[int]]:
    """Several tables as one: the head says the group of each column, or with line breaks of each first column."""
    head = [f"{separator.strip(' ')}arm"]
    for table in tables:
        for number, column in enumerate(table.head[1:]):
            head.append(f"{table.group if number == 0 or separator == ' ' else ''}{separator}{column}")
    labels = list(dict.fromkeys(row[0] for table in tables for row in table.rows))
    cells = [{row[0]: row[1:] for row in table.rows} for table in tables]
    rows = [
        [label, *(c for t, of in zip(tables, cells, strict=True) for c in of.get(label, ["–"] * (len(t.head) - 1)))]
        for label in labels
    ]
    strong = {table.rows[i][0] for table in tables for i in table.strong}
    return head, rows, frozenset(i for i, label in enumerate(labels) if label in strong)


def evaluation_summary(folder: Folder) -> RenderableType:
    """What an evaluation's page says, for the terminal."""
    shown, parts = Shown([folder]), list[RenderableType]()
    if folder.unfinished:
        parts.append(Text(folder.unfinished, style="yellow"))
    for one in shown.judged:
        parts.append(Text(f"{one.row.label}: {one.headline}", style="bold"))
        parts += [Text(told) for told in (one.effective.next, one.ruler_sentence, one.cost_sentence) if told]
        if one.cost and one.cost.warning:
            parts.append(Text(one.cost.warning, style="yellow"))
    parts += [Text(rule, style="dim") for rule in dict.fromkeys(one.effective.rule for one in shown.judged)]
    for table in tables_of(shown, brief=True):
        parts += [Text(""), rich_table(table)]
    if warning := price_warning(folder):
        parts.append(Text(warning, style="yellow"))
    if told := benchmarks_sentence(folder):
        parts += [Text(""), Text(told, style="dim")]
    return Group(*parts)


def format_share(share: float) -> str:
    """Write a share in per cent; 0% and 100% only where they are exact."""
    text = f"{100 * share:.0f}%"
    if share < 1 and text == "100%":
        return ">99%"
    return "<1%" if share > 0 and text == "0%" else text


def _with_span(value: Interval) -> list[str]:
    """A perplexity and its interval; a dash where one document gives none."""
    span = f"{format_number(value.low)} to {format_number(value.high)}"
    return [format_number(value.mean), span if math.isfinite(value.high) else "–"]


def _share(found: tuple[int, int] | None, brief: bool) -> str:
    if found is None:
        return "–"
    share = format_share(found[0] / found[1])
    low, high = wilson_interval(*found)
    return share if brief else f"{share} [{100 * low:.0f}, {100 * high:.0f}]"


def plain(text: str) -> str:
    """Text that Markdown and the HTML inside it read as text; a bracket would begin a link."""
    return html.escape(printable(text), quote=False).replace("|", "\\|").replace("[", "&#91;")
