"""Intervals over seeds, against published quantiles."""

import pytest

from reproduction.intervals import seeds_interval


@pytest.mark.parametrize(("values", "half"), [((0.0, 2.0), 12.706), ((1.0, 2.0, 3.0), 4.3027 / 3**0.5)])
def test_few_seeds_give_students_interval(values, half):
    interval = seeds_interval(values)
    assert interval.mean == pytest.approx(sum(values) / len(values))
    assert interval.high - interval.mean == pytest.approx(half, rel=1e-4)
    assert interval.mean - interval.low == pytest.approx(half, rel=1e-4)
