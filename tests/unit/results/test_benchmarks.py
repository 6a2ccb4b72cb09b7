"""Differences of two models in a benchmark: paired where both answered the same questions, and only there."""

import math
from dataclasses import replace

import numpy as np
import pytest

from skipwise.results.records import BenchmarkRecord
from skipwise.results.scores import PAPER, average, difference


def record(scores: str | list[float], questions: str = "q", error: float | None = 0.03) -> BenchmarkRecord:
    value = sum(map(float, scores)) / len(scores)
    asked = BenchmarkRecord("m", "boolq", "acc", 0, 2048, None, "float32", "0.4", "d", len(scores), value, error)
    return replace(asked, scores=scores, questions=questions)


def test_the_paired_error_of_right_and_wrong_answers_is_that_of_the_closed_form() -> None:
    """Of n questions one model alone answers b, the other alone c: variance (b + c - (b - c)^2 / n) / (n - 1) (McNemar)."""
    n, both, b, c = 400, 230, 50, 30
    own, base = "1" * (both + b) + "0" * (n - both - b), "1" * both + "0" * b + "1" * c + "0" * (n - both - b - c)
    apart = difference(record(own), record(base))
    assert apart.value == pytest.approx(100 * (b - c) / n)
    assert apart.error == pytest.approx(100 * math.sqrt((b + c - (b - c) ** 2 / n) / (n - 1) / n))
    assert apart.paired
    unpaired = difference(record(own), record(base, "of another version"))
    assert unpaired.error == pytest.approx(100 * math.hypot(0.03, 0.03))
    assert unpaired.paired is False


def test_numbers_are_paired_in_their_order() -> None:
    """Two models whose scores differ by one number everywhere differ by it without an error."""
    scores = np.random.default_rng(0).random(50).tolist()
    apart = difference(record([one + 0.25 for one in scores]), record(scores))
    assert (apart.value, apart.error) == (pytest.approx(25), pytest.approx(0, abs=1e-12))
    turned = difference(record([one + 0.25 for one in scores]), record(scores[::-1]))
    assert turned.error > 1


@pytest.mark.parametrize(
    ("own", "base"),
    [
        (record("10", ""), record("10", "")),  # of version 0.2 or earlier
        (record("1011"), record("1011", "first four")),
        (record("1011"), record("101")),
        (record("1"), record("0")),  # one question has no spread
        (record("1011"), replace(record("1011"), scores="")),
    ],
)
def test_what_is_not_known_to_be_the_same_questions_is_not_paired(own: BenchmarkRecord, base: BenchmarkRecord) -> None:
    assert difference(own, base).paired is False
    assert difference(replace(own, standard_error=None), base).error is None


def test_an_average_is_paired_if_all_of_its_tasks_are() -> None:
    apart = difference(record("1010"), record("1000"))
    assert average(dict.fromkeys(PAPER, apart)).error == pytest.approx(apart.error / math.sqrt(6))
    assert average(dict.fromkeys(PAPER, apart)).paired
    assert average({**dict.fromkeys(PAPER, apart), "piqa": replace(apart, paired=False)}).paired is False
    assert average(dict.fromkeys(PAPER, replace(apart, paired=None))).paired is None
