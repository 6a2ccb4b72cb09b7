"""The effective length: the longest length that passes, and three answers where a length does not."""

import math

import pytest

from skipwise.results.effective_length import EXCESS, EffectiveLength, effective_length
from skipwise.results.statistics import Interval

GOOD, BAD, UNSURE = Interval(0.0, -0.01, 0.01), Interval(0.2, 0.1, 0.3), Interval(0.03, 0.0, 0.1)
ONE_DOCUMENT = Interval(0.0, -math.inf, math.inf)
NOT_A_NUMBER = Interval(math.nan, math.nan, math.nan)
ALL, MOST, HALF = (100, 100), (97, 100), (50, 100)


@pytest.mark.parametrize(
    ("found", "excess", "tokens", "unknown"),
    [
        ({256: ALL, 512: MOST}, {256: GOOD, 512: GOOD}, 512, False),
        ({256: ALL, 512: HALF, 1024: ALL}, {256: GOOD, 512: GOOD, 1024: GOOD}, 256, False),
        ({256: ALL, 512: ALL}, {256: GOOD, 512: BAD}, 256, False),
        ({256: HALF}, {256: UNSURE}, 0, False),
        ({256: (9, 10)}, {256: GOOD}, 0, True),
        ({256: ALL}, {256: UNSURE}, 0, True),
        ({256: ALL}, {256: ONE_DOCUMENT}, 0, True),
        ({256: ALL}, {256: NOT_A_NUMBER}, 0, False),
        ({256: ALL, 512: ALL}, {256: GOOD}, 256, True),
        ({256: ALL}, {256: GOOD, 512: GOOD}, 256, True),
        ({}, {256: GOOD}, 0, True),
        ({256: ALL}, {}, 0, True),
        # The far end of the interval decides: of 100 passkeys 96 are enough, whose low end is 90.2%; of 95 it is 88.8%.
        ({8: (96, 100)}, {8: GOOD}, 8, False),
        ({8: (95, 100)}, {8: GOOD}, 0, True),
        ({8: ALL}, {8: Interval(0.0, -1.0, EXCESS)}, 8, False),
        ({8: ALL}, {8: Interval(0.0, -1.0, EXCESS + 1e-6)}, 0, True),
    ],
)
def test_the_longest_length_at_which_this_and_all_shorter_pass(found, excess, tokens, unknown) -> None:
    reads = effective_length(found, excess, "its base")
    assert (reads.tokens, reads.unknown) == (tokens, unknown)
    assert bool(reads.next) is (unknown or tokens < max(found))


@pytest.mark.parametrize(
    ("own", "hits", "tokens", "unknown"),
    [
        ((8, 97, 100), 50, 0, False),
        ((8, 85, 100), 85, 0, True),  # 85 of 100 may be 90%
        ((8, 50, 100), 50, 0, True),
        ((8, 50, 100), 56, 16, False),
        ((8, 50, 100), 30, 0, False),
        ((8, 0, 100), 99, 0, True),  # any model would pass
    ],
)
def test_where_the_base_fails_in_its_own_window_it_is_the_measure(own, hits, tokens, unknown) -> None:
    """Nine tenths of what it finds are needed, by the far end of the interval as ever: 56 of 100 are at least 46%."""
    reads = effective_length({8: (hits, 100), 16: (hits, 100)}, {8: GOOD, 16: GOOD}, "its base", own)
    assert (reads.tokens, reads.unknown) == (tokens, unknown)


@pytest.mark.parametrize(
    ("tokens", "next", "unknown", "told"),
    [
        (1024, "", False, True),
        (512, "It fails.", False, True),
        (512, "?", True, True),
        (256, "It fails.", False, False),
        (0, "?", True, False),
    ],
)
def test_the_headline_names_a_length_only_beyond_the_original(tokens, next, unknown, told) -> None:
    headline = EffectiveLength(tokens, "", next, unknown).headline(256, 1024)
    assert (headline.startswith("Reads") and f"{tokens:,} tokens" in headline) is told
