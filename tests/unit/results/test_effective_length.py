"""The effective length: the longest length that passes, and three answers where a length does not."""

import math
import re

import pytest

from skipwise.results.scores import EXCESS, FOUND, EffectiveLength, effective_length
from skipwise.results.statistics import Interval

GOOD, BAD, UNSURE = Interval(0.0, -0.01, 0.01), Interval(0.2, 0.1, 0.3), Interval(0.03, 0.0, 0.1)
ONE_DOCUMENT = Interval(0.0, -math.inf, math.inf)
NOT_A_NUMBER = Interval(math.nan, math.nan, math.nan)
ALL, MOST, HALF = (100, 100), (97, 100), (50, 100)


@pytest.mark.parametrize(
    ("found", "excess", "tokens", "unknown", "told"),
    [
        ({256: ALL, 512: MOST}, {256: GOOD, 512: GOOD}, 512, False, ""),
        (
            {256: ALL, 512: HALF, 1024: ALL},
            {256: GOOD, 512: GOOD, 1024: GOOD},
            256,
            False,
            "At 512 tokens it fails: 50 of 100",
        ),
        ({256: ALL, 512: ALL}, {256: GOOD, 512: BAD}, 256, False, r"At 512 tokens it fails: loss \+0\.200"),
        ({256: HALF}, {256: BAD}, 0, False, "At 256 tokens it fails: 50 of 100 .*; loss"),
        ({256: HALF}, {256: UNSURE}, 0, False, "At 256 tokens it fails: 50 of 100"),
        ({256: (2, 10)}, {256: GOOD}, 0, False, "At 256 tokens it fails: 2 of 10"),
        ({256: (9, 10)}, {256: GOOD}, 0, True, "too little was measured: 9 of 10 .*60% to 98%.*more prompts"),
        (
            {256: ALL, 512: (20, 20)},
            {256: GOOD, 512: GOOD},
            256,
            True,
            "At 512 tokens too little was measured: 20 of 20",
        ),
        ({256: ALL}, {256: UNSURE}, 0, True, "At 256 tokens too little was measured: loss .*more documents"),
        ({256: ALL}, {256: ONE_DOCUMENT}, 0, True, "too little was measured: loss .*one document"),
        ({512: ALL}, {256: GOOD, 512: GOOD}, 512, False, ""),
        ({256: ALL, 512: ALL}, {256: GOOD}, 256, True, "At 512 tokens too little .*: loss not measured"),
        ({256: ALL}, {256: GOOD, 512: GOOD}, 256, True, "At 512 tokens too little .*: passkeys not measured"),
        ({}, {256: GOOD}, 0, True, "Not measured: passkeys"),
        ({256: ALL}, {}, 0, True, "Not measured: loss by position"),
        ({}, {}, 0, True, "Not measured: passkeys and loss by position"),
        ({256: ALL}, {256: NOT_A_NUMBER}, 0, False, "At 256 tokens it fails"),
    ],
)
def test_the_longest_length_at_which_this_and_all_shorter_pass(found, excess, tokens, unknown, told) -> None:
    reads = effective_length(found, excess, "its base")
    assert (reads.tokens, reads.unknown) == (tokens, unknown)
    assert re.search(told, reads.next)
    assert bool(reads.next) is bool(told)
    assert "90% of the passkeys" in reads.rule
    assert "its base" in reads.rule


@pytest.mark.parametrize(
    ("own", "hits", "tokens", "headline"),
    [
        ((8, 97, 100), 50, 0, "Not extended: it fails the rule at the shortest length that was tested"),
        ((8, 85, 100), 85, 0, "Too little was measured to say how far it reads"),  # 85 of 100 may be 90%
        ((8, 50, 100), 50, 0, "Too little .*; the base itself finds 50% of the passkeys in 8 tokens"),
        ((8, 50, 100), 56, 16, "Reads 16 tokens, 2 times its original 8; the base itself finds 50% of the passkeys"),
        ((8, 50, 100), 30, 0, "Not extended: .*; the base itself finds 50% of the passkeys in 8 tokens"),
        (
            (8, 0, 100),
            0,
            0,
            "Too little was measured .*; the base itself finds 0% of the passkeys",
        ),  # any model would pass
        ((8, 0, 100), 99, 0, "Too little was measured .*; the base itself finds 0% of the passkeys"),
        ((8, 1, 100), 0, 0, "Too little was measured .*; the base itself finds 1% of the passkeys"),
    ],
)
def test_where_the_base_fails_in_its_own_window_it_is_the_measure(own, hits, tokens, headline) -> None:
    """Nine tenths of what it finds are needed, by the far end of the interval as ever: 56 of 100 are at least 46%."""
    reads = effective_length({8: (hits, 100), 16: (hits, 100)}, {8: GOOD, 16: GOOD}, "its base", own)
    assert reads.tokens == tokens
    assert re.fullmatch(headline + ".*", reads.headline(8))
    needed = FOUND if own[1] >= 85 or not own[1] else FOUND * own[1] / own[2]
    assert f"at least {needed:.0%} of the passkeys" in reads.rule


def test_the_far_end_of_the_interval_decides() -> None:
    # Of 100 passkeys 96 are enough: the interval's low end is 90.2%. With 95 it is 88.8%.
    assert effective_length({8: (96, 100)}, {8: GOOD}, "x").tokens == 8
    assert effective_length({8: (95, 100)}, {8: GOOD}, "x").unknown
    assert effective_length({8: ALL}, {8: Interval(0.0, -1.0, EXCESS)}, "x").tokens == 8
    assert effective_length({8: ALL}, {8: Interval(0.0, -1.0, EXCESS + 1e-6)}, "x").unknown
    assert math.exp(EXCESS) == pytest.approx(1.05)
    assert FOUND == 0.9


@pytest.mark.parametrize(
    ("tokens", "next", "unknown", "headline"),
    [
        (1024, "", False, "Reads 1,024 tokens, 4 times its original 256"),
        (512, "It fails.", False, "Reads 512 tokens, 2 times its original 256, short of its target 1,024"),
        (512, "", False, "Reads 512 tokens, 2 times its original 256; more, up to its target 1,024, was not measured"),
        (256, "It fails.", False, "Not extended: it reads 256 tokens, no more than its original 256"),
        (256, "", False, "Not known whether it was extended: measured up to 256 tokens, and its original has 256"),
        (0, "It fails.", False, "Not extended: it fails the rule at the shortest length that was tested"),
        (512, "?", True, "Reads at least 512 tokens, 2 times its original 256; too little was measured to say more"),
        (256, "?", True, "Too little was measured to say how far it reads"),
        (0, "?", True, "Too little was measured to say how far it reads"),
    ],
)
def test_the_headline_says_how_far_the_model_reads(tokens, next, unknown, headline) -> None:
    assert EffectiveLength(tokens, "", next, unknown).headline(256, 1024) == headline


def test_a_base_is_not_extended_however_little_was_measured() -> None:
    assert (
        EffectiveLength(256, "").headline(256, 256)
        == "Not extended: it reads 256 tokens, no more than its original 256"
    )


def test_lengths_that_are_not_known_are_left_out_of_the_headline() -> None:
    assert EffectiveLength(512, "").headline(None) == "Reads 512 tokens"


def test_a_run_with_one_passkey_of_two_is_not_called_a_failure() -> None:
    reads = effective_length({256: (1, 2)}, {256: GOOD}, "its base")
    assert "Not extended" not in reads.headline(256, 512)
    assert reads.headline(256, 512).startswith("Too little was measured")
