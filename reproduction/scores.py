"""The records of an exhibit's arms, over texts and seeds."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from reproduction.measured import KINDS, PROMPTS, SEGMENTS, SLIDING, STEPS, Place, asked_records, documents_of, size_of
from reproduction.runs import ArmRun
from skipwise.results.records import ReadingRecord, Record, TrialRecord
from skipwise.results.statistics import Interval, Sums, difference, found, loss, perplexity_of

Arm = tuple[ArmRun, dict[Place, list[Record]]]  # a run and its records


@dataclass
class Scores:
    """What one row of a table scored under one setting.

    Attributes:
        nll: mean negative log-likelihood in nats, by text and window, one value a seed.
        reading: stride and number of documents of the sliding windows, by text and window.
        hits: numbers found and asked for, by retrieval task and prompt length, one pair a seed.
        answers: by retrieval task and prompt length, whether each prompt was answered rightly, by its number; one a seed.
        segments: by text and segment length, the readings of each seed.
        steps: mean negative log-likelihood by training step, one value a seed and text.
        seeds: by kind of measurement.
    """

    nll: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    reading: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    hits: dict[str, dict[int, list[tuple[int, int]]]] = field(default_factory=dict)
    answers: dict[tuple[str, int], list[dict[int, bool]]] = field(default_factory=dict)
    segments: dict[tuple[str, int], list[list[ReadingRecord]]] = field(default_factory=dict)
    steps: dict[int, list[float]] = field(default_factory=dict)
    seeds: dict[str, list[int]] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether there is any score."""
        return bool(self.nll or self.hits or self.segments or self.steps)

    def perplexity(self, text: str, window: int) -> tuple[float, float] | None:
        """Mean over seeds (of the log, so a geometric mean) and sample standard deviation; None if not measured."""
        values = self.nll.get((text, window))
        if not values:
            return None
        mean = perplexity_of(statistics.fmean(values))
        return mean, mean * statistics.stdev(values) if len(values) > 1 else 0.0

    @property
    def passkeys(self) -> dict[int, list[tuple[int, int]]]:
        """Passkeys found and asked for, by prompt length, one pair a seed."""
        return self.hits.get("passkey", {})

    def share_found(self, length: int) -> float:
        """The share of passkeys found at a prompt length that was asked, over all seeds."""
        hits, asked = zip(*self.passkeys[length], strict=True)
        return sum(hits) / sum(asked)

    def texts(self, length: int) -> list[str]:
        """The texts whose segments of ``length`` tokens were read."""
        return [text for text, segment in self.segments if segment == length]

    def by_position(self, text: str, length: int, begin: int, end: int, sums: Sums = "nll") -> Interval | None:
        """Mean of the loss, or of the hits, at positions ``begin .. end - 1``, with its 95% interval over documents."""
        seeds = self.segments.get((text, length))
        return loss(_mean_of(seeds), begin, end, sums) if seeds else None

    def difference(
        self, other: "Scores", text: str, length: int, begin: int, end: int, sums: Sums = "nll"
    ) -> Interval | None:
        """Ours minus the other's at positions ``begin .. end - 1`` of the same segments, seeds averaged, with the 95%
        interval over documents; None where the segments are not the same."""
        ours, theirs = self.segments.get((text, length)), other.segments.get((text, length))
        if not ours or not theirs or _read(ours[0]) != _read(theirs[0]):
            return None
        return difference(_mean_of(ours), _mean_of(theirs), begin, end, sums)

    def each_difference(self, other: "Scores", text: str, length: int, begin: int, end: int) -> list[float]:
        """The same difference of losses seed by seed, for as many seeds as both have."""
        ours, theirs = self.segments.get((text, length), []), other.segments.get((text, length), [])
        apart = (difference(a, b, begin, end) for a, b in zip(ours, theirs, strict=False))
        return [one.mean for one in apart if one]

    def curves(self) -> dict[str, dict[int, float]]:
        """Perplexity by length: on the first tokens where segments were read, else in sliding windows."""
        curves: dict[str, dict[int, float]] = {}
        for (text, length), seeds in self.segments.items():
            for end in seeds[0][0].edges[1:]:
                mean = self.by_position(text, length, 0, end)
                assert mean is not None
                curves.setdefault(f"{text}, first tokens", {})[end] = perplexity_of(mean.mean)
        return curves or {
            text: {window: score[0] for window, score in self.by_window(text).items()}
            for text in dict.fromkeys(text for text, _ in self.nll)
        }

    def by_window(self, text: str) -> dict[int, tuple[float, float]]:
        """Perplexity and its spread over seeds by sliding window."""
        scores = {window: self.perplexity(text, window) for name, window in sorted(self.nll) if name == text}
        return {window: score for window, score in scores.items() if score}


def _mean_of(seeds: Sequence[Sequence[ReadingRecord]]) -> list[ReadingRecord]:
    """Readings of the same segments with the mean of their sums over seeds."""
    return [
        replace(
            same[0],
            nll=[sum(column) / len(seeds) for column in zip(*(r.nll for r in same), strict=True)],
            hits=[sum(column) / len(seeds) for column in zip(*(r.hits for r in same), strict=True)],
        )
        for same in zip(*seeds, strict=True)
    ]


def _read(readings: Sequence[ReadingRecord]) -> list[tuple[str, int]]:
    return [(reading.document, reading.begin) for reading in readings]


def collect(runs: Sequence[ArmRun], out: Path) -> tuple[dict[str, dict[str, Scores]], dict[str, list[ArmRun]]]:
    """Return the scores by setting and row, and by setting the runs that were measured on less than others.

    What a kill cut off, or what a later command measured on more text, would stand beside cells that were measured
    otherwise. So a cell counts if it has as many records as the largest of its column, a seed counts if it has all cells
    of its row, and of each kind of measurement only the seeds count that all trained rows have.
    """
    table: dict[str, dict[str, Scores]] = {}
    partial: dict[str, list[ArmRun]] = {}
    for run in runs:
        table.setdefault(run.setting, {}).setdefault(run.variant, Scores())
    for setting, rows in table.items():
        there = [(run, asked_records(run, out)) for run in runs if run.setting == setting]
        left_out = partial.setdefault(setting, [])
        for kind in KINDS:
            ours = [(run, {p: r for p, r in records.items() if p[0] == kind}) for run, records in there]
            whole = _whole([one for one in ours if one[1]])
            names = [id(run) for run, _ in whole]
            left_out += [run for run, records in ours if records and id(run) not in names and run not in left_out]
            for run, cells in _alike(whole):
                for place, records in cells.items():
                    _add(rows[run.variant], place, records)
                rows[run.variant].seeds.setdefault(kind, []).append(run.recipe.seed)
    return table, partial


def _whole(measured: Sequence[Arm]) -> list[Arm]:
    """Keep the cells that are as large as the largest of their column, and the runs that have all cells of their row."""
    largest: dict[Place, tuple[int, int]] = {}
    for _, cells in measured:
        largest |= {place: max(size_of(cells[place]), largest.get(place, (0, 0))) for place in cells}
    kept = [(run, {p: r for p, r in cells.items() if size_of(r) == largest[p]}) for run, cells in measured]
    rows: dict[str, set[Place]] = {}
    for run, cells in kept:
        rows.setdefault(run.variant, set()).update(cells)
    return [(run, cells) for run, cells in kept if cells and set(cells) == rows[run.variant]]


def _alike(there: list[Arm]) -> list[Arm]:
    """Keep the seeds that all trained rows have; all of them if they have none in common."""
    seeds: dict[str, set[int]] = {}
    for run, _ in there:
        if run.trained:
            seeds.setdefault(run.variant, set()).add(run.recipe.seed)
    shared = set.intersection(*seeds.values()) if seeds else set()
    return [one for one in there if not one[0].trained or not shared or one[0].recipe.seed in shared]


def _add(scores: Scores, place: Place, records: list[Record]) -> None:
    """Put the records of one place and seed into a row."""
    kind, text, length = place
    readings = [record for record in records if isinstance(record, ReadingRecord)]
    tokens = sum(reading.tokens for reading in readings)
    if kind == SLIDING:
        scores.nll.setdefault((text, length), []).append(sum(sum(r.nll) for r in readings) / tokens)
        scores.reading[text, length] = readings[0].stride, sum(map(documents_of, readings))
    elif kind == SEGMENTS:
        scores.segments.setdefault((text, length), []).append(readings)
    elif kind == STEPS:
        scores.steps.setdefault(length, []).append(sum(sum(r.nll) for r in readings) / tokens)
    elif kind == PROMPTS:
        trials = [record for record in records if isinstance(record, TrialRecord)]
        scores.hits.setdefault(text, {}).setdefault(length, []).append(found(trials))
        scores.answers.setdefault((text, length), []).append({trial.trial: trial.hit for trial in trials})
