"""Plans of windows: every token is scored once, with as much context as promised; and buckets of positions."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipwise.errors import RecipeError
from skipwise.evaluation.windows import Window, position_buckets, sliding_windows


@st.composite
def settings(draw):
    window = draw(st.integers(2, 40))
    return draw(st.integers(0, 200)), window, draw(st.integers(1, window))


@given(settings())
def test_every_token_but_the_first_is_scored_exactly_once(setting):
    tokens, window, stride = setting
    scored = [t for w in sliding_windows(tokens, window, stride) for t in range(w.scored_from, w.end)]
    assert scored == list(range(1, tokens))


@given(settings())
def test_windows_are_as_wide_as_the_document_allows_and_advance_by_the_stride(setting):
    tokens, window, stride = setting
    windows = sliding_windows(tokens, window, stride)
    assert all(w.width == min(window, tokens) for w in windows)
    assert all(0 <= w.begin < w.scored_from < w.end <= tokens for w in windows)
    advances = [b.end - a.end for a, b in pairwise(windows)]
    step = min(stride, window - 1)
    assert all(advance == step for advance in advances[:-1])
    assert all(0 < advance <= step for advance in advances[-1:])


@given(settings())
def test_targets_after_the_first_window_have_at_least_window_minus_stride_tokens_of_context(setting):
    tokens, window, stride = setting
    for w in sliding_windows(tokens, window, stride)[1:]:
        assert w.context >= max(1, window - stride)


def test_the_plan_of_a_small_document():
    assert sliding_windows(11, 6, 2) == [Window(0, 6, 1), Window(2, 8, 6), Window(4, 10, 8), Window(5, 11, 10)]


def test_a_short_document_is_one_short_window():
    assert sliding_windows(5, 8, 4) == [Window(0, 5, 1)]


@pytest.mark.parametrize("tokens", [0, 1])
def test_nothing_to_score_gives_no_window(tokens):
    assert sliding_windows(tokens, 8, 4) == []


def test_non_overlapping_windows_share_the_token_of_context():
    assert sliding_windows(7, 4, 4) == [Window(0, 4, 1), Window(3, 7, 4)]


@pytest.mark.parametrize(("window", "stride"), [(1, 1), (8, 0), (8, 9)])
def test_a_setting_out_of_range_is_refused(window, stride):
    with pytest.raises(RecipeError):
        sliding_windows(100, window, stride)


@pytest.mark.parametrize(
    ("length", "original", "edges"),
    [
        (2048, 256, [1, 64, 128, 256, 512, 1024, 2048]),
        (256, 256, [1, 64, 128, 256]),
        (1000, 256, [1, 64, 128, 256, 512, 1000]),
        (3, 4, [1, 2, 3]),
        (256, 66, [1, 16, 32, 64, 66, 128, 256]),  # the original length is an edge in any case
    ],
)
def test_position_buckets_double_from_a_quarter_of_the_original_length(length, original, edges):
    assert position_buckets(length, original) == edges
