"""Means, shares and differences of records, each with its 95% interval, and the prompts that a claim needs.

Losses are in nats per token. Means over documents are weighted by tokens. Their intervals come from the differences between
documents, because the tokens of one document are alike.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np
from scipy.special import ndtri, stdtrit

from skipwise.results.records import ReadingRecord, TrialRecord

Sums = Literal["nll", "hits"]
Prompt = TypeVar("Prompt", int, tuple[str, int])  # its number, or its task and number

Z = 1.959964  # of the normal distribution, 97.5%
# The fewest segments of a document for which an interval is shown; with fewer it misses the true mean too often.
FEWEST_SEGMENTS = 8
POWER = 0.8  # the chance of showing a true claim
_SPREAD = (Z + float(ndtri(POWER))) ** 2


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its 95% interval."""

    mean: float
    low: float
    high: float

    def times(self, factor: float) -> "Interval":
        """Return the interval in another unit."""
        return Interval(self.mean * factor, self.low * factor, self.high * factor)

    def exp(self) -> "Interval":
        """Return the interval of the perplexity, from that of the loss."""
        return Interval(*(perplexity_of(nats) for nats in (self.mean, self.low, self.high)))

    def __str__(self) -> str:
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return f"{self.mean:+.3f} [one document]"
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def perplexity_of(nats: float) -> float:
    """Return exp(nats), infinite where a float cannot hold it."""
    return math.exp(nats) if nats < 700 else math.inf


def loss(readings: Sequence[ReadingRecord], begin: int = 0, end: int | None = None, sums: Sums = "nll") -> Interval:
    """Return the mean loss at positions ``begin .. end - 1``, or with ``sums="hits"`` the share of hits.

    Only buckets inside these positions count. Without ``end`` all positions from ``begin`` on count.
    """
    parts = [_within(r, begin, end, sums) for r in readings]
    return mean_interval([s for s, _ in parts], [n for _, n in parts], [r.document for r in readings])


def perplexity(readings: Sequence[ReadingRecord], end: int | None = None) -> Interval:
    """Return the perplexity over the first ``end`` tokens of all readings, or over all tokens."""
    return loss(readings, 0, end).exp()


def difference(
    ours: Sequence[ReadingRecord],
    theirs: Sequence[ReadingRecord],
    begin: int = 0,
    end: int | None = None,
    sums: Sums = "nll",
    *,
    by_segment: bool = False,
) -> Interval | None:
    """Return our loss (or share of hits) less theirs on shared tokens, paired; None without shared tokens.

    The interval is over documents, or with ``by_segment`` over segments: it is then about more text of the same documents.
    """
    other = {(r.document, r.begin): r for r in theirs}
    pairs = [(r, other[r.document, r.begin]) for r in ours if (r.document, r.begin) in other]
    pairs = [(a, b) for a, b in pairs if a.edges == b.edges]
    parts = [(_within(a, begin, end, sums), _within(b, begin, end, sums)[0]) for a, b in pairs]
    differences, tokens = [ours - theirs for (ours, _), theirs in parts], [tokens for (_, tokens), _ in parts]
    clusters = [f"{a.document} {a.begin}" if by_segment else a.document for a, _ in pairs]
    return mean_interval(differences, tokens, clusters) if sum(tokens) else None


def share_difference(ours: Mapping[Prompt, float], theirs: Mapping[Prompt, float]) -> Interval | None:
    """Return our share of right answers less theirs on shared prompts; None without shared prompts.

    The interval is Newcombe's for paired shares ("Improved confidence intervals for the difference between binomial
    proportions based on paired data", 1998, method 10). It is valid where both answer every prompt alike. A score between 0
    and 1 counts as that part of a right answer; the interval is then wider than needed.
    """
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return None
    hits, others, n = math.fsum(ours[i] for i in shared), math.fsum(theirs[i] for i in shared), len(shared)
    scale = math.sqrt(hits * (n - hits) * others * (n - others))
    agree = n * math.fsum(ours[i] * theirs[i] for i in shared) - hits * others
    # Continuity correction of a positive correlation only.
    phi = (agree if agree < 0 else max(0.0, agree - n / 2)) / scale if scale else 0.0
    (low, high), (low2, high2) = wilson_interval(hits, n), wilson_interval(others, n)
    p, p2 = hits / n, others / n

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    return Interval(p - p2, p - p2 - reach(p - low, high2 - p2), p - p2 + reach(high - p, p2 - low2))


def found(trials: Iterable[TrialRecord]) -> tuple[int, int]:
    """Return the number of right answers, and of prompts."""
    hits = [trial.hit for trial in trials]
    return sum(hits), len(hits)


def _within(reading: ReadingRecord, begin: int, end: int | None, sums: Sums) -> tuple[float, int]:
    """Return sum and number of targets of the buckets inside ``begin .. end - 1``."""
    inside = [
        (value, high - low)
        for value, (low, high) in zip(getattr(reading, sums), pairwise(reading.edges), strict=True)
        if low >= begin and (end is None or high <= end)
    ]
    return sum(value for value, _ in inside), sum(tokens for _, tokens in inside)


def mean_interval(totals: Sequence[float], counts: Sequence[float], clusters: Sequence[str]) -> Interval:
    """Return the mean ``sum(totals) / sum(counts)`` and its 95% interval, by Student's t over clusters.

    Clusters are documents: ``clusters`` has the document of each total and count. Variance and degrees of freedom are
    cluster-robust and corrected for few clusters (CR2; Bell and McCaffrey, "Bias reduction in standard errors for linear
    regression with multi-stage samples", 2002). With clusters of one size this is the t interval of their means. With one
    cluster the interval is infinite.
    """
    _, member = np.unique(clusters, return_inverse=True)
    sums = np.bincount(member, np.asarray(totals, dtype=float))
    sizes = np.bincount(member, np.asarray(counts, dtype=float))
    mean = float(sums.sum() / sizes.sum())
    sums, share = sums[sizes > 0], sizes[sizes > 0] / sizes.sum()
    if len(share) < 2:
        return Interval(mean, -math.inf, math.inf)
    residuals = sums / (share * sizes.sum()) - mean
    weight = share**2 / (1 - share)
    half = float(stdtrit(_freedom(weight, share), 0.975) * np.sqrt(weight @ residuals**2))
    return Interval(mean, mean - half, mean + half)


def _freedom(weight: np.ndarray, share: np.ndarray) -> float:
    """Return the degrees of freedom of ``sum(weight * (y - share @ y) ** 2)``: 2 E^2 / Var.

    y are independent and of one variance. With M = I - 1 share' the sum is the quadratic form of B = M' diag(weight) M, so E = tr B and Var = 2 tr B^2.
    """
    total, both, squares = weight.sum(), weight @ share, share @ share
    trace = total - 2 * both + total * squares
    of_square = (
        weight @ weight
        + 2 * (total * (weight @ share**2) - 2 * (weight**2 @ share))
        + 2 * (both**2 + (weight @ weight) * squares)
        - 4 * total * both * squares
        + (total * squares) ** 2
    )
    return float(trace**2 / of_square)


def wilson_interval(hits: float, trials: int) -> tuple[float, float]:
    """Return the 95% score interval of a share (Wilson 1927). ``hits`` may be fractional, which scipy refuses."""
    p, scale = hits / trials, 1 + Z * Z / trials
    middle = (p + Z * Z / (2 * trials)) / scale
    half = Z * math.sqrt(p * (1 - p) / trials + Z * Z / (4 * trials * trials)) / scale
    return 0.0 if hits == 0 else middle - half, 1.0 if hits == trials else middle + half


def least_hits(needed: float, prompts: int) -> int | None:
    """Return how many of ``prompts`` must be right to show the share ``needed``; None if all are too few.

    A share is shown where Wilson's interval is at or above it.
    """
    return next((hits for hits in range(prompts + 1) if wilson_interval(hits, prompts)[0] >= needed), None)


def fewest_prompts(needed: float) -> int:
    """Return how many prompts, all right, show the share ``needed``."""
    prompts = math.ceil(Z * Z * needed / (1 - needed))  # of n right answers of n the interval begins at n / (n + z^2)
    return prompts if wilson_interval(prompts, prompts)[0] >= needed else prompts + 1


def smallest_difference(prompts: int) -> float:
    """Return the smallest paired difference of two shares that is shown with power 0.8.

    A difference is shown where its 95% interval excludes 0. The shares are 1/2 + d/2 and 1/2 - d/2 with independent answers: the
    variance per prompt is 1/2 - d^2/2. Models that fail at the same prompts, or have shares nearer 0 or 1, show smaller ones.
    """
    return math.sqrt(_SPREAD / (2 * prompts + _SPREAD))


def prompts_for_difference(difference: float) -> int:
    """Return how many prompts show a difference: the inverse of ``smallest_difference``."""
    return math.ceil(_SPREAD * (1 / difference**2 - 1) / 2)
