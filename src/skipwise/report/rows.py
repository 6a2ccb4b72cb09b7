"""Read a folder of ``extend`` or ``evaluate``: a row for each model and text, a judgement of each extended model."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from skipwise.errors import RunError
from skipwise.recipes.names import BASELINES, DISPLAY_NAMES, display_name
from skipwise.results.records import (
    OTHER_TEXT,
    BenchmarkRecord,
    ReadingRecord,
    Record,
    RulerRecord,
    TrialRecord,
    read_records,
)
from skipwise.results.run_folder import RunFolder
from skipwise.results.scores import (
    EffectiveLength,
    RulerLength,
    RulerScores,
    effective_length,
    paired,
    ruler_length,
    scores_of,
)
from skipwise.results.statistics import Interval, difference, found, loss, perplexity

COST_LIMIT = 0.03  # nats: 3% in perplexity
LESS_COST = "Train on such text too"


@dataclass(frozen=True)
class Folder:
    """The records and the facts of one run or evaluation."""

    name: str  # in reports of several folders
    records: Sequence[Record]
    info: Mapping[str, Any] = field(default_factory=dict)  # ``run.json``; every key may be missing
    recipe: str = ""  # ``recipe.yaml``; empty for an evaluation

    @property
    def models(self) -> list[Mapping[str, Any]]:
        """Models of an evaluation, bases included; empty for a run."""
        return list(self.info.get("evaluation", {}).get("models", []))

    def model(self, label: str) -> Mapping[str, Any]:
        """Return the facts of an evaluated model; empty for a run."""
        return next((model for model in self.models if model["label"] == label), {})

    def base_of(self, label: str) -> str:
        """Return the label of a model's base, or empty."""
        run = "" if label == "original" or self.model(label) else "original"
        return str(self.model(label).get("base") or run)

    @property
    def unfinished(self) -> str:
        """Sentence on missing records of an evaluation; empty if it is complete."""
        planned = self.info.get("records")
        made = len({r.key for r in self.records if isinstance(r, ReadingRecord | TrialRecord | RulerRecord)})
        if not isinstance(planned, int) or made >= planned:
            return ""
        return (
            f"Unfinished: {made:,} of {planned:,} records. Prompts are not answered in the order of their depths, so the "
            "numbers of a part mislead. Run the same skipwise evaluate again; with shards, measure the missing ones and merge "
            "all into a new folder."
        )


def read_folder(folder: Path, name: str | None = None) -> Folder:
    """Read a run or an evaluation."""
    records = read_records(folder / "results.jsonl")
    if not records:
        raise RunError(
            f"{folder} has no results.jsonl; give the folder of a run or an evaluation, or finish it: extend with --resume, "
            "evaluate by the same command"
        )
    run = RunFolder(folder)
    info = run.read()
    recipe = run.recipe.read_text(encoding="utf-8") if run.recipe.is_file() else ""
    return Folder(name or folder.name, [record for record in records if _is_current(info, record)], info, recipe)


def _is_current(info: Mapping[str, Any], record: Record) -> bool:
    """Return whether a run still measures a record.

    A resumed run may have fewer windows, documents, tasks or prompts than before, another stride or another length of its
    documents. All records of an evaluation are current.
    """
    settings = info.get("evaluation", {})
    if not settings or "models" in settings:
        return True
    match record:
        case ReadingRecord(data=data) if data == OTHER_TEXT:
            return bool(settings["other"])
        case TrialRecord() | RulerRecord():
            shorter = record.length in settings["prompt_lengths"] and record.trial < settings["trials"]
            return shorter and record.task in settings["tasks"]
        case ReadingRecord(mode="sliding", step=None):
            own = [info["model"]["original_length"]] if record.arm == "original" else []
            documents, tokens = (settings[key].get(record.data, []) for key in ("documents", "tokens"))
            read = record.document, record.edges[-1]
            return (
                record.window in [*settings["windows"], *own]
                and record.stride == settings["strides"][str(record.window)]
                and read in zip(documents, tokens, strict=True)
            )
        case _:
            return True


@dataclass
class Row:
    """The results of one model on one text; lengths are in tokens."""

    run: str  # name of the folder; empty if the report has only one
    name: str  # label of the model in the records
    data: str  # name of the text
    model: str  # name of the model in tables
    text: str  # name of the text in tables; empty if the model reads only one
    base: str  # label of the base; empty without one
    judged: bool  # the model is extended
    original: int | None
    target: int | None
    sliding: dict[int, dict[str, ReadingRecord]] = field(default_factory=dict)  # by window and document
    trials: dict[str, dict[int, dict[int, TrialRecord]]] = field(default_factory=dict)  # by task, length and number
    ruler: RulerScores | None = None
    runs: set[str] = field(default_factory=set)  # names of all folders with this baseline

    @property
    def label(self) -> str:
        """Model, and its text if it reads several."""
        return f"{self.model} ({self.text})" if self.text else self.model

    def readings(self, window: int) -> list[ReadingRecord]:
        """Return the readings at a window, sorted by document for equal sums."""
        read = self.sliding.get(window, {})
        return [read[name] for name in sorted(read)]

    @cached_property
    def perplexity(self) -> dict[int, Interval]:
        """Perplexity by sliding window."""
        return {window: perplexity(self.readings(window)) for window in sorted(self.sliding)}

    @cached_property
    def found(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Right answers and prompts, by task and length."""
        return {
            task: {length: found(trials.values()) for length, trials in sorted(lengths.items())}
            for task, lengths in self.trials.items()
        }

    @property
    def whole(self) -> list[ReadingRecord]:
        """Readings in the longest window, with the whole document as context."""
        return self.readings(max(self.sliding)) if self.sliding else []

    def edges(self) -> list[int]:
        """Return the bucket edges inside the longest window that all documents share."""
        whole = self.whole
        shared = set.intersection(*(set(r.edges) for r in whole)) if whole else set()
        return sorted(edge for edge in shared if edge <= whole[0].window)

    def truncated(self) -> dict[int, Interval]:
        """Return the perplexity of the first tokens, by their number."""
        return {edge: perplexity(self.whole, edge) for edge in self.edges()[1:]}


@dataclass(frozen=True)
class Bucket:
    """Losses in nats per token at positions ``begin .. end - 1``."""

    begin: int
    end: int
    loss: Interval
    gain: Interval | None  # loss in windows of the original length minus ``loss``
    excess: Interval | None  # ``loss`` minus the base's in windows of the original length


@dataclass(frozen=True)
class Judgement:
    """The effective length of one model, and the cost of its extension.

    The cost is the change against the base inside the original window, on the same tokens.
    """

    row: Row
    buckets: list[Bucket]
    cost: Interval | None  # change of the loss, nats per token
    accuracy: Interval | None  # change of next-token accuracy, a share
    effective: EffectiveLength
    base: str
    ruler: RulerLength | None = None  # None without RULER inside the original window
    ruler_difference: tuple[int, Interval] | None = None  # longest shared length; score minus the base's

    @property
    def headline(self) -> str:
        """Effective length in one sentence."""
        return self.effective.headline(self.row.original, self.row.target)

    @property
    def sentences(self) -> list[str]:
        """Sentences below the headline: the next length, doubt, RULER's rule and score against the base, the cost."""
        ruler, cost = [self.ruler.text] if self.ruler else [], ""
        if self.ruler_difference:
            length, change = self.ruler_difference
            ruler.append(
                f"On the same prompts of {length:,} tokens it scores {format_points(change)} points against {self.base}."
            )
        if self.cost and self.accuracy:
            points = self.accuracy.times(100)
            span = f"{points.low:+.2f}, {points.high:+.2f}" if math.isfinite(points.high) else "one document"
            cost = (
                f"Inside the original window the loss changed by {self.cost} nats a token against {self.base} "
                f"({100 * math.expm1(self.cost.mean):+.1f}% perplexity), and next-token accuracy by {points.mean:+.2f} "
                f"[{span}] points."
            )
        elif self.row.sliding:
            cost = "The cost of the extension is unknown, because its base was not measured."
        return [text for text in (self.effective.next, self.effective.doubt, " ".join(ruler), cost) if text]

    @property
    def warning(self) -> str:
        """Warning of a high cost, or empty."""
        if self.cost is None or self.cost.mean <= COST_LIMIT:
            return ""
        return (
            f"The extension costs {self.cost.mean:.3f} nats a token inside the original window, more than {COST_LIMIT}: it reads "
            f"short texts worse than its base. {LESS_COST}{'' if self.row.original == self.row.target else ', or take another interpolation'}."
        )


def format_points(share: Interval) -> str:
    """Format a difference of shares in points, with its interval."""
    mean, low, high = (100 * value for value in (share.mean, share.low, share.high))
    return f"{mean:+.1f} [{low:+.0f}, {high:+.0f}]"


def rows_of(folders: Sequence[Folder]) -> list[Row]:
    """Return a row for each model and text, baselines first.

    A repeated measurement replaces the older one. A baseline with equal results in several runs is one row.
    """
    rows: list[Row] = []
    paths = {r.data for folder in folders for r in folder.records if isinstance(r, ReadingRecord)}
    last = {path: path.rstrip("/").rpartition("/")[2] or path for path in paths}
    names = {path: name if list(last.values()).count(name) == 1 else path for path, name in last.items()}
    rank = {name: i for i, name in enumerate(DISPLAY_NAMES)}
    for folder in folders:
        run = folder.name if len(folders) > 1 else ""
        by_text: dict[tuple[str, str], Row] = {}  # and by model
        readings = [
            r for r in folder.records if isinstance(r, ReadingRecord) and r.mode == "sliding" and r.step is None
        ]
        several = len({r.data for r in readings}) > 1
        for r in readings:
            row = by_text.setdefault(
                (r.arm, r.data), _row(folder, run, r.arm, r.data, names[r.data] if several else "")
            )
            row.sliding.setdefault(r.window, {})[r.document] = r
        first = {row.name: row for row in reversed(by_text.values())}  # row of a model that has its prompts
        trials = [r for r in folder.records if isinstance(r, TrialRecord)]
        scores = {s.arm: s for s in scores_of(r for r in folder.records if isinstance(r, RulerRecord))}
        for name in dict.fromkeys([*(t.arm for t in trials), *scores]):
            if name not in first:
                first[name] = by_text[name, ""] = _row(folder, run, name)
            first[name].ruler = scores.get(name)
        for t in trials:
            first[t.arm].trials.setdefault(t.task, {}).setdefault(t.length, {})[t.trial] = t
        for row in first.values():
            row.trials = {task: dict(sorted(lengths.items())) for task, lengths in row.trials.items()}
        rows += sorted(by_text.values(), key=lambda row: rank.get(row.name, len(rank)))
    return _merged_baselines(sorted(rows, key=lambda row: row.name not in BASELINES))


def _row(folder: Folder, run: str, name: str, data: str = "", text: str = "") -> Row:
    facts = folder.model(name)
    judged = not facts.get("control", False) if facts else name not in BASELINES
    model = f"{run} · {display_name(name)}" if run else display_name(name)
    of_run = {} if facts else folder.info.get("model", {})
    lengths = (facts.get(key, of_run.get(f"{key}_length")) for key in ("original", "target"))
    return Row(run, name, data, model, text, folder.base_of(name), judged, *lengths)


def _merged_baselines(rows: list[Row]) -> list[Row]:
    merged: dict[tuple[str, str, object], list[Row]] = {}
    for row in rows:
        scores = tuple((w, round(p.mean, 9)) for w, p in row.perplexity.items())
        hits = tuple((task, *lengths.items()) for task, lengths in row.found.items())
        ruler = row.ruler.means if row.ruler else ()
        same = (scores, hits, ruler) if row.name in BASELINES else row.run
        merged.setdefault((row.name, row.data, same), []).append(row)
    different = Counter(key[:2] for key in merged)
    for key, group in merged.items():
        group[0].runs = {row.run for row in group}
        if len(group) > 1 and different[key[:2]] == 1:  # else two rows would have one name
            group[0].model = group[0].model.removeprefix(f"{group[0].run} · ")
    return [group[0] for group in merged.values()]


def judge(rows: Sequence[Row]) -> list[Judgement]:
    """Judge every extended model on its first text."""
    judged: dict[tuple[str, str], Judgement] = {}
    for row in rows:
        if row.judged and (row.run, row.name) not in judged:
            bases = [r for r in rows if r.name == row.base and r.data == row.data]
            own = [r for r in bases if row.run in r.runs]
            base = own[0] if own else bases[0] if len(bases) == 1 else None  # another run's, if only one
            judged[row.run, row.name] = _judge(row, base)
    return list(judged.values())


def _judge(row: Row, base: Row | None) -> Judgement:
    """Judge a model against its base (or itself) in original-length windows."""
    control = base or row
    original = row.original or control.original or min(control.sliding, default=0)
    window = max((w for w in control.sliding if w <= original), default=0)
    theirs = control.readings(window)
    name = "the model itself" if base is None else f"the base ({base.label})"
    control_name = f"{name} in windows of {'its original ' if window == original else ''}{window or original:,} tokens"
    excess = {}
    lengths = {*row.sliding, *(n for lengths in row.found.values() for n in lengths)}
    for begin, end in pairwise([1, *sorted(lengths.intersection(row.edges()))]):
        if change := difference(row.whole, theirs, begin, end):
            excess[end] = change
    inside: tuple[int, int, int] | None = None  # the base's passkeys at its longest length up to the window
    if base and (shorter := {n: hits for n, hits in base.found.get("passkey", {}).items() if n <= window}):
        inside = (max(shorter), *shorter[max(shorter)])
    return Judgement(
        row,
        _buckets(row, theirs if base else []),
        difference(row.readings(window), theirs) if base else None,
        difference(row.readings(window), theirs, sums="hits") if base else None,
        effective_length(row.found.get("passkey", {}), excess, control_name, inside),
        base.label if base else "",
        ruler_length(row.ruler, base.ruler if base else None, row.original) if row.ruler else None,
        paired(row.ruler, base.ruler) if row.ruler and base and base.ruler else None,
    )


def _buckets(row: Row, theirs: Sequence[ReadingRecord]) -> list[Bucket]:
    """Return the loss by position, in buckets that double in length."""
    edges = row.edges()
    if len(edges) < 2 or not row.original:
        return []
    whole, short = row.whole, row.readings(row.original)
    doubled = {row.original} | {max(2, row.original // 4) * 2**k for k in range(32)}
    inner = [edge for edge in edges[1:-1] if edge in doubled]
    return [
        Bucket(
            begin,
            end,
            loss(whole, begin, end),
            difference(short, whole, begin, end) if begin >= row.original else None,
            difference(whole, theirs, begin, end),
        )
        for begin, end in pairwise([1, *inner, edges[-1]])
    ]


def benchmarks_of(folders: Iterable[Folder]) -> list[BenchmarkRecord]:
    """Return the record with most questions of each model, task and metric."""
    kept: dict[tuple[str, str, int, str], BenchmarkRecord] = {}
    for record in (r for folder in folders for r in folder.records if isinstance(r, BenchmarkRecord)):
        same = record.arm, record.task, record.fewshot, record.metric
        if same not in kept or record.samples >= kept[same].samples:
            kept[same] = record
    return list(kept.values())


def perplexity_by_step(folder: Folder) -> dict[tuple[str, int], dict[int, Interval]]:
    """Return perplexity during training by (mode, window in tokens) and step.

    In sliding windows all tokens count, in segments those beyond the original window. A step with missing records, after a
    kill, is left out.
    """
    documents = folder.info.get("evaluation", {}).get("documents")
    text = next(iter(documents), None) if isinstance(documents, Mapping) else None
    read: dict[tuple[str, int], dict[int, dict[str, ReadingRecord]]] = defaultdict(lambda: defaultdict(dict))
    for record in folder.records:
        if isinstance(record, ReadingRecord) and record.step is not None and text in (None, record.data):
            read[record.mode, record.window][record.step][record.key] = record
    curves = {}
    for (mode, window), steps in read.items():
        begin = folder.info.get("model", {}).get("original_length", 0) if mode == "segment" else 0
        complete = max(len(records) for records in steps.values())
        curves[mode, window] = {
            step: loss(list(records.values()), begin).exp()
            for step, records in sorted(steps.items())
            if len(records) == complete
        }
    return curves
