"""Records -> rows (one model on one text), and a judgement of each extended model."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from skipwise.recipes.names import ARM_NAMES, BASELINES, arm_name
from skipwise.report.folder import Folder
from skipwise.results.records import OTHER_TEXT, BenchmarkRecord, ReadingRecord, RulerRecord, TrialRecord
from skipwise.results.scores import (
    EffectiveLength,
    RulerLength,
    RulerScores,
    effective_length,
    paired,
    ruler_length,
    scores_of,
)
from skipwise.results.statistics import FEWEST_SEGMENTS, Interval, Sums, difference, found, loss, perplexity

COST_LIMIT = 0.03  # nats: 3% in perplexity
_LESS_COST = "Lower training.learning_rate, or train on such text too"
_OTHER_TEXT_MEASURES: list[tuple[str, Sums, int]] = [("loss (nats)", "nll", 1), ("accuracy (%)", "hits", 100)]


@dataclass
class Row:
    """The results of one model on one text; lengths are in tokens."""

    run: str  # name of the folder; empty if the report has only one
    arm: str  # label of the model in the records
    data: str  # name of the text
    model: str  # name of the model in tables
    text: str  # name of the text in tables; empty if the model reads only one
    base: str  # arm of the base; empty without one
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
class Cost:
    """Change against the base inside the original window, on the same tokens."""

    loss: Interval  # nats per token
    accuracy: Interval  # next-token, a share

    def sentence(self, base: str) -> str:
        """Describe the cost in one sentence."""
        points = self.accuracy.times(100)
        span = f"{points.low:+.2f}, {points.high:+.2f}" if math.isfinite(points.high) else "one document"
        return (
            f"Inside the original window the loss changed by {self.loss} nats a token against {base} "
            f"({100 * math.expm1(self.loss.mean):+.1f}% perplexity), and next-token accuracy by {points.mean:+.2f} "
            f"[{span}] points."
        )

    @property
    def warning(self) -> str:
        """Warning of a high cost, or empty."""
        if self.loss.mean <= COST_LIMIT:
            return ""
        return (
            f"The extension costs {self.loss.mean:.3f} nats a token inside the original window, more than {COST_LIMIT}: it reads "
            f"short texts worse than its base. {_LESS_COST}, or take another interpolation."
        )


@dataclass(frozen=True)
class Judgement:
    """The effective length of one model, and the cost of its extension."""

    row: Row
    buckets: list[Bucket]
    cost: Cost | None
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
        """Sentences below the headline: the next length, RULER, the cost."""
        cost = self.cost.sentence(self.base) if self.cost else ""
        if self.row.sliding and not cost:
            cost = "What the extension cost is not known, because no base was read with it."
        return [text for text in (self.effective.next, self.ruler_sentence, cost) if text]

    @property
    def ruler_sentence(self) -> str:
        """Length by RULER's rule and score against the base, or empty."""
        parts = [self.ruler.text] if self.ruler else []
        if self.ruler_difference:
            length, change = self.ruler_difference
            parts.append(
                f"On the same prompts of {length:,} tokens it scores {format_points(change)} points against {self.base}."
            )
        return " ".join(parts)


def format_points(share: Interval) -> str:
    """Format a difference of shares in points, with its interval."""
    mean, low, high = (100 * value for value in (share.mean, share.low, share.high))
    return f"{mean:+.1f} [{low:+.0f}, {high:+.0f}]"


def rows_of(folders: Sequence[Folder]) -> list[Row]:
    """Return a row for each model and text, baselines first.

    A repeated measurement replaces the older one. A baseline with equal results in several runs is one row.
    """
    rows: dict[tuple[str, str, str], Row] = {}
    paths = {r.data for folder in folders for r in folder.records if isinstance(r, ReadingRecord)}
    last = {path: path.rstrip("/").rpartition("/")[2] or path for path in paths}
    names = {path: name if list(last.values()).count(name) == 1 else path for path, name in last.items()}
    for folder in folders:
        run = folder.name if len(folders) > 1 else ""
        readings = [
            r for r in folder.records if isinstance(r, ReadingRecord) and r.mode == "sliding" and r.step is None
        ]
        texts = {r.data for r in readings}
        for r in readings:
            key = (folder.name, r.arm, r.data)
            row = rows.setdefault(key, _row(folder, run, r.arm, r.data, names[r.data] if len(texts) > 1 else ""))
            row.sliding.setdefault(r.window, {})[r.document] = r

        def prompts_of(arm: str, folder: Folder = folder, run: str = run) -> Row:
            """Return the first row of a model, which has its prompts."""
            first = next((row for key, row in rows.items() if key[:2] == (folder.name, arm)), None)
            return first or rows.setdefault((folder.name, arm, ""), _row(folder, run, arm))

        for t in (r for r in folder.records if isinstance(r, TrialRecord)):
            prompts_of(t.arm).trials.setdefault(t.task, {}).setdefault(t.length, {})[t.trial] = t
        for scores in scores_of(r for r in folder.records if isinstance(r, RulerRecord)):
            prompts_of(scores.arm).ruler = scores
    for row in rows.values():
        row.trials = {task: dict(sorted(row.trials[task].items())) for task in row.trials}
    order = {folder.name: i for i, folder in enumerate(folders)}
    rank = {arm: i for i, arm in enumerate(ARM_NAMES)}

    def place(row: Row) -> tuple[bool, int, int]:
        return row.arm not in BASELINES, order.get(row.run, 0), rank.get(row.arm, len(rank))

    return _merged_baselines(sorted(rows.values(), key=place))


def _row(folder: Folder, run: str, arm: str, data: str = "", text: str = "") -> Row:
    facts = folder.model(arm)
    judged = not facts.get("control", False) if facts else arm not in BASELINES
    model = f"{run} · {arm_name(arm)}" if run else arm_name(arm)
    lengths = folder.length("original", arm), folder.length("target", arm)
    return Row(run, arm, data, model, text, folder.base_of(arm), judged, *lengths)


def _merged_baselines(rows: list[Row]) -> list[Row]:
    merged: dict[tuple[str, str, object], list[Row]] = {}
    for row in rows:
        scores = tuple((w, round(p.mean, 9)) for w, p in row.perplexity.items())
        hits = tuple((task, *lengths.items()) for task, lengths in row.found.items())
        ruler = row.ruler.means if row.ruler else ()
        same = (scores, hits, ruler) if row.arm in BASELINES else row.run
        merged.setdefault((row.arm, row.data, same), []).append(row)
    different = Counter(key[:2] for key in merged)
    for key, group in merged.items():
        group[0].runs = {row.run for row in group}
        if len(group) > 1 and different[key[:2]] == 1:  # else two rows would have one name
            group[0].model = group[0].model.removeprefix(f"{group[0].run} · ")
    return [group[0] for group in merged.values()]


def judgements(rows: Sequence[Row]) -> list[Judgement]:
    """Judge every extended model on its first text."""
    judged: dict[tuple[str, str], Judgement] = {}
    for row in rows:
        if row.judged and (row.run, row.arm) not in judged:
            bases = [r for r in rows if r.arm == row.base and r.data == row.data]
            own = [r for r in bases if row.run in r.runs]
            only = bases if len(bases) == 1 else []  # another run's, if this run did not measure the base
            judged[row.run, row.arm] = _judge(row, next(iter(own or only), None))
    return list(judged.values())


def _judge(row: Row, base: Row | None) -> Judgement:
    """Judge a model against its base (or itself) in original-length windows."""
    control = base or row
    original = row.original or control.original or min(control.sliding, default=0)
    window = max((w for w in control.sliding if w <= original), default=0)
    theirs = control.readings(window)
    name = "the model itself" if base is None else f"the base ({base.label})"
    control_name = f"{name} in windows of its original {window or row.original or 0:,} tokens"
    excess = {}
    lengths = {*row.sliding, *(n for lengths in row.found.values() for n in lengths)}
    for begin, end in pairwise([1, *sorted(lengths.intersection(row.edges()))]):
        if change := difference(row.whole, theirs, begin, end):
            excess[end] = change
    inside: tuple[int, int, int] | None = None  # the base's passkeys at its longest length up to the window
    if base and (shorter := {n: hits for n, hits in base.found.get("passkey", {}).items() if n <= window}):
        inside = (max(shorter), *shorter[max(shorter)])
    change = difference(row.readings(window), theirs) if base else None
    accuracy = difference(row.readings(window), theirs, sums="hits") if base else None
    return Judgement(
        row,
        _buckets(row, theirs if base else []),
        Cost(change, accuracy) if change and accuracy else None,
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


@dataclass(frozen=True)
class OtherText:
    """One measure on one kind of other text, inside the original window."""

    arm: str
    kind: str
    measure: str  # "loss (nats)" or "accuracy (%)"
    own: float
    base: float | None  # on the same segments
    change: Interval | None  # its ends are NaN with too few segments
    segments: int
    tokens: int  # of each segment


def other_texts(folder: Folder) -> list[OtherText]:
    """Compare extended models with their bases on shared segments of other text."""
    read: dict[str, dict[str, dict[int, ReadingRecord]]] = {}  # by arm, kind and first token
    for r in folder.records:
        if isinstance(r, ReadingRecord) and r.data == OTHER_TEXT:
            read.setdefault(r.arm, {}).setdefault(r.document, {})[r.begin] = r
    bases = {arm: folder.base_of(arm) for arm in read}
    extended = [arm for arm, base in bases.items() if base or (folder.models and arm not in bases.values())]
    found = []
    for arm, kind in [(name, kind) for name in extended for kind in read[name]]:
        own, theirs = read[arm][kind], read.get(bases[arm], {}).get(kind, {}) if bases[arm] else read[arm][kind]
        shared = sorted(own.keys() & theirs.keys())
        ours, base = [own[begin] for begin in shared], [theirs[begin] for begin in shared]
        for measure, sums, unit in _OTHER_TEXT_MEASURES if difference(ours, base) else ():
            means = loss(ours, sums=sums).mean * unit, loss(base, sums=sums).mean * unit
            change = difference(ours, base, sums=sums, by_segment=True)
            assert change is not None
            change = change.times(unit)
            if len(shared) < FEWEST_SEGMENTS:
                change = Interval(change.mean, math.nan, math.nan)
            if bases[arm]:
                found.append(OtherText(arm, kind, measure, *means, change, len(shared), ours[0].window))
            else:
                found.append(OtherText(arm, kind, measure, means[0], None, None, len(shared), ours[0].window))
    return found


def other_text_warning(folder: Folder) -> str:
    """Return a warning of high loss on other text, or empty."""
    losses = [text for text in other_texts(folder) if text.measure == _OTHER_TEXT_MEASURES[0][0]]
    high: dict[str, list[str]] = {}
    for text in losses:
        if text.change and text.change.mean > COST_LIMIT:
            high.setdefault(text.arm, []).append(f"{text.change.mean:.3f} on {text.kind}")
    named = len({text.arm for text in losses}) > 1
    return " ".join(
        f"{f'{arm_name(arm)}: ' if named else ''}Inside the original window the loss rises by {' and '.join(rises)} (nats "
        f"per token), more than {COST_LIMIT}: the model reads such text worse than its base. {_LESS_COST}."
        for arm, rises in high.items()
    )


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
        arm = next(record.arm for records in steps.values() for record in records.values())
        begin = folder.length("original", arm) or 0 if mode == "segment" else 0
        complete = max(len(records) for records in steps.values())
        curves[mode, window] = {
            step: loss(list(records.values()), begin).exp()
            for step, records in sorted(steps.items())
            if len(records) == complete
        }
    return curves
