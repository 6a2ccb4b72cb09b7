"""Numbers -> tables for the page, the terminal and Markdown; the HTML page of runs or of an evaluation."""

import html
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from skipwise.errors import RunError
from skipwise.method.lengths import format_length
from skipwise.report.figures import draw_figures
from skipwise.report.numbers import GROUPS, SUMMARY, Number, ReportData
from skipwise.report.rows import Folder, benchmarks_of, read_folder
from skipwise.results.files import write_csv, write_text
from skipwise.results.records import ReadingRecord, RulerRecord, TrialRecord
from skipwise.results.statistics import FEWEST_SEGMENTS

_MOST_COLUMNS = 10  # of numbers, in 80 columns of text
_MARK = b'<meta name="generator" content="skipwise">'  # of our pages, which may be replaced
_SECTIONS = ("model", "training", "data", "probe", "machine", "versions")


@dataclass(frozen=True)
class Table:
    """A table of text."""

    title: str
    group: str  # of its numbers: a short name for the heads of joined tables
    head: list[str]  # of each column; the first is of the rows' labels
    rows: list[list[str]]  # cells, the label first
    strong: Collection[str] = ()  # labels of highlighted rows


def tables_of(data: ReportData, groups: Iterable[str] = GROUPS, *, brief: bool = False) -> list[Table]:
    """Return the tables of groups of numbers; ``brief`` tables have no intervals."""
    tables = []
    for group in groups:
        numbers = [number for number in data.numbers if number.measure.group == group and number.table]
        titles = dict.fromkeys(number.table for number in numbers)
        tables += [_table(data, [number for number in numbers if number.table == title], brief) for title in titles]
    return tables


def _table(data: ReportData, numbers: Sequence[Number], brief: bool) -> Table:
    """Arrange the numbers of one table by row and column."""
    group = numbers[0].measure.group
    cells: dict[tuple[Any, Any], Number] = {(n.row or n.label, n.column or n.length): n for n in numbers}
    places = sorted(cells, key=lambda place: cells[place].measure.rank)
    labels, columns = (list(dict.fromkeys(place[side] for place in places)) for side in (0, 1))
    if all(isinstance(column, int) for column in columns):
        columns.sort()
    brief &= group != "found" or len(columns) > 4 or not data.evaluated

    def write(number: Number | None) -> str:
        return number.measure.form(number.value, brief) if number else "–"

    rows = [[label, *(write(cells.get((label, column))) for column in columns)] for label in labels]
    head = [GROUPS[group], *(format_length(column) if isinstance(column, int) else str(column) for column in columns)]
    if group not in SUMMARY:
        return Table(numbers[0].table, group, head, rows)
    strong = data.extended if not data.extended.issuperset(labels) else set()
    return Table(numbers[0].table, numbers[0].measure.short, head, rows, strong)


def rich_table(table: Table) -> RenderableType:
    """Return a table for the terminal, below its title."""
    grid = RichTable(box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(table.head):
        grid.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in table.rows:
        grid.add_row(*map(Text, row), style="bold" if row[0] in table.strong else None)
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
    parts += [Text(warning, style="yellow") for warning in data.warnings]
    return Group(*parts)


def summary_markdown(data: ReportData) -> str:
    """Return a run's results as a Markdown table, or empty."""
    table = _joined(tables_of(data, SUMMARY, brief=True), " ")
    if not table.rows:
        return ""
    return markdown_table(table.head, [[plain(row[0]), *row[1:]] for row in table.rows]) + "\n"


def _joined(tables: Sequence[Table], separator: str) -> Table:
    """Join tables side by side, with their groups in the heads."""
    head, strong = [f"{separator.strip(' ')}model"], {label for table in tables for label in table.strong}
    cells: dict[str, dict[int, str]] = {}
    for table in tables:
        for number, column in enumerate(table.head[1:], 1):
            for row in table.rows:
                cells.setdefault(row[0], {})[len(head)] = row[number]
            head.append(f"{table.group if number == 1 or separator == ' ' else ''}{separator}{column}")
    rows = [[label, *(row.get(place, "–") for place in range(1, len(head)))] for label, row in cells.items()]
    return Table("", "", head, rows, strong)


def evaluation_summary(folder: Folder) -> RenderableType:
    """Return the page of an evaluation for the terminal."""
    data, parts = ReportData([folder]), list[RenderableType]()
    if folder.unfinished:
        parts.append(Text(folder.unfinished, style="yellow"))
    for judgement in data.judged:
        parts.append(Text(f"{judgement.row.label}: {judgement.headline}", style="bold"))
        parts += map(Text, judgement.sentences)
        parts += [Text(judgement.warning, style="yellow")] if judgement.warning else []
    parts += [Text(rule, style="dim") for rule in data.rules]
    for table in tables_of(data, brief=True):
        parts += [Text(""), rich_table(table)]
    parts += [Text(warning, style="yellow") for warning in data.warnings]
    return Group(*parts)


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a Markdown table with ``left`` left-aligned columns."""
    rows = [head, ["---"] * left + ["---:"] * (len(head) - left), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def plain(text: str) -> str:
    """Escape HTML, links and bars in a text for Markdown."""
    return html.escape(text, quote=False).replace("|", "\\|").replace("[", "&#91;")


def write_page(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of an evaluation or of runs; return its path.

    ``out`` is the page, or a folder for it [``report.html`` in the only folder]. ``figures/`` and ``numbers.csv`` are next to
    the page.
    """
    paths = list(dict.fromkeys(Path(folder).resolve() for folder in folders))
    if out is None and len(paths) > 1:
        raise RunError(f"a page of {len(paths)} runs needs a folder; give --out FOLDER or FILE.html")
    out = paths[0] if out is None else Path(out)
    page = out if out.suffix.lower() in (".html", ".htm") else out / "report.html"
    if page.is_file() and _MARK not in page.read_bytes():
        raise RunError(f"{page} is not a report of skipwise; give another --out")
    last = [path.name for path in paths]
    names = [str(Path(*path.parts[-2:])) if last.count(path.name) > 1 else path.name for path in paths]
    data = ReportData([read_folder(path, name) for path, name in zip(paths, names, strict=True)])
    if len(paths) > 1 and data.evaluated:
        raise RunError(
            "an evaluation is not a run, and a page has one evaluation or several runs; skipwise evaluate A B compares models"
        )
    page.parent.mkdir(parents=True, exist_ok=True)
    figures = draw_figures(data, page.parent / "figures")
    head = ["model", "text", "measure", "length", "value", "low_95", "high_95"]
    write_csv(page.parent / "numbers.csv", [head, *(number.cells for number in data.numbers)])
    text = render(
        "report.html.j2",
        data=data,
        folders=data.folders,
        title=_title(data),
        judged=data.judged,
        tables=tables_of(data),
        **_conditions(data),
        figures=[(plot, Markup(svg)) for plot, svg in figures],
        facts=_facts(data.folders),
    )
    write_text(page, text)
    return page


def render(template: str, **values: Any) -> str:
    """Fill in a template of ``assets``; a missing value is an error. Values are escaped in HTML alone."""
    environment = Environment(
        loader=PackageLoader("skipwise", "assets"),
        autoescape=template.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["plain"] = plain
    return environment.get_template(template).render(**values)


def _title(data: ReportData) -> str:
    if len(data.folders) > 1:
        return f"{len(data.folders)} runs compared"
    if data.folders[0].unfinished:
        return "Unfinished"
    if len(data.judged) == 1:
        return data.judged[0].headline
    if data.judged:
        return f"{len(data.judged)} models compared"
    return "Benchmarks" if benchmarks_of(data.folders) and not data.rows else "No extended model was measured"


def _conditions(data: ReportData) -> dict[str, Any]:
    """Return how the numbers were measured: settings and counts for the page's note."""
    records = [record for folder in data.folders for record in folder.records]
    readings = [r for r in records if isinstance(r, ReadingRecord) and r.mode == "sliding" and r.step is None]
    trials = [r for r in records if isinstance(r, TrialRecord)]
    counts: dict[str, set[int]] = {}
    for number in data.numbers:
        counts.setdefault(number.measure.group, set()).add(number.count)
    return {
        "counts": {group: _span(values) for group, values in counts.items()},
        "texts": " and ".join(sorted({r.data for r in readings})),
        "tokens": _span({r.tokens + 1 for r in readings}),
        "stride": _span({r.stride for r in readings}),
        "depths": " and ".join(sorted({r.depths for r in trials})),
        "seed": _span({r.seed for r in trials}),
        "segment": _span({number.length or 0 for number in data.numbers if number.measure.group == "other text"}),
        "fewest": FEWEST_SEGMENTS,
        "precision": " and ".join(
            sorted({r.precision for r in records if isinstance(r, ReadingRecord | TrialRecord | RulerRecord)})
        )
        + (
            ", weights in 4 bits" if any(f.info.get("evaluation", {}).get("load_in_4bit") for f in data.folders) else ""
        ),
    }


def _span(values: Collection[int]) -> str:
    low, high = min(values, default=0), max(values, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _facts(folders: Sequence[Folder]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Return run.json as sections of (key, a value for each folder)."""
    general = [{k: folder.info[k] for k in ("created", "seed") if k in folder.info} for folder in folders]
    sections: list[tuple[str, list[dict[str, Any]]]] = [("run", general)]
    models = {
        m["label"]: f"{m['name']}: {m['original']:,} to {m['target']:,} tokens"
        + (f", base {m['base']}" if m.get("base") else "")
        + f", weights {str(m.get('weights', ''))[:12]}"
        for m in folders[0].models
    }
    if len(folders) == 1 and models:
        sections.append(("models", [models]))
    sections += [(name, [folder.info.get(name, {}) for folder in folders]) for name in _SECTIONS]
    facts = []
    for title, columns in sections:
        keys = dict.fromkeys(key for column in columns for key in column)
        if rows := [(key.replace("_", " "), [_value(column.get(key)) for column in columns]) for key in keys]:
            facts.append((title, rows))
    return facts


def _value(value: Any) -> str:
    """Format a value of run.json."""
    match value:
        case None | bool():
            return {None: "–", True: "yes", False: "no"}[value]
        case int() | float():
            return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.4g}"
        case list():
            return ", ".join(map(_value, value))
        case dict():
            return ", ".join(f"{key} {_value(item)}" for key, item in value.items())
        case _:
            return str(value)
