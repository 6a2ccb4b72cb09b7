"""95% intervals over seeds."""

from collections.abc import Sequence

from skipwise.results.statistics import Interval, mean_interval


def seeds_interval(values: Sequence[float]) -> Interval:
    """Return the mean of one value for each seed, two at least, and its 95% interval by Student's t (1908)."""
    return mean_interval(values, [1] * len(values), [str(seed) for seed in range(len(values))])
