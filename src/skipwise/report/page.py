"""Write figures, ``numbers.csv`` and one HTML page of runs or of an evaluation, from their records alone."""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from skipwise.errors import RunError, counted
from skipwise.report.canvas import Figure
from skipwise.report.figures import draw_figures
from skipwise.report.folder import Folder, read_folder
from skipwise.report.numbers import ReportData, paper_differences
from skipwise.report.rows import benchmarks_of, other_text_warning, other_texts
from skipwise.report.tables import tables_of
from skipwise.results.files import write_csv, write_text
from skipwise.results.records import ReadingRecord, RulerRecord, TrialRecord
from skipwise.results.statistics import FEWEST_SEGMENTS

_MARK = b'<meta name="generator" content="skipwise">'  # of our pages, which may be replaced
_MEANING = {
    "probe": "Before training, the text of one chunk was changed. Forward: the smallest change of a later chunk's logits, above "
    "0 because chunks attend to each other. Backward: the largest change of an earlier chunk's logits, 0 because no token "
    "attends to a later one."
}
_SECTIONS = ("model", "training", "data", "probe", "machine", "versions")


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
    write_text(page, _html(data, figures))
    return page


def render(template: str, **values: Any) -> str:
    """Fill in a template of ``assets``; a missing value is an error."""
    environment = Environment(
        loader=PackageLoader("skipwise", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def _html(data: ReportData, figures: Sequence[Figure]) -> str:
    folders = data.folders
    warnings = {folder.name: other_text_warning(folder) for folder in folders}
    return render(
        "report.html.j2",
        folders=folders,
        title=_title(data),
        unfinished=[folder.unfinished for folder in folders if folder.unfinished],
        judged=data.judged,
        warnings=[f"{name}: {text}" if len(folders) > 1 else text for name, text in warnings.items() if text],
        rules=list(dict.fromkeys(one.effective.rule for one in data.judged)),
        tables=tables_of(data),
        colours={label: look.colour for label, look in data.looks.items()},
        conditions=_conditions(data),
        figures=[(figure, Markup(figure.svg)) for figure in figures],
        facts=_facts(folders),
        meaning=_MEANING,
        commands=[(folder.name, command) for folder in folders if (command := folder.info.get("command"))],
    )


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


def _conditions(data: ReportData) -> list[str]:
    """Return sentences on how the numbers were measured."""
    records = [record for folder in data.folders for record in folder.records]
    readings = [r for r in records if isinstance(r, ReadingRecord) and r.mode == "sliding" and r.step is None]
    trials = [r for r in records if isinstance(r, TrialRecord)]
    ruler = [r for r in records if isinstance(r, RulerRecord)]
    parts = []
    if readings:
        documents = len({(r.data, r.document) for r in readings})
        parts.append(
            f"Perplexity: {counted(documents, 'document')} of {' and '.join(sorted({r.data for r in readings}))}, "
            f"{_span([r.tokens + 1 for r in readings])} tokens of each. Every token but the first is scored once; stride "
            f"{_span([r.stride for r in readings])} tokens. Intervals: 95%, Student's t over documents."
        )
    if trials:
        parts.append(
            f"Retrieval: {_prompts(data.folders, TrialRecord)} of each length, at "
            f"{' and '.join(sorted({r.depths for r in trials}))} depths, answered greedily; all five digits must be right. "
            f"Seed {', '.join(map(str, sorted({r.seed for r in trials})))}. Intervals: 95%, Wilson."
        )
    if ruler:
        parts.append(
            f"RULER: {_prompts(data.folders, RulerRecord)} of each task and length, answered greedily and scored by RULER's "
            "rule; prompt and answer fit the length. Intervals: 95%, Wilson."
        )
    if data.stand_in_tasks:
        parts.append(
            "In tasks marked (style) a text that ships with skipwise replaces RULER's essays; their scores do not compare with "
            "published ones."
        )
    if others := [text for folder in data.folders for text in other_texts(folder)]:
        parts.append(
            f"Other text: documents that ship with skipwise, {_span([text.segments for text in others])} segments of each, "
            f"{_span([text.tokens for text in others])} tokens long. Intervals: 95%, Student's t over segments, from "
            f"{FEWEST_SEGMENTS} segments on."
        )
    errors = {score.paired for scores in paper_differences(data.folders).values() for score in scores.values()}
    if True in errors:
        parts.append(
            "The standard error of a benchmark's difference is over the questions that both models answered, paired."
        )
    if False in errors:
        parts.append("With a * the questions differ or are unknown: the error is that of two independent models.")
    if precisions := sorted({r.precision for kind in (readings, trials, ruler) for r in kind}):
        parts.append(f"Precision: {' and '.join(precisions)}.")
    return parts


def _prompts(folders: Sequence[Folder], kind: type[TrialRecord] | type[RulerRecord]) -> str:
    """Return the number of prompts of each model, task and length."""
    prompts = {(f.name, r.arm, r.task, r.length, r.trial) for f in folders for r in f.records if isinstance(r, kind)}
    counts = Counter(prompt[:-1] for prompt in prompts).values()
    return f"{_span(counts)} prompt{'s' if max(counts) > 1 else ''}"


def _span(values: Collection[int]) -> str:
    low, high = min(values), max(values)
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
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        case list():
            return ", ".join(map(_value, value))
        case dict():
            return ", ".join(f"{key} {_value(item)}" for key, item in value.items())
        case _:
            return str(value)
