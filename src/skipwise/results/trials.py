"""How many prompts a claim needs, before the first is asked: what a 95% interval can show, with a chance of about 80%."""

import math

from scipy.special import bdtrc, ndtri

from skipwise.results.statistics import Z, wilson_interval

POWER = 0.8  # the chance with which a claim that is true is to be shown
_SPREAD = (Z + float(ndtri(POWER))) ** 2
_MOST = 100_000  # prompts; no claim asks for more


def least_hits(needed: float, prompts: int) -> int | None:
    """Return how many of ``prompts`` must be right for Wilson's interval to lie at or above the share ``needed``.

    None where even all of them would not be enough.
    """
    return next((hits for hits in range(prompts + 1) if wilson_interval(hits, prompts)[0] >= needed), None)


def fewest_prompts(needed: float) -> int:
    """Return with how many prompts, all right, Wilson's interval lies at or above the share ``needed``."""
    prompts = math.ceil(Z * Z * needed / (1 - needed))  # of n right answers of n the interval begins at n / (n + z^2)
    return prompts if wilson_interval(prompts, prompts)[0] >= needed else prompts + 1


def chance_to_show(needed: float, share: float, prompts: int) -> float:
    """Return how often a model whose true share is ``share`` shows by so many prompts that it reaches ``needed``."""
    hits = least_hits(needed, prompts)
    if hits is None:
        return 0.0
    return float(bdtrc(hits - 1, prompts, share)) if hits else 1.0


def prompts_to_show(needed: float, share: float) -> int:
    """Return the fewest prompts by which a model whose true share is ``share`` shows ``needed`` with a chance of about 80%."""
    return next(n for n in range(fewest_prompts(needed), _MOST) if chance_to_show(needed, share, n) >= POWER)


def smallest_difference(prompts: int) -> float:
    """Return the smallest difference of two models' shares on the same prompts that is shown with a chance of about 80%.

    It is shown where the 95% interval of the paired difference excludes 0. Taken are the shares 1/2 + d/2 and 1/2 - d/2,
    and answers of the two that do not depend on each other: then the difference of a prompt has the variance 1/2 - d^2/2.
    Models that fail at the same prompts, or whose shares are nearer to 0 or 1, show smaller differences.
    """
    return math.sqrt(_SPREAD / (2 * prompts + _SPREAD))


def prompts_for_difference(difference: float) -> int:
    """Return with how many prompts a difference can be shown: the inverse of ``smallest_difference``."""
    return math.ceil(_SPREAD * (1 / difference**2 - 1) / 2)
