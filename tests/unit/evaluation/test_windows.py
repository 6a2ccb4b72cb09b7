"""Plans of windows: every token is scored once, with as much context as promised; and buckets of positions."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from skipwise.errors import RecipeError
from skipwise.evaluation.windows import Window, position_buckets, sliding_windows


@given(st.integers(0, 200), st.integers(2, 40), st.data())
def test_every_token_but_the_first_is_scored_once_with_the_promised_context(tokens, window, data):
    stride = data.draw(st.integers(1, window))
    windows = sliding_windows(tokens, window, stride)
    assert [t for w in windows for t in range(w.scored_from, w.end)] == list(range(1, tokens))
    assert all(w.width == min(window, tokens) for w in windows)
    assert all(w.context >= max(1, window - stride) for w in windows[1:])
    step = min(stride, window - 1)
    advances = [b.end - a.end for a, b in pairwise(windows)]
    assert all(advance == step for advance in advances[:-1])
    assert all(0 < advance <= step for advance in advances[-1:])


def test_the_plan_of_a_small_document():
    assert sliding_windows(11, 6, 2) == [Window(0, 6, 1), Window(2, 8, 6), Window(4, 10, 8), Window(5, 11, 10)]


@pytest.mark.parametrize(("window", "stride"), [(1, 1), (8, 0), (8, 9)])
def test_a_setting_out_of_range_is_refused(window, stride):
    with pytest.raises(RecipeError):
        sliding_windows(100, window, stride)


@pytest.mark.parametrize(
    ("length", "original", "edges"),
    [(1000, 256, [1, 64, 128, 256, 512, 1000]), (256, 66, [1, 16, 32, 64, 66, 128, 256])],
)
def test_position_buckets_double_from_a_quarter_of_the_original_length(length, original, edges):
    assert position_buckets(length, original) == edges
