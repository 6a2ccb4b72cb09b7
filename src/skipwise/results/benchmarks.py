"""The six benchmarks of PoSE's paper: which they are, and their table of models (the paper's Table 3)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

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
    """A value with its standard error, both in per cent; the error is None where a part of it is not known.

    ``paired`` says of a difference whether its error is that of the differences of single questions, which both models
    answered; else it is that of two models that answered different questions.
    """

    value: float
    error: float | None
    paired: bool | None = None  # None: it is no difference


def is_of_paper(record: BenchmarkRecord) -> bool:
    """Whether a record is of one of the paper's benchmarks, asked as the paper asks it."""
    task = PAPER.get(record.task)
    return task is not None and (record.fewshot, record.metric) == (task.fewshot, task.metric)


def paper_records(records: Iterable[BenchmarkRecord]) -> dict[str, dict[str, BenchmarkRecord]]:
    """The records of the paper's tasks, by model and task; models in the order of their records."""
    found: dict[str, dict[str, BenchmarkRecord]] = {}
    for r in filter(is_of_paper, records):
        found.setdefault(r.arm, {})[r.task] = r
    return found


def score(record: BenchmarkRecord) -> Score:
    """What a record says, in per cent."""
    return Score(100 * record.value, None if record.standard_error is None else 100 * record.standard_error)


def difference(own: BenchmarkRecord, base: BenchmarkRecord) -> Score:
    """What one model scored more than another, in per cent.

    Where both records hold the scores of the same questions, the standard error is that of the mean of the differences,
    question by question. Two models mostly answer the same ones rightly, so it is smaller than that of two models that
    answered different questions, which is given otherwise.
    """
    value = 100 * (own.value - base.value)
    if own.questions and own.questions == base.questions and len(own.scores) == len(base.scores) > 1:
        differences = np.subtract([*map(float, own.scores)], [*map(float, base.scores)])
        return Score(value, float(100 * differences.std(ddof=1) / math.sqrt(len(differences))), paired=True)
    return Score(value, _root_of_squares([score(own).error, score(base).error]), paired=False)


def average(scores: Mapping[str, Score]) -> Score | None:
    """The mean over the six tasks, which share no question; None where one of them was not run."""
    if any(task not in scores for task in PAPER):
        return None
    asked = [scores[task] for task in PAPER]
    error = _root_of_squares([one.error for one in asked])
    paired = None if asked[0].paired is None else all(one.paired for one in asked)
    return Score(sum(one.value for one in asked) / len(asked), None if error is None else error / len(asked), paired)


def _root_of_squares(errors: Iterable[float | None]) -> float | None:
    squares = [None if error is None else error * error for error in errors]
    known = [square for square in squares if square is not None]
    return math.sqrt(math.fsum(known)) if len(known) == len(squares) else None
