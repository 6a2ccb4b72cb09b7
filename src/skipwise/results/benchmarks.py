"""The six benchmarks of PoSE's paper: which they are, and their table of models (the paper's Table 3)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from skipwise.results.records import BenchmarkRecord


class PaperTask(NamedTuple):
    """How the paper asks one benchmark."""

    title: str  # as the paper's table names it
    fewshot: int  # examples before each question
    metric: str  # the one that the paper reports


# By the harness's names, in the order of the paper's table.
PAPER = {
    "boolq": PaperTask("BoolQ", 0, "acc"),
    "piqa": PaperTask("PIQA", 0, "acc"),
    "winogrande": PaperTask("WinoGrande", 0, "acc"),
    "truthfulqa_mc2": PaperTask("TruthfulQA", 0, "acc"),
    "arc_challenge": PaperTask("ARC-C", 25, "acc_norm"),
    "hellaswag": PaperTask("HellaSwag", 10, "acc_norm"),
}


@dataclass(frozen=True)
class Score:
    """A value with its standard error, both in per cent; the error is None where a part of it is not known."""

    value: float
    error: float | None

    def less(self, other: "Score") -> "Score":
        """This score less another, with the standard error of two scores on questions that have nothing in common.

        Two models answer the same questions, and mostly the same ones rightly, so the true error is smaller.
        """
        return Score(self.value - other.value, _root_of_squares([self.error, other.error]))


def is_of_paper(record: BenchmarkRecord) -> bool:
    """Whether a record is of one of the paper's benchmarks, asked as the paper asks it."""
    task = PAPER.get(record.task)
    return task is not None and (record.fewshot, record.metric) == (task.fewshot, task.metric)


def paper_scores(records: Iterable[BenchmarkRecord]) -> dict[str, dict[str, Score]]:
    """By model and the paper's tasks what it scored; models in the order of their records."""
    scores: dict[str, dict[str, Score]] = {}
    for r in filter(is_of_paper, records):
        error = None if r.standard_error is None else 100 * r.standard_error
        scores.setdefault(r.arm, {})[r.task] = Score(100 * r.value, error)
    return scores


def average(scores: Mapping[str, Score]) -> Score | None:
    """The mean over the six tasks, which share no question; None where one of them was not run."""
    if any(task not in scores for task in PAPER):
        return None
    asked = [scores[task] for task in PAPER]
    error = _root_of_squares([score.error for score in asked])
    return Score(sum(score.value for score in asked) / len(asked), None if error is None else error / len(asked))


def _root_of_squares(errors: Iterable[float | None]) -> float | None:
    squares = [None if error is None else error * error for error in errors]
    known = [square for square in squares if square is not None]
    return math.sqrt(math.fsum(known)) if len(known) == len(squares) else None
