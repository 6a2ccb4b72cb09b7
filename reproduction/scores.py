"""The records of an exhibit's runs, over texts and seeds."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from reproduction.measured import KINDS, PROMPTS, SEGMENTS, SLIDING, STEPS, Place, requested_records, size_of
from reproduction.runs import ArmRun
from skipwise.results.records import ReadingRecord, Record, TrialRecord
from skipwise.results.statistics import Interval, Sums, difference, found, loss, perplexity_of


@dataclass
class Scores:
    """Scores of one row of a table in one block; lists have one value per seed."""

    nll: dict[tuple[str, int], list[float]] = field(default_factory=dict)  # nats, by text and window
    reading: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # stride and documents of these
    hits: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # passkeys found, and prompts, by length
    answers: dict[int, list[dict[int, bool]]] = field(default_factory=dict)  # whether each prompt was answered rightly
    segments: dict[tuple[str, int], list[list[ReadingRecord]]] = field(default_factory=dict)  # by text and length
    steps: dict[int, list[float]] = field(default_factory=dict)  # nats, by training step; a value a seed and text
    seeds: dict[str, list[int]] = field(default_factory=dict)  # by kind of measurement

    @property
    def measured(self) -> bool:
        """Whether there is any score."""
        return bool(self.seeds)

    def perplexity(self, text: str, window: int) -> tuple[float, float] | None:
        """Mean over seeds (of the log, so a geometric mean) and sample standard deviation; None if not measured."""
        values = self.nll.get((text, window))
        if not values:
            return None
        mean = perplexity_of(statistics.fmean(values))
        return mean, mean * statistics.stdev(values) if len(values) > 1 else 0.0

    def by_window(self, text: str) -> dict[int, tuple[float, float]]:
        """Perplexity and its spread over seeds by sliding window."""
        scores = {window: self.perplexity(text, window) for name, window in sorted(self.nll) if name == text}
        return {window: score for window, score in scores.items() if score}

    def share_found(self, length: int) -> float:
        """Return the share of passkeys found at a prompt length, over all seeds."""
        hits, prompts = zip(*self.hits[length], strict=True)
        return sum(hits) / sum(prompts)

    def by_position(self, text: str, length: int, begin: int, end: int, sums: Sums = "nll") -> Interval | None:
        """Return the mean of the loss, or of the hits, at positions ``begin .. end - 1``, with its 95% interval over documents."""
        seeds = self.segments.get((text, length))
        return loss(_mean_of(seeds), begin, end, sums) if seeds else None

    def difference(self, other: "Scores", text: str, length: int, sums: Sums = "nll") -> Interval | None:
        """Return ours minus the other's, seeds averaged, with its 95% interval over documents; None if segments differ."""
        pair = [_mean_of(scores.segments.get((text, length), [])) for scores in (self, other)]
        read = [[(reading.document, reading.begin) for reading in readings] for readings in pair]
        return difference(pair[0], pair[1], 0, length, sums) if read[0] and read[0] == read[1] else None

    def first_tokens(self, text: str) -> dict[int, float]:
        """Perplexity of the first tokens, by their number, from segments."""
        curve: dict[int, float] = {}
        for (name, length), seeds in self.segments.items():
            for end in seeds[0][0].edges[1:] if name == text else ():
                if mean := self.by_position(text, length, 0, end):
                    curve[end] = perplexity_of(mean.mean)
        return curve


def _mean_of(seeds: Sequence[Sequence[ReadingRecord]]) -> list[ReadingRecord]:
    """Return readings of the same segments with the mean of their sums over seeds."""

    def mean(rows: Iterable[Sequence[float]]) -> list[float]:
        return [sum(column) / len(seeds) for column in zip(*rows, strict=True)]

    return [
        replace(same[0], nll=mean(reading.nll for reading in same), hits=mean(reading.hits for reading in same))
        for same in zip(*seeds, strict=True)
    ]


def collect(runs: Sequence[ArmRun], out: Path) -> tuple[dict[str, dict[str, Scores]], dict[str, list[ArmRun]]]:
    """Return the scores by block and row, and by block the runs that were measured on less than others.

    A kill may have cut off records, and a later command may have measured more text. So of each kind of measurement a run
    counts if it has as many records as any in every cell of its row, and only the seeds count that all trained rows have, if
    there are such.
    """
    table: dict[str, dict[str, Scores]] = {}
    partial: dict[str, list[ArmRun]] = {}
    for run in runs:
        table.setdefault(run.block, {}).setdefault(run.row, Scores())
    for block, rows in table.items():
        measured = [(run, requested_records(run, out)) for run in runs if run.block == block]
        largest: dict[Place, tuple[int, int]] = {}
        places: dict[str, set[Place]] = {}
        for run, records in measured:
            places.setdefault(run.row, set()).update(records)
            largest |= {place: max(size_of(records[place]), largest.get(place, (0, 0))) for place in records}
        left_out = partial.setdefault(block, [])
        for kind in KINDS:
            whole = []
            for run, records in measured:
                row = {place for place in places[run.row] if place[0] == kind}
                if row and all(size_of(records.get(place, [])) == largest[place] for place in row):
                    whole.append((run, {place: records[place] for place in row}))
                elif row and records and run not in left_out:
                    left_out.append(run)
            seeds: dict[str, set[int]] = {}
            for run, _ in whole:
                if run.trained:
                    seeds.setdefault(run.row, set()).add(run.recipe.seed)
            shared = set.intersection(*seeds.values()) if seeds else set()
            for run, cells in whole:
                if not run.trained or not shared or run.recipe.seed in shared:
                    for place in sorted(cells):
                        _add(rows[run.row], place, cells[place])
                    rows[run.row].seeds.setdefault(kind, []).append(run.recipe.seed)
    return table, partial


def _add(scores: Scores, place: Place, records: list[Record]) -> None:
    """Put the records of one place and seed into a row."""
    kind, text, length = place
    readings = [record for record in records if isinstance(record, ReadingRecord)]
    tokens = sum(reading.tokens for reading in readings)
    if kind == SLIDING:
        scores.nll.setdefault((text, length), []).append(sum(sum(r.nll) for r in readings) / tokens)
        scores.reading[text, length] = readings[0].stride, len(readings)
    elif kind == SEGMENTS:
        scores.segments.setdefault((text, length), []).append(readings)
    elif kind == STEPS:
        scores.steps.setdefault(length, []).append(sum(sum(r.nll) for r in readings) / tokens)
    elif kind == PROMPTS:
        trials = [record for record in records if isinstance(record, TrialRecord)]
        scores.hits.setdefault(length, []).append(found(trials))
        scores.answers.setdefault(length, []).append({trial.trial: trial.hit for trial in trials})
