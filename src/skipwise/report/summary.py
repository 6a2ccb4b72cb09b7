"""Records -> what they say of each model: perplexity, retrieval, worth of far text, cost, effective length.

A folder of ``skipwise extend`` holds the arms of one run, a folder of ``skipwise evaluate`` several models. Both become
rows: one model on one text.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from skipwise.recipes.names import ARM_NAMES, BASELINES, arm_name
from skipwise.report.folder import Folder
from skipwise.report.table import format_points
from skipwise.results.effective_length import EffectiveLength, effective_length
from skipwise.results.records import BenchmarkRecord, ReadingRecord, RulerRecord, TrialRecord
from skipwise.results.scores import RulerLength, RulerScores, paired, ruler_length, scores_of
from skipwise.results.statistics import Interval, difference, found, loss, perplexity

COST_LIMIT = 0.03  # nats: 3% in perplexity


@dataclass
class Row:
    """What one model scored on one text; lengths are in tokens."""

    run: str  # name of the folder; empty where only one is shown
    arm: str  # label of the model in the records
    data: str  # name of the text
    model: str  # name of the model, as tables show it
    text: str  # name of the text, as tables show it; empty where the model read one only
    base: str  # arm that it is compared with; empty for none
    judged: bool  # whether it was extended, and its effective length is asked for
    original: int | None
    target: int | None
    sliding: dict[int, dict[str, ReadingRecord]] = field(default_factory=dict)  # by window and document
    trials: dict[str, dict[int, dict[int, TrialRecord]]] = field(default_factory=dict)  # by task, length and number
    ruler: RulerScores | None = None
    runs: set[str] = field(default_factory=set)  # names of all folders with the same baseline, for which it stands

    @property
    def label(self) -> str:
        """What tables call the row: the model, and the text where it read several. Prompts are on no text."""
        return f"{self.model} ({self.text})" if self.text else self.model

    def readings(self, window: int) -> list[ReadingRecord]:
        """Readings at a window by document name, so that the order of measuring changes no figure."""
        read = self.sliding.get(window, {})
        return [read[name] for name in sorted(read)]

    @cached_property
    def perplexity(self) -> dict[int, Interval]:
        """Perplexity by sliding window, with its 95% interval over documents."""
        return {window: perplexity(self.readings(window)) for window in sorted(self.sliding)}

    @cached_property
    def found(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Prompts answered rightly, and asked, by task and length."""
        return {
            task: {n: found(trials.values()) for n, trials in sorted(lengths.items())}
            for task, lengths in self.trials.items()
        }

    @property
    def whole(self) -> list[ReadingRecord]:
        """Readings in the longest window: their positions below it have all of the document before them."""
        return self.readings(max(self.sliding)) if self.sliding else []

    def edges(self) -> list[int]:
        """Bucket edges of ``whole`` that lie inside the longest window and that all documents have."""
        whole = self.whole
        shared = set.intersection(*(set(r.edges) for r in whole)) if whole else set()
        return sorted(edge for edge in shared if edge <= whole[0].window)

    def truncated(self) -> dict[int, Interval]:
        """Perplexity of the first tokens, by how many."""
        return {edge: perplexity(self.whole, edge) for edge in self.edges()[1:]}


@dataclass(frozen=True)
class Bucket:
    """Tokens at positions ``begin .. end - 1``; losses are in nats a token."""

    begin: int
    end: int
    loss: Interval  # of each token read with all of its document before it
    gain: Interval | None  # loss in windows of the original length, less ``loss``: what far text is worth
    excess: Interval | None  # ``loss`` less the base's in windows of the original length


@dataclass(frozen=True)
class Cost:
    """What the extension cost inside the original window, on the same tokens: the model less its base."""

    loss: Interval  # nats a token
    accuracy: Interval  # of the next token, a share

    def sentence(self, base: str) -> str:
        """The cost in one sentence."""
        points = self.accuracy.times(100)
        span = f"{points.low:+.2f}, {points.high:+.2f}" if math.isfinite(points.high) else "one document"
        return (
            f"Inside the original window the loss changed by {self.loss} nats a token against {base} "
            f"({100 * math.expm1(self.loss.mean):+.1f}% perplexity), and next-token accuracy by {points.mean:+.2f} "
            f"[{span}] points."
        )

    @property
    def warning(self) -> str:
        """What to say if the cost is high; else empty."""
        if self.loss.mean <= COST_LIMIT:
            return ""
        return (
            f"The extension costs {self.loss.mean:.3f} nats a token inside the original window, more than "
            f"{COST_LIMIT}: it reads short texts worse than its base. Let the base teach more, train on such text too, or "
            "take another interpolation."
        )


@dataclass(frozen=True)
class Judgement:
    """How far one model reads, and what that cost."""

    row: Row
    buckets: list[Bucket]
    cost: Cost | None
    effective: EffectiveLength
    base: str
    ruler: RulerLength | None = None  # None where RULER was not asked inside the original window
    # The longest length at which both were asked RULER's prompts, and there the own score less the base's.
    ruler_difference: tuple[int, Interval] | None = None

    @property
    def headline(self) -> str:
        """How far it reads, in one sentence."""
        return self.effective.headline(self.row.original, self.row.target)

    @property
    def ruler_sentence(self) -> str:
        """How far the model reads by RULER's rule, in words; empty where that is not known."""
        return " ".join(filter(None, [self.ruler.text if self.ruler else "", self._against_base]))

    @property
    def _against_base(self) -> str:
        if self.ruler_difference is None:
            return ""
        length, change = self.ruler_difference
        return f"On the same prompts of {length:,} tokens it scores {format_points(change)} points against {self.base}."

    @property
    def cost_sentence(self) -> str:
        """What the extension cost, in one sentence; empty where nothing was read."""
        if not self.row.sliding:
            return ""
        if self.cost is None:
            return "What the extension cost is not known, because no base was read with it."
        return self.cost.sentence(self.base)


def rows_of(folders: Sequence[Folder]) -> list[Row]:
    """Arrange the records of one or more folders, a row for each model and text; baselines come first.

    A number that was measured again replaces the older one. A baseline that scored the same in several runs is one row.
    """
    rows: dict[tuple[str, str, str], Row] = {}
    short = _short_names({r.data for folder in folders for r in folder.records if isinstance(r, ReadingRecord)})
    for folder in folders:
        run = folder.name if len(folders) > 1 else ""
        readings = [
            r for r in folder.records if isinstance(r, ReadingRecord) and r.mode == "sliding" and r.step is None
        ]
        texts = {r.data for r in readings}
        for r in readings:
            key = (folder.name, r.arm, r.data)
            row = rows.setdefault(key, _row(folder, run, r.arm, r.data, short[r.data] if len(texts) > 1 else ""))
            row.sliding.setdefault(r.window, {})[r.document] = r
        for t in (r for r in folder.records if isinstance(r, TrialRecord)):
            first = next((row for key, row in rows.items() if key[:2] == (folder.name, t.arm)), None)
            row = first or rows.setdefault((folder.name, t.arm, ""), _row(folder, run, t.arm))
            row.trials.setdefault(t.task, {}).setdefault(t.length, {})[t.trial] = t
        for scores in scores_of(r for r in folder.records if isinstance(r, RulerRecord)):
            first = next((row for key, row in rows.items() if key[:2] == (folder.name, scores.arm)), None)
            row = first or rows.setdefault((folder.name, scores.arm, ""), _row(folder, run, scores.arm))
            row.ruler = scores
    for row in rows.values():
        row.trials = {task: dict(sorted(row.trials[task].items())) for task in row.trials}
    order = {folder.name: i for i, folder in enumerate(folders)}
    rank = {arm: i for i, arm in enumerate(ARM_NAMES)}

    def place(row: Row) -> tuple[bool, int, int]:
        return row.arm not in BASELINES, order.get(row.run, 0), rank.get(row.arm, len(rank))

    return _merged_baselines(sorted(rows.values(), key=place))


def _row(folder: Folder, run: str, arm: str, data: str = "", text: str = "") -> Row:
    about = folder.model(arm)
    judged = not about.get("control", False) if about else arm not in BASELINES
    model = f"{run} · {arm_name(arm)}" if run else arm_name(arm)
    lengths = folder.length("original", arm), folder.length("target", arm)
    return Row(run, arm, data, model, text, folder.base_of(arm), judged, *lengths)


def _short_names(texts: set[str]) -> dict[str, str]:
    """The last part of each text's path, or all of it where two end alike."""
    last = {text: text.rstrip("/").rpartition("/")[2] or text for text in texts}
    return {text: name if list(last.values()).count(name) == 1 else text for text, name in last.items()}


def standing_out(rows: Sequence[Row]) -> frozenset[int]:
    """The numbers of the extended models, which stand out among baselines."""
    return frozenset(i for i, row in enumerate(rows) if row.judged and not all(r.judged for r in rows))


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
    """Judge every extended model, each on its first text."""
    judged: dict[tuple[str, str], Judgement] = {}
    for row in rows:
        if row.judged and (row.run, row.arm) not in judged:
            bases = [r for r in rows if r.arm == row.base and r.data == row.data]
            own = [r for r in bases if row.run in r.runs]
            only = bases if len(bases) == 1 else []  # of another run, where this one did not measure its own
            judged[row.run, row.arm] = judge(row, next(iter(own or only), None))
    return list(judged.values())


def judge(row: Row, base: Row | None) -> Judgement:
    """Judge how far a model reads by its records and its base's.

    The base reads in windows of its original length. Without a base the model itself, read so, is the control.
    """
    control = base or row
    window = _control_window(row, control)
    theirs = control.readings(window)
    own = "the model itself" if base is None else f"the base ({base.label})"
    words = f"{own} in windows of its original {window or row.original or 0:,} tokens"
    excess = {}
    lengths = {*row.sliding, *(n for lengths in row.found.values() for n in lengths)}
    for begin, end in pairwise([1, *sorted(lengths.intersection(row.edges()))]):
        if change := difference(row.whole, theirs, begin, end):
            excess[end] = change
    return Judgement(
        row,
        _buckets(row, theirs if base else []),
        _cost(row.readings(window), theirs) if base else None,
        effective_length(row.found.get("passkey", {}), excess, words, _passkeys_of(base, window) if base else None),
        base.label if base else "",
        ruler_length(row.ruler, base.ruler if base else None, row.original) if row.ruler else None,
        paired(row.ruler, base.ruler) if row.ruler and base and base.ruler else None,
    )


def _passkeys_of(base: Row, window: int) -> tuple[int, int, int] | None:
    """Those of a base inside its own window: the longest tested length, found, asked for."""
    inside = {length: hits for length, hits in base.found.get("passkey", {}).items() if length <= window}
    return (max(inside), *inside[max(inside)]) if inside else None


def _control_window(row: Row, control: Row) -> int:
    """The window in which the control is read: the original length, or what comes nearest below it."""
    original = row.original or control.original or min(control.sliding, default=0)
    return max((w for w in control.sliding if w <= original), default=0)


def _buckets(row: Row, theirs: Sequence[ReadingRecord]) -> list[Bucket]:
    """Loss by position: a quarter of the original length, then twice as long each."""
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


def _cost(ours: Sequence[ReadingRecord], theirs: Sequence[ReadingRecord]) -> Cost | None:
    change, accuracy = difference(ours, theirs), difference(ours, theirs, sums="hits")
    if change is None or accuracy is None:
        return None
    return Cost(change, accuracy)


def benchmarks_of(folders: Iterable[Folder]) -> list[BenchmarkRecord]:
    """The benchmark records of all folders; of one task that with most questions, and of those the last."""
    kept: dict[tuple[str, str, int, str], BenchmarkRecord] = {}
    for record in (r for folder in folders for r in folder.records if isinstance(r, BenchmarkRecord)):
        same = record.arm, record.task, record.fewshot, record.metric
        if same not in kept or record.samples >= kept[same].samples:
            kept[same] = record
    return list(kept.values())
