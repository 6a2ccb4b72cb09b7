"""Folders of runs or evaluations -> figures, ``numbers.csv`` and one HTML page, from their records alone."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from skipwise.errors import RunError, counted, out_of_room
from skipwise.recipes.names import arm_name
from skipwise.report.ability_tables import benchmarks_sentence, paper_differences, paper_sentence
from skipwise.report.canvas import Figure
from skipwise.report.difference_table import differences_to_first
from skipwise.report.figures import draw_figures
from skipwise.report.folder import Folder, read_folder
from skipwise.report.price import price_warning, prices_of
from skipwise.report.ruler_tables import ruler_name
from skipwise.report.shown import Shown
from skipwise.report.summary import Judgement, Row, benchmarks_of
from skipwise.report.tables import tables_of
from skipwise.results.files import write_csv, write_text
from skipwise.results.records import ReadingRecord, RulerRecord, TrialRecord
from skipwise.results.scores import shared_tasks
from skipwise.results.statistics import FEWEST_SEGMENTS, Interval, Z, wilson_interval

# A page that holds one of these is ours, and may be written anew.
_MARKS = (b'<meta name="generator" content="skipwise">', b"<title>Skipwise: ")
# What the numbers of a section mean.
_MEANING = {
    "probe": "Before training, the text of one chunk was changed: forward is the smallest change that this made to the logits "
    "of a later chunk, above 0 because chunks attend to each other, and backward is the largest change of an earlier "
    "chunk's logits, 0 because no token attends to a later one."
}
_SECTIONS = ("model", "training", "data", "probe", "machine", "versions")


def write_page(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of a run or an evaluation, or of several runs side by side, and return its path.

    ``out`` is the page, or a folder for it; by default it is ``report.html`` in the only folder. ``figures/`` and
    ``numbers.csv`` go beside the page.
    """
    paths = list(dict.fromkeys(Path(folder).resolve() for folder in folders))
    page = _page_path(paths, out)
    _require_own(page, new=out is not None)
    read = [read_folder(path, name) for path, name in zip(paths, _names(paths), strict=True)]
    if len(read) > 1 and (evaluations := [folder.name for folder in read if folder.models]):
        raise RunError(
            f"{evaluations[0]} is an evaluation and not a run: skipwise report shows one evaluation alone, and "
            "skipwise evaluate A B measures several models side by side"
        )
    shown = Shown(read)
    with _writing(page):
        page.parent.mkdir(parents=True, exist_ok=True)
        figures = draw_figures(shown, page.parent / "figures")
        write_csv(page.parent / "numbers.csv", _numbers(shown))
        write_text(page, _html(shown, figures))
    return page


def _html(shown: Shown, figures: Sequence[Figure]) -> str:
    folders = shown.folders
    environment = Environment(
        loader=PackageLoader("skipwise", "assets"),
        autoescape=True,  # everything but our own SVG
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        folders=folders,
        title=_title(shown),
        unfinished=[folder.unfinished for folder in folders if folder.unfinished],
        judged=shown.judged,
        warnings=[f"{_prefix(folder, folders)}{text}" for folder in folders if (text := price_warning(folder))],
        rules=list(dict.fromkeys(one.effective.rule for one in shown.judged)),
        tables=tables_of(shown),
        colours={label: look.colour for label, look in shown.looks.items()},
        conditions=_conditions(shown),
        benchmarks=[told for folder in folders if (told := benchmarks_sentence(folder))],
        figures=[(figure, Markup(figure.svg)) for figure in figures],
        facts=_facts(folders),
        meaning=_MEANING,
        commands=[(folder.name, command) for folder in folders if (command := folder.info.get("command"))],
    )


def _prefix(folder: Folder, folders: Sequence[Folder], mark: str = ": ") -> str:
    """The name of a folder before what is said of it; empty where it is the only one."""
    return f"{folder.name}{mark}" if len(folders) > 1 else ""


def _title(shown: Shown) -> str:
    folders, judged = shown.folders, shown.judged
    if len(folders) > 1:
        return f"{len(folders)} runs compared"
    if folders[0].unfinished:
        return "Unfinished"
    if len(judged) == 1:
        return judged[0].headline
    if judged:
        return f"{len(judged)} models compared"
    return "Benchmarks" if benchmarks_of(folders) and not shown.rows else "Nothing was extended"


def _page_path(folders: list[Path], out: Path | None) -> Path:
    if not folders:
        raise RunError("no run folder was given; name at least one, as runs/NAME")
    if out is None and len(folders) > 1:
        raise RunError(f"comparing {len(folders)} runs needs a place of its own; give --out FOLDER or FILE.html")
    out = folders[0] if out is None else Path(out)
    return out if out.suffix.lower() in (".html", ".htm") else out / "report.html"


def _require_own(page: Path, *, new: bool) -> None:
    """Refuse to write over files that are not ours."""
    if page.is_dir():
        raise RunError(f"{page} is a folder, and the report is a file; move it, or give another --out")
    with _writing(page):
        found = page.read_bytes() if page.is_file() else b""
    if (found and not any(mark in found for mark in _MARKS)) or (page.exists() and not page.is_file()):
        raise RunError(f"{page} is no report of skipwise and is left as it is; give another --out")
    for name in ("numbers.csv", "figures"):
        if new and not page.exists() and (page.parent / name).exists():
            raise RunError(f"{page.parent / name} exists and was not written with this page; give another --out")


@contextmanager
def _writing(page: Path) -> Iterator[None]:
    """Turn what the file system refuses into a message."""
    try:
        yield
    except OSError as error:
        if out_of_room(error):  # another folder would lack what was measured in this one
            raise
        raise RunError(
            f"the report cannot be written to {page}, its figures to {page.parent / 'figures'}: {error}; "
            "give another --out"
        ) from None


def _names(folders: list[Path]) -> list[str]:
    """The folders' names, each behind as many of its parents' as tell it from the others."""
    names = [folder.name for folder in folders]
    for parts in range(2, max(len(folder.parts) for folder in folders) + 1):
        names = [
            name if names.count(name) == 1 else str(Path(*folder.parts[-parts:]))
            for folder, name in zip(folders, names, strict=True)
        ]
    return names


def _conditions(shown: Shown) -> list[str]:
    """How the numbers were measured, in sentences; a range where records differ."""
    folders = shown.folders
    records = [record for folder in folders for record in folder.records]
    readings = [r for r in records if isinstance(r, ReadingRecord) and r.mode == "sliding" and r.step is None]
    trials = [r for r in records if isinstance(r, TrialRecord)]
    ruler = [r for r in records if isinstance(r, RulerRecord)]
    parts = [_of_readings(readings)] if readings else []
    if trials:
        parts.append(_of_trials(trials, _asked(folders, TrialRecord)))
    if ruler:
        parts.append(_of_ruler(ruler, _asked(folders, RulerRecord)))
    if prices := [price for folder in folders for price in prices_of(folder)]:
        parts.append(
            f"Other text: documents that ship with skipwise, {_span([p.segments for p in prices])} segments of each, "
            f"{_span([p.tokens for p in prices])} tokens long. Intervals: 95%, Student's t over segments, if there are "
            f"{FEWEST_SEGMENTS}."
        )
    if told := paper_sentence(folders):
        parts.append(told)
    if precisions := sorted({r.precision for kind in (readings, trials, ruler) for r in kind}):
        parts.append(f"Precision: {' and '.join(precisions)}.")
    return parts


def _of_readings(readings: Sequence[ReadingRecord]) -> str:
    texts = " and ".join(sorted({r.data for r in readings}))
    documents = len({(r.data, r.document) for r in readings})
    lengths = _span([r.tokens + 1 for r in readings])
    return (
        f"Perplexity: {counted(documents, 'document')} of {texts}, {lengths} tokens of each. Every token but the first is scored once, and windows advance by "
        f"{_span([r.stride for r in readings])} tokens. Intervals: 95%, Student's t over documents."
    )


def _of_trials(trials: Sequence[TrialRecord], asked: Collection[int]) -> str:
    seeds = sorted({r.seed for r in trials})
    return (
        f"Retrieval: {_span(asked)} prompt{'s' if max(asked) > 1 else ''} of each length, at "
        f"{' and '.join(sorted({r.depths for r in trials}))} depths, answered greedily; all five digits must be "
        f"right. Seed {', '.join(map(str, seeds))}. Intervals: 95%, Wilson."
    )


def _of_ruler(ruler: Sequence[RulerRecord], asked: Collection[int]) -> str:
    style = (
        ""
        if all(r.real_data for r in ruler)
        else (
            " A text that ships with skipwise stands in for RULER's essays in tasks marked (style); their scores do not "
            "compare with published ones."
        )
    )
    return (
        f"RULER: {_span(asked)} prompts of each task and length, answered greedily and scored by RULER's rule; "
        f"prompt and answer fit the length. Intervals: 95%, Wilson.{style}"
    )


def _asked(folders: Sequence[Folder], kind: type[TrialRecord] | type[RulerRecord]) -> Collection[int]:
    """How many prompts each model was asked of each task and length."""
    prompts = {(f.name, r.arm, r.task, r.length, r.trial) for f in folders for r in f.records if isinstance(r, kind)}
    return Counter(prompt[:-1] for prompt in prompts).values()


def _span(values: Collection[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _facts(folders: Sequence[Folder]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """run.json of each folder as sections of (key, a value for each folder), in reading order."""
    general = [{k: folder.info[k] for k in ("created", "seed") if k in folder.info} for folder in folders]
    sections: list[tuple[str, list[dict[str, Any]]]] = [("run", general)]
    if len(folders) == 1 and (models := folders[0].models):
        sections.append(("models", [{m["label"]: _lengths(m) for m in models}]))
    sections += [(name, [folder.info.get(name, {}) for folder in folders]) for name in _SECTIONS]
    facts = []
    for title, columns in sections:
        keys = dict.fromkeys(key for column in columns for key in column)
        if rows := [(key.replace("_", " "), [_value(column.get(key)) for column in columns]) for key in keys]:
            facts.append((title, rows))
    return facts


def _lengths(model: Mapping[str, Any]) -> str:
    base = f", base {model['base']}" if model.get("base") else ""
    weights = str(model.get("weights", ""))[:12]
    return f"{model['name']}: {model['original']:,} to {model['target']:,} tokens{base}, weights {weights}"


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


def _numbers(shown: Shown) -> Iterator[list[object]]:
    """Every number of the page: model, text, measure, length, value and the ends of its interval."""
    yield ["model", "text", "measure", "length", "value", "low_95", "high_95"]
    for row in shown.rows:
        for measure, length, value in _of_row(row):
            yield [row.model, row.data, measure, length, *_ends(value)]
    for one in shown.judged:
        claimed = one.effective.claimed(one.row.original)
        yield [one.row.model, one.row.data, "effective length", "", "" if claimed is None else claimed, "", ""]
        if one.ruler:
            yield [one.row.model, one.row.data, "length by RULER's rule", "", one.ruler.tokens, "", ""]
        for measure, length, value in _of_judgement(one):
            yield [one.row.model, one.row.data, measure, length, *_ends(value)]
        for n, perplexity in one.row.truncated().items():
            yield [one.row.model, one.row.data, "perplexity of the first tokens", n, *_ends(perplexity)]
    tasks = shared_tasks([row.ruler for row in shown.rows if row.ruler])
    for row in shown.rows:
        for length in row.ruler.lengths if row.ruler else ():
            if row.ruler and (average := row.ruler.average(length, tasks)):
                measure = f"{ruler_name([row.ruler])}, average of {counted(len(tasks), 'task')}, %"
                yield [row.model, row.data, measure, length, *_ends(average.times(100))]
    first, apart = differences_to_first(shown.rows) if shown.evaluated else ("", {})
    for label, differences in apart.items():
        for (task, length), value in differences.items():
            yield [label, "", f"{task}, % more than {first}", length, *_ends(value.times(100))]
    for r in benchmarks_of(shown.folders):
        half = None if r.standard_error is None else Z * r.standard_error
        span = ["", ""] if half is None else [r.value - half, r.value + half]
        yield [r.arm, "", f"benchmark {r.task}, {r.fewshot}-shot, {r.metric}", "", r.value, *span]
    for label, scores in paper_differences(shown.folders).items():
        for task, score in scores.items():
            half = None if score.error is None else Z * score.error
            span = ["", ""] if half is None else [score.value - half, score.value + half]
            paired = "paired" if score.paired else "not paired"
            yield [label, "", f"benchmark {task}, % less its base's, {paired}", "", score.value, *span]
    for folder in shown.folders:
        yield from _of_prices(folder, _prefix(folder, shown.folders, " · "))


def _ends(value: Interval) -> tuple[float, float, float]:
    return value.mean, value.low, value.high


def _of_prices(folder: Folder, named: str) -> Iterator[list[object]]:
    """Loss and accuracy on other text, and the differences, which have an interval if there are segments enough."""
    for price in prices_of(folder):
        base = folder.base_of(price.arm)
        for measure, cost, unit, measured in (
            ("loss", "cost", "nats", price.loss),
            ("next-token accuracy", "change of next-token accuracy", "%", price.accuracy),
        ):
            named_as = f"on other text, {unit} inside the original window"
            label = f"{named}{arm_name(price.arm)}"
            if measured.base is not None:
                yield [f"{named}{base}", price.kind, f"{measure} {named_as}", price.tokens, measured.base, "", ""]
            yield [label, price.kind, f"{measure} {named_as}", price.tokens, measured.own, "", ""]
            if change := measured.difference:
                span = [change.low, change.high] if price.has_interval else ["", ""]
                yield [label, price.kind, f"{cost} {named_as}", price.tokens, change.mean, *span]


def _of_row(row: Row) -> Iterator[tuple[str, int | str, Interval]]:
    for window, value in row.perplexity.items():
        yield "perplexity by sliding window", window, value
    for task, lengths in row.found.items():
        for n, (hits, asked) in lengths.items():
            yield f"found, {task}, %", n, Interval(hits / asked, *wilson_interval(hits, asked)).times(100)
    for task, length, _ in row.ruler.means if row.ruler else ():
        if row.ruler and (score := row.ruler.score(task, length)):
            yield f"{ruler_name([row.ruler])}, {task}, %", length, score.times(100)


def _of_judgement(one: Judgement) -> Iterator[tuple[str, int | str, Interval]]:
    if one.cost:
        yield "cost, nats inside the original window", "", one.cost.loss
        yield "cost, next-token accuracy", "", one.cost.accuracy
    if one.ruler_difference:
        length, apart = one.ruler_difference
        yield f"RULER, average less that of {one.base}, %", length, apart.times(100)
    for b in one.buckets:
        named = {"loss by position": b.loss, "gain by far text": b.gain, "loss over the base": b.excess}
        yield from ((f"{measure}, nats", b.end, value) for measure, value in named.items() if value)
