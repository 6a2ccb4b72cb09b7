"""Scores of RULER and of benchmarks: averages, limits, and paired differences."""

import math
from dataclasses import replace

import pytest

from skipwise.results.records import BenchmarkRecord, RulerRecord
from skipwise.results.scores import EXCESS, difference, effective_length, prompts_to_settle, ruler_length, scores_of
from skipwise.results.statistics import Interval, wilson_interval


def answered(arm: str, task: str, length: int, *scores: float, real: bool = True) -> list[RulerRecord]:
    return [
        RulerRecord(arm, task, length, 0, trial, real, "float32", "d", score=score)
        for trial, score in enumerate(scores)
    ]


def model(arm: str, *averages: float, tasks: tuple[str, ...] = ("vt", "cwe")) -> list[RulerRecord]:
    """Averages at 1k, 2k, 4k, ...: of two tasks, one of them 10 points above and one below."""
    records = []
    for number, mean in enumerate(averages):
        for task, apart in zip(tasks, (0.1, -0.1), strict=True):
            records += answered(arm, task, 1024 * 2**number, *[mean + apart] * 4)
    return records


def test_scores_are_means_of_prompts_and_averages_are_means_of_tasks() -> None:
    [scores] = scores_of([*answered("m", "vt", 512, 1.0, 0.5), *answered("m", "cwe", 512, 0.0, 0.1, real=False)])
    single = scores.average(512, ["vt"])
    assert (single.mean, single.low, single.high) == (0.75, *wilson_interval(1.5, 2))
    assert scores.average(1024, ["vt"]) is scores.average(512, ["fwe"]) is None
    average = scores.average(512, ["vt", "cwe"])
    assert average.mean == pytest.approx(0.4)
    assert (average.low, average.high) == pytest.approx(wilson_interval(1.6, 4))
    assert scores.average(512, ["vt", "cwe", "fwe"]) == average  # of those that were asked
    assert scores.real == {"vt": True, "cwe": False}


@pytest.mark.parametrize(
    ("own", "base", "original", "tokens"),
    [
        ((0.95, 0.9, 0.86), (0.9,), 1024, 4096),
        ((0.95, 0.8, 0.9), (0.9,), 1024, 1024),  # up to the first length that falls short
        ((0.5, 0.5, 0.4), (0.5,), 1024, 2048),  # a base below RULER's limit sets its own
        ((0.4, 0.5, 0.5), (0.45,), 1024, 0),
        ((0.0, 0.0), (0.0,), 1024, 0),  # but not one that finds nothing
        ((0.5, 0.6, 0.4), None, 1024, 2048),  # without a base the model itself
        ((0.5, 0.6, 0.4), None, 512, None),  # nothing was asked inside its window
        ((0.5, 0.6, 0.4), None, None, None),
    ],
)
def test_how_far_a_model_reads_by_rulers_rule(own, base, original, tokens) -> None:
    [ours] = scores_of(model("m", *own))
    theirs = scores_of(model("base", *base))[0] if base else None
    found = ruler_length(ours, theirs, original=original)
    assert (found and found.tokens) == tokens


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


@pytest.mark.parametrize(
    ("own", "base"),
    [
        (record("1011"), record("1011", "first four")),
        (record("1011"), record("101")),
        (record("1011"), replace(record("1011"), scores="")),
    ],
)
def test_what_is_not_known_to_be_the_same_questions_is_not_paired(own: BenchmarkRecord, base: BenchmarkRecord) -> None:
    assert difference(own, base).paired is False
    assert math.isnan(difference(replace(own, standard_error=None), base).error)


GOOD, BAD = Interval(0.0, -0.01, 0.01), Interval(0.2, 0.1, 0.3)
ONE_DOCUMENT = Interval(0.0, -math.inf, math.inf)
NOT_A_NUMBER = Interval(math.nan, math.nan, math.nan)
ALL, MOST, HALF = (100, 100), (97, 100), (50, 100)


@pytest.mark.parametrize(
    ("found", "excess", "tokens", "unknown"),
    [
        ({256: ALL, 512: MOST}, {256: GOOD, 512: GOOD}, 512, False),
        ({256: ALL, 512: HALF, 1024: ALL}, {256: GOOD, 512: GOOD, 1024: GOOD}, 256, False),
        ({256: ALL, 512: ALL}, {256: GOOD, 512: BAD}, 256, False),
        ({256: ALL}, {256: NOT_A_NUMBER}, 0, False),
        ({256: ALL, 512: ALL}, {256: GOOD}, 256, True),
        ({256: ALL}, {256: GOOD, 512: GOOD}, 256, True),
        ({256: ALL}, {}, 0, True),
        # The estimate decides, however wide its interval.
        ({8: (9, 10)}, {8: GOOD}, 8, False),
        ({8: (89, 100)}, {8: GOOD}, 0, False),
        ({8: ALL}, {8: ONE_DOCUMENT}, 8, False),
        ({8: ALL}, {8: Interval(EXCESS, -1.0, 1.0)}, 8, False),
        ({8: ALL}, {8: Interval(EXCESS + 1e-6, -1.0, 1.0)}, 0, False),
    ],
)
def test_the_longest_length_at_which_this_and_all_shorter_pass(found, excess, tokens, unknown) -> None:
    reads = effective_length(found, excess, "its base")
    assert (reads.tokens, reads.unknown) == (tokens, unknown)
    assert reads.found == (found[tokens] if tokens else None)
    assert bool(reads.next) is (unknown or tokens < max(found))


@pytest.mark.parametrize(
    ("own", "hits", "tokens", "unknown"),
    [
        ((8, 97, 100), 50, 0, False),
        ((8, 85, 100), 76, 0, False),
        ((8, 85, 100), 77, 16, False),  # nine tenths of 85 are 76.5
        ((8, 0, 100), 99, 0, True),  # any model would pass
    ],
)
def test_where_the_base_fails_in_its_own_window_it_is_the_measure(own, hits, tokens, unknown) -> None:
    reads = effective_length({8: (hits, 100), 16: (hits, 100)}, {8: GOOD, 16: GOOD}, "its base", own)
    assert (reads.tokens, reads.unknown) == (tokens, unknown)


@pytest.mark.parametrize(("hits", "tokens"), [((95, 94), 16), ((95, 50), 8), ((50, 50), 0)])
def test_a_kept_window_has_the_share_before(hits: tuple[int, int], tokens: int) -> None:
    found = {length: (share, 100) for length, share in zip((8, 16), hits, strict=True)}
    reads = effective_length(found, {8: GOOD, 16: GOOD}, "its base", (16, 99, 100))
    headline = reads.headline(16, 16)
    assert [share in headline for share in ("94%", "95%", "99%")] == [tokens == 16, tokens == 8, tokens == 16]


@pytest.mark.parametrize(
    ("hits", "trials", "prompts"), [(50, 50, 0), (40, 50, 0), (4, 4, 35), (48, 50, 99), (45, 50, 10_000)]
)
def test_as_many_prompts_as_settle_a_share(hits: int, trials: int, prompts: int) -> None:
    assert prompts_to_settle(hits, trials, 0.9) == prompts
    assert bool(effective_length({8: (hits, trials)}, {8: GOOD}, "its base").doubt) is (prompts > 0)


def test_one_document_is_in_doubt_and_two_lengths_need_the_larger_number() -> None:
    assert effective_length({8: ALL}, {8: ONE_DOCUMENT}, "its base").doubt
    reads = effective_length({8: (4, 4), 16: (48, 50)}, {8: GOOD, 16: GOOD}, "its base")
    assert "99 prompts" in reads.doubt
