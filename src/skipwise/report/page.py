"""Run folders -> one self-contained HTML page, from results.jsonl, run.json and recipe.yaml alone."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from skipwise.errors import RunError
from skipwise.intervals import wilson_interval
from skipwise.lengths import format_length
from skipwise.report.captions import captions
from skipwise.report.evaluation import is_evaluation
from skipwise.report.plots import ARM_COLOURS, OTHER_COLOUR, draw_figures
from skipwise.report.summary import (
    ResultsTable,
    Row,
    Verdict,
    format_number,
    format_share,
    results_table,
    summary_markdown,
    summary_table,
    verdict,
)
from skipwise.results import (
    PasskeyRecord,
    PerplexityRecord,
    ReadingRecord,
    Record,
    TrialRecord,
    read_records,
)

__all__ = ["summary_markdown", "summary_table", "write_report"]

# A page that holds one of these is ours, and may be written anew.
_MARKS = (b'<meta name="generator" content="skipwise">', b"<title>Skipwise: ")
_SECTIONS = ("model", "training", "data", "probe", "machine", "versions")


@dataclass(frozen=True)
class Run:
    """What a run folder says of itself; every key of ``info`` (run.json) is optional."""

    name: str
    records: list[Record]
    info: dict[str, Any]
    recipe: str

    @property
    def model(self) -> dict[str, Any]:
        """run.json's ``model``; empty if it is not there."""
        return _mapping(self.info.get("model"))

    def length(self, key: str) -> int | None:
        """A length of the model in tokens, or None where run.json does not hold a whole number."""
        value = self.model.get(key)
        return value if isinstance(value, int) and value > 0 else None


def write_report(run_folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the report of a run, or the comparison of several: figures and one HTML page.

    Args:
        run_folders: each holds ``results.jsonl``; ``run.json`` and ``recipe.yaml`` are read where present.
        out: the page, or a folder for it; default: ``report.html`` in the run's folder. The figures go into
            ``figures/`` beside the page.

    Returns:
        The path of the page.

    Raises:
        RunError: a folder holds no results, a file cannot be read, several runs have no ``out``, or ``out``
            cannot be written or is a file of another kind.
    """
    folders = list(dict.fromkeys(Path(folder).resolve() for folder in run_folders))
    page = _page_path(folders, out)
    require_own(page)
    runs = [_read_run(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]
    records = {run.name: run.records for run in runs}
    originals = {run.length("original_length") for run in runs}
    with written(page):
        page.parent.mkdir(parents=True, exist_ok=True)
        figures = draw_figures(
            records, page.parent / "figures", originals.pop() if len(originals) == 1 else None
        )
    says, verdicts = captions(records), [_verdict(run) for run in runs]
    text = page_template("report.html.j2").render(
        runs=runs,
        verdicts=verdicts,
        pairs=list(zip(runs, verdicts, strict=True)),
        rules=list(dict.fromkeys(verdict.rule for verdict in verdicts)),
        table=_cells(results_table(records)),
        conditions=_conditions(records),
        figures=[(figure, Markup(figure.svg), says[figure.name]) for figure in figures],
        facts=facts_of([(run.name, run.info) for run in runs]),
        commands=[(run.name, _command(run.info["command"])) for run in runs if run.info.get("command")],
    )
    with written(page):
        page.write_text(text, encoding="utf-8")
    return page


def require_own(page: Path) -> None:
    """Refuse to write over a file that is no report of ours."""
    if page.is_dir():
        raise RunError(f"{page} is a folder, and the report is a file; move it, or give another --out")
    with written(page):
        found = page.read_bytes() if page.exists() else b""
    if found and not any(mark in found for mark in _MARKS):
        raise RunError(f"{page} is no report of skipwise and is left as it is; give another --out")


@contextmanager
def written(page: Path) -> Iterator[None]:
    """Turn what the file system refuses into a message."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"the report cannot be written to {page}, its figures to {page.parent / 'figures'}: {error}; "
            "give another --out"
        ) from None


def _page_path(folders: list[Path], out: Path | None) -> Path:
    if not folders:
        raise RunError("no run folder was given; name at least one, as runs/NAME")
    if out is None and len(folders) > 1:
        raise RunError(
            f"comparing {len(folders)} runs needs a place of its own; give --out FOLDER or FILE.html"
        )
    out = folders[0] if out is None else Path(out)
    return out if out.suffix.lower() in (".html", ".htm") else out / "report.html"


def _names(folders: list[Path]) -> list[str]:
    """The folders' names; with the parent's where two would be the same."""
    names = [folder.name for folder in folders]
    return [
        name if names.count(name) == 1 else f"{folder.parent.name}/{name}"
        for folder, name in zip(folders, names, strict=True)
    ]


def _read_run(folder: Path, name: str) -> Run:
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder; give a run's folder, as runs/NAME")
    if is_evaluation(folder):
        raise RunError(
            f"{folder} is an evaluation and not a run: skipwise report takes one evaluation alone, and skipwise evaluate A B "
            "measures several models side by side"
        )
    records = read_records(folder / "results.jsonl")
    if not records:
        raise RunError(f"{folder} holds no results (results.jsonl); finish the run with --resume first")
    if all(isinstance(record, ReadingRecord | TrialRecord) for record in records):
        raise RunError(
            f"{folder} holds what skipwise perplexity and passkey measured, and no run: the same commands print their "
            "tables again; skipwise evaluate makes a page"
        )
    try:
        info_file, recipe_file = folder / "run.json", folder / "recipe.yaml"
        info = json.loads(info_file.read_text(encoding="utf-8")) if info_file.exists() else {}
        recipe = recipe_file.read_text(encoding="utf-8") if recipe_file.exists() else ""
    except (ValueError, OSError, RecursionError) as error:
        raise RunError(
            f"{folder}: run.json or recipe.yaml cannot be read ({error}); mend or delete it"
        ) from None
    return Run(name, records, _mapping(info), recipe)


def _verdict(run: Run) -> Verdict:
    return verdict(run.records, run.length("original_length"), run.length("target_length"))


def _cells(table: ResultsTable) -> dict[str, Any]:
    """The two tables, perplexity and passkey, as text ready to be laid out."""
    return {
        "perplexity": {
            "lengths": [format_length(w) for w in table.windows],
            "rows": [
                (_arm(row), [_perplexity(row, w) for w in table.windows])
                for row in table.rows
                if row.perplexity
            ],
        },
        "passkey": {
            "lengths": [format_length(n) for n in table.lengths],
            "rows": [
                (_arm(row), [_passkey(row, n) for n in table.lengths]) for row in table.rows if row.passkey
            ],
        },
    }


def _arm(row: Row) -> dict[str, Any]:
    return {
        "label": row.label,
        "colour": ARM_COLOURS.get(row.arm, OTHER_COLOUR),
        "trained": row.trained,
    }


def _perplexity(row: Row, window: int) -> tuple[str, str]:
    record = row.perplexity.get(window)
    return (format_number(record.perplexity), "") if record else ("–", "")


def _passkey(row: Row, length: int) -> tuple[str, str]:
    record = row.passkey.get(length)
    if record is None:
        return "–", ""
    low, high = wilson_interval(sum(record.hits), record.trials)
    return format_share(record.accuracy), f"{100 * low:.0f}–{100 * high:.0f}"


def _conditions(records: Mapping[str, Sequence[Record]]) -> dict[str, str]:
    """How the numbers of each table were measured; a range where the records differ."""
    flat = [record for run in records.values() for record in run]
    scores = [r for r in flat if isinstance(r, PerplexityRecord)]
    passkeys = [r for r in flat if isinstance(r, PasskeyRecord)]
    perplexity = [
        f"Sliding windows, stride {_span([r.stride for r in scores])} tokens",
        f"{_span([r.documents for r in scores])} documents",
        f"{_span([r.tokens for r in scores])} tokens scored",
        " and ".join(sorted({r.precision for r in scores})),
    ]
    passkey = f"{_span([r.trials for r in passkeys])} trials a length, greedy; small: 95% interval"
    return {"perplexity": ", ".join(perplexity) if scores else "", "passkey": passkey if passkeys else ""}


def _span(values: list[int]) -> str:
    if not values:
        return ""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def facts_of(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """run.json of each name as sections of (key, a value a run), in reading order; what is not there is left out."""
    general = [{k: info[k] for k in ("created", "seed") if k in info} for _, info in runs]
    sections: list[tuple[str, list[dict[str, Any]]]] = [("run", general)]
    sections += [(name, [_mapping(info.get(name)) for _, info in runs]) for name in _SECTIONS]
    facts = []
    for title, columns in sections:
        keys = dict.fromkeys(key for column in columns for key in column)
        rows = [(key.replace("_", " "), [_value(column.get(key)) for column in columns]) for key in keys]
        if rows:
            facts.append((title, rows))
    return facts


def _value(value: Any) -> str:
    """A value of run.json as people write it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(item)}" for key, item in value.items())
    return str(value)


def _command(command: Any) -> str:
    return shlex.join(map(str, command)) if isinstance(command, list) else str(command)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def page_template(name: str) -> Template:
    """A page's template; everything that it prints is escaped, but for our own SVG."""
    environment = Environment(
        loader=PackageLoader("skipwise", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)
