"""Intervals: against published values, a closed form, and what they must say where little is known."""

import math

import numpy as np
import pytest

from skipwise.results.statistics import (
    Interval,
    _t,
    mean_interval,
    seeds_interval,
    share_difference,
    wilson_interval,
)


def test_wilson_interval_matches_the_published_value():
    assert wilson_interval(45, 50) == pytest.approx((0.7864, 0.9565), abs=1e-4)
    assert wilson_interval(0, 50) == pytest.approx((0, 0.0713), abs=1e-4)
    assert wilson_interval(50, 50)[1] == 1.0


@pytest.mark.parametrize(
    ("ours", "theirs", "interval"),
    [  # Newcombe (1998), table II, method 10
        ((56, 70), (48, 80), (0.0524, 0.3339)),
        ((9, 10), (3, 10), (0.1705, 0.8090)),
        ((10, 10), (0, 10), (0.6075, 1.0)),
        ((0, 10), (0, 10), (-0.2775, 0.2775)),
    ],
)
def test_differences_of_shares_match_the_published_values(ours, theirs, interval):
    apart = share_difference(ours, theirs)
    assert (apart.low, apart.high) == pytest.approx(interval, abs=1e-4)
    assert apart.mean == pytest.approx(ours[0] / ours[1] - theirs[0] / theirs[1])


@pytest.mark.parametrize(("values", "half"), [((0.0, 2.0), 12.706), ((1.0, 2.0, 3.0), 4.3027 / 3**0.5)])
def test_few_seeds_give_students_interval(values, half):
    interval = seeds_interval(values)
    assert interval.mean == pytest.approx(sum(values) / len(values))
    assert interval.high - interval.mean == pytest.approx(half, rel=1e-4)
    assert interval.mean - interval.low == pytest.approx(half, rel=1e-4)


@pytest.mark.parametrize(("freedom", "quantile"), [(9, 2.2622), (10, 2.2281), (30, 2.0423), (1000, 1.9623)])
def test_quantiles_of_students_t(freedom, quantile):
    assert _t(freedom) == pytest.approx(quantile, rel=2e-3)


def test_the_mean_is_weighted_and_the_interval_is_of_clusters():
    rng = np.random.default_rng(1)
    effects = np.repeat(rng.normal(0, 1, 40), 25)  # 25 alike in each of 40 documents
    names = [f"d{i // 25}" for i in range(1000)]
    interval = mean_interval(effects * 3, [3] * 1000, names)
    assert interval.mean == pytest.approx(effects.mean())
    expected = 1.96 * effects[::25].std(ddof=1) / math.sqrt(40)
    assert interval.high - interval.mean == pytest.approx(expected, rel=0.15)
    assert interval.mean - interval.low == pytest.approx(expected, rel=0.15)
    alone = mean_interval(effects * 3, [3] * 1000, [str(i) for i in range(1000)])
    assert alone.high - alone.low < 0.4 * (interval.high - interval.low)


def test_weights_count():
    assert mean_interval([1.0, 9.0], [1, 3], ["a", "b"]).mean == 2.5


def test_one_document_tells_nothing_of_others():
    assert mean_interval([1.0, 2.0], [1, 1], ["a", "a"]) == Interval(1.5, -math.inf, math.inf)


def test_the_same_records_give_the_same_interval():
    values = ([1.0, 2.0, 4.0], [1, 1, 1], ["a", "b", "c"])
    assert mean_interval(*values) == mean_interval(*values)


def test_an_interval_says_its_sign():
    assert str(Interval(0.01234, -1, 2).times(10)) == "+0.123 [-10.000, +20.000]"
