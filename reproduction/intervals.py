"""95% intervals over seeds, and of the difference of two shares."""

import math
import statistics
from collections.abc import Sequence

from skipwise.results.statistics import Interval, wilson_interval

_Z = 1.959964  # of the normal distribution, 97.5%
# Of Student's t, the 97.5% quantile at 1 to 9 degrees of freedom.
_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)


def seeds_interval(values: Sequence[float]) -> Interval:
    """Return the mean of one value for each seed, two at least, and its 95% interval by Student's t (1908)."""
    mean, n = statistics.fmean(values), len(values)
    half = _t(n - 1) * statistics.stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half)


def _t(freedom: int) -> float:
    """The 97.5% quantile of Student's t: a table for few degrees of freedom, else its expansion in 1 / freedom
    (Abramowitz and Stegun, 26.7.5), right to 0.2%."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    return _Z + (_Z**3 + _Z) / (4 * freedom) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * freedom**2)


def share_difference(ours: tuple[int, int], theirs: tuple[int, int]) -> Interval:
    """Return the 95% interval of ours - theirs, (hits, trials) each, by Newcombe's method (1998)."""
    p, q = ours[0] / ours[1], theirs[0] / theirs[1]
    (p_low, p_high), (q_low, q_high) = wilson_interval(*ours), wilson_interval(*theirs)
    low, high = p - q - math.hypot(p - p_low, q_high - q), p - q + math.hypot(p_high - p, q - q_low)
    return Interval(p - q, low, high)
