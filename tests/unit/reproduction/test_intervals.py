"""Intervals over seeds and of shares, against published values."""

import pytest

from reproduction.intervals import _t, seeds_interval, share_difference


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
