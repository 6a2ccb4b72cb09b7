"""The records of an exhibit's runs, over texts and seeds."""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from reproduction.runs import ArmRun
from skipwise.evaluation.arms import evaluation_windows, stride_of
from skipwise.results.records import (
    PasskeyRecord,
    PerplexityRecord,
    PositionRecord,
    Record,
    StepRecord,
    read_records,
)
from skipwise.results.statistics import Interval, mean_interval

Sums = Literal["nll", "hits"]


@dataclass
class Scores:
    """What one variant scored under one setting.

    Attributes:
        nll: mean negative log-likelihood in nats, by text and window, one value a seed.
        reading: stride and documents of the sliding windows, by text and window.
        hits: passkeys found and asked for, by prompt length, one pair a seed.
        positions: by text and segment length, one record a seed.
        steps: mean negative log-likelihood by training step, over texts and seeds.
    """

    nll: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    reading: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    hits: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    positions: dict[tuple[str, int], list[PositionRecord]] = field(default_factory=dict)
    steps: dict[int, list[float]] = field(default_factory=dict)

    def perplexity(self, text: str, window: int) -> tuple[float, float] | None:
        """Mean over seeds (of the log, so a geometric mean) and sample standard deviation; None if not measured."""
        values = self.nll.get((text, window))
        if not values:
            return None
        mean = _exp(statistics.fmean(values))
        return mean, mean * statistics.stdev(values) if len(values) > 1 else 0.0

    def found(self, length: int) -> tuple[int, int]:
        """Passkeys found and asked for at a prompt length that was asked, over all seeds."""
        found, asked = zip(*self.hits[length], strict=True)
        return sum(found), sum(asked)

    def texts(self, length: int) -> list[str]:
        """The texts whose segments of ``length`` tokens were read."""
        return [text for text, segment in self.positions if segment == length]

    def by_position(
        self, text: str, length: int, begin: int, end: int, sums: Sums = "nll"
    ) -> Interval | None:
        """Mean of the loss, or of the hits, at positions ``begin .. end - 1``, with its 95% interval over documents."""
        records = self.positions.get((text, length))
        if not records:
            return None
        totals = [_within(record, begin, end, sums) for record in records]
        each = [sum(column) / len(records) for column in zip(*totals, strict=True)]
        return mean_interval(each, [_positions(records[0], begin, end)] * len(each), records[0].documents)

    def difference(
        self, other: "Scores", text: str, length: int, begin: int, end: int, sums: Sums = "nll"
    ) -> Interval | None:
        """Ours minus the other's at positions ``begin .. end - 1`` of the same segments, paired, seeds averaged; the
        interval is over documents."""
        ours, theirs = self.positions.get((text, length)), other.positions.get((text, length))
        if not ours or not theirs or ours[0].documents != theirs[0].documents:
            return None
        mine = [sum(c) / len(ours) for c in zip(*(_within(r, begin, end, sums) for r in ours), strict=True)]
        its = [
            sum(c) / len(theirs) for c in zip(*(_within(r, begin, end, sums) for r in theirs), strict=True)
        ]
        apart = [a - b for a, b in zip(mine, its, strict=True)]
        return mean_interval(apart, [_positions(ours[0], begin, end)] * len(apart), ours[0].documents)

    def each_difference(self, other: "Scores", text: str, length: int, begin: int, end: int) -> list[float]:
        """The same difference of losses seed by seed, as far as both have as many."""
        ours, theirs = self.positions.get((text, length), []), other.positions.get((text, length), [])
        return [
            (sum(_within(a, begin, end, "nll")) - sum(_within(b, begin, end, "nll")))
            / (_positions(a, begin, end) * len(a.documents))
            for a, b in zip(ours, theirs, strict=False)
        ]

    def curves(self) -> dict[str, dict[int, float]]:
        """Perplexity by length: on the first tokens where segments were read, else in sliding windows."""
        found: dict[str, dict[int, float]] = {}
        for (text, length), records in self.positions.items():
            for end in records[0].edges[1:]:
                loss = self.by_position(text, length, 0, end)
                assert loss is not None
                found.setdefault(f"{text}, first tokens", {})[end] = _exp(loss.mean)
        if not found:
            for text, window in self.nll:
                score = self.perplexity(text, window)
                assert score is not None
                found.setdefault(text, {})[window] = score[0]
        return found


def collect(runs: Iterable[ArmRun], out: Path) -> dict[str, dict[str, Scores]]:
    """The scores by setting and variant; what has not been measured yet is not there."""
    table: dict[str, dict[str, Scores]] = {}
    for run in runs:
        scores = table.setdefault(run.setting, {}).setdefault(run.variant, Scores())
        for record in asked_records(run, out).values():
            _add(scores, record)
    return table


def whole_and_partial(runs: Iterable[ArmRun], out: Path) -> tuple[list[ArmRun], list[ArmRun]]:
    """The runs that are measured like the best measured one of their setting, and those that are in part.

    A run that was stopped in the middle, or that a later command measured on more documents than the others, would
    stand beside rows that were measured otherwise. What has no record at all is in neither list.
    """
    found = [(run, sizes) for run in runs if (sizes := _sizes(asked_records(run, out)))]
    most: dict[str, dict[object, tuple[int, ...]]] = {}
    for run, sizes in found:
        block = most.setdefault(run.setting, {})
        for place, size in sizes.items():
            block[place] = max(size, block.get(place, size))
    whole = [run for run, sizes in found if sizes == most[run.setting]]
    return whole, [run for run, sizes in found if sizes != most[run.setting]]


def _sizes(records: Mapping[object, Record]) -> dict[object, tuple[int, ...]]:
    """How much was measured at each place."""
    sizes: dict[object, tuple[int, ...]] = {}
    for place, record in records.items():
        match record:
            case PerplexityRecord():
                sizes[place] = record.documents, record.tokens
            case PositionRecord():
                sizes[place] = (len(record.documents),)
            case _:
                sizes[place] = ()
    return sizes


def _add(scores: Scores, record: Record) -> None:
    match record:
        case PerplexityRecord():
            scores.nll.setdefault((record.data, record.window), []).append(record.nll / record.tokens)
            scores.reading[record.data, record.window] = record.stride, record.documents
        case PositionRecord():
            scores.positions.setdefault((record.data, record.length), []).append(record)
        case StepRecord():
            scores.steps.setdefault(record.step, []).append(record.nll / record.tokens)
        case PasskeyRecord():
            scores.hits.setdefault(record.length, []).append((sum(record.hits), record.trials))


def asked_records(run: ArmRun, out: Path) -> dict[object, Record]:
    """The records that a run's evaluation asks for: one of each kind, text and length, by these.

    An arm is shared by exhibits, and measured again where a later command asks for more documents; a table must not
    mix the two. Of what does not exceed the rule the most is taken: text may have fewer documents than were asked for.
    """
    records = read_records(run.folder(out) / "results.jsonl")
    rule, chosen = run.recipe.evaluation, dict[object, tuple[tuple[int, ...], Record]]()
    texts = rule.source or [run.recipe.data.source]
    target = run.recipe.target or 0
    windows = evaluation_windows(rule, run.original, target)
    limit = rule.tokens_per_document or 2 * windows[-1]

    def take(place: object, size: tuple[int, ...], record: Record) -> None:
        if place not in chosen or size >= chosen[place][0]:
            chosen[place] = (size, record)

    for record in records:
        match record:
            case PerplexityRecord() if record.data in texts and record.window in windows:
                fits = record.documents <= rule.documents and record.tokens < record.documents * limit
                if fits and record.stride == stride_of(rule, run.original, target, record.window):
                    take((record.data, record.window), (record.documents, record.tokens), record)
            case PositionRecord() if record.data in texts and record.length in (rule.segment_lengths or []):
                if len(record.documents) <= rule.segments:
                    take(("segments", record.data, record.length), (len(record.documents),), record)
            case StepRecord() if record.data in texts and record.step in (rule.steps or []):
                take(("step", record.data, record.step), (0,), record)
            case PasskeyRecord() if record.length in (rule.passkey_lengths or windows):
                if (record.trials, record.seed) == (rule.passkey_trials, run.recipe.seed):
                    take(record.length, (0,), record)
            case _:
                continue
    return {place: record for place, (_, record) in chosen.items()}


def _within(record: PositionRecord, begin: int, end: int, sums: Sums) -> list[float]:
    """Of each segment, the sum over the buckets that lie in ``begin .. end - 1``."""
    inside = _buckets(record, begin, end)
    return [float(sum(row[i] for i in inside)) for row in getattr(record, sums)]


def _positions(record: PositionRecord, begin: int, end: int) -> int:
    return sum(record.edges[i + 1] - record.edges[i] for i in _buckets(record, begin, end))


def _buckets(record: PositionRecord, begin: int, end: int) -> list[int]:
    edges = record.edges
    return [i for i in range(len(edges) - 1) if edges[i] >= begin and edges[i + 1] <= end]


def _exp(nats: float) -> float:
    return math.exp(min(nats, 700))
