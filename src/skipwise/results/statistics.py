"""Records -> means, shares and differences, each with its 95% interval.

Losses are in nats a token. Means over documents are weighted by tokens, and their intervals come from the differences
between documents, because the tokens of one document are alike.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np
from scipy.special import stdtrit

from skipwise.results.records import ReadingRecord, TrialRecord

Sums = Literal["nll", "hits"]
Prompt = TypeVar("Prompt", int, tuple[str, int])  # its number, or its task and number

Z = 1.959964  # of the normal distribution, 97.5%
# The fewest segments of a document for which an interval is shown; with fewer it misses the true mean too often.
FEWEST_SEGMENTS = 8


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its 95% interval."""

    mean: float
    low: float
    high: float

    def times(self, factor: float) -> "Interval":
        """The interval in another unit."""
        return Interval(self.mean * factor, self.low * factor, self.high * factor)

    def exp(self) -> "Interval":
        """The interval of the perplexity, of which this is the interval of the loss."""
        return Interval(*(perplexity_of(nats) for nats in (self.mean, self.low, self.high)))

    def __str__(self) -> str:
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return f"{self.mean:+.3f} [one document]"
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def perplexity_of(nats: float) -> float:
    """exp(nats), infinite where a float cannot hold it."""
    return math.exp(nats) if nats < 700 else math.inf


def loss(readings: Sequence[ReadingRecord], begin: int = 0, end: int | None = None, sums: Sums = "nll") -> Interval:
    """Mean loss at positions ``begin .. end - 1`` over all readings, or with ``sums="hits"`` the share of hits.

    Only buckets that lie inside count. Without ``end`` all positions from ``begin`` on count.
    """
    parts = [_within(r, begin, end, sums) for r in readings]
    return mean_interval([s for s, _ in parts], [n for _, n in parts], [r.document for r in readings])


def perplexity(readings: Sequence[ReadingRecord], end: int | None = None) -> Interval:
    """Perplexity over all readings, token by token, of their first ``end`` tokens or of all."""
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
    """Our loss (or share of hits) less theirs on the same tokens, paired by document; None where they share none.

    The interval is over documents, or with ``by_segment`` over segments: then it is about more text of the same documents.
    """
    other = {(r.document, r.begin): r for r in theirs}
    pairs = [(r, other[r.document, r.begin]) for r in ours if (r.document, r.begin) in other]
    pairs = [(a, b) for a, b in pairs if a.edges == b.edges]
    differences = [_within(a, begin, end, sums)[0] - _within(b, begin, end, sums)[0] for a, b in pairs]
    tokens = [_within(a, begin, end, sums)[1] for a, _ in pairs]
    clusters = [f"{a.document} {a.begin}" if by_segment else a.document for a, _ in pairs]
    return mean_interval(differences, tokens, clusters) if sum(tokens) else None


def share_difference(ours: Mapping[Prompt, float], theirs: Mapping[Prompt, float]) -> Interval | None:
    """Our share of right answers less theirs on the same prompts, by their names; None where they share none.

    The interval is Newcombe's for paired shares ("Improved confidence intervals for the difference between binomial
    proportions based on paired data", 1998, method 10). It stays honest where both answer every prompt alike. A score between
    0 and 1 counts as that part of a right answer; such scores vary less, so the interval is then wider than it has to be.
    """
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return None
    hits, others, n = math.fsum(ours[i] for i in shared), math.fsum(theirs[i] for i in shared), len(shared)
    scale = math.sqrt(hits * (n - hits) * others * (n - others))
    agree = n * math.fsum(ours[i] * theirs[i] for i in shared) - hits * others
    # With a continuity correction, of a positive correlation only.
    phi = (agree if agree < 0 else max(0.0, agree - n / 2)) / scale if scale else 0.0
    (low, high), (low2, high2) = wilson_interval(hits, n), wilson_interval(others, n)
    p, p2 = hits / n, others / n

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    return Interval(p - p2, p - p2 - reach(p - low, high2 - p2), p - p2 + reach(high - p, p2 - low2))


def found(trials: Iterable[TrialRecord]) -> tuple[int, int]:
    """How many prompts were answered rightly, and how many were asked."""
    hits = [trial.hit for trial in trials]
    return sum(hits), len(hits)


def _within(reading: ReadingRecord, begin: int, end: int | None, sums: Sums) -> tuple[float, int]:
    """Sum and number of targets of the buckets that lie in ``begin .. end - 1``."""
    inside = [
        (value, high - low)
        for value, (low, high) in zip(getattr(reading, sums), pairwise(reading.edges), strict=True)
        if low >= begin and (end is None or high <= end)
    ]
    return sum(value for value, _ in inside), sum(tokens for _, tokens in inside)


def mean_interval(totals: Sequence[float], counts: Sequence[float], clusters: Sequence[str]) -> Interval:
    """The mean ``sum(totals) / sum(counts)`` and its 95% interval, by Student's t over clusters.

    Clusters are documents, and not what is inside them: tokens of one document are alike. The variance is the
    cluster-robust one, corrected for few clusters, and so are the degrees of freedom where clusters differ in size (CR2;
    Bell and McCaffrey, "Bias reduction in standard errors for linear regression with multi-stage samples", 2002). With
    clusters of one size this is the t interval of their means. With one cluster the interval is infinite: nothing is
    known of other documents. ``clusters`` names the document of each total and count.
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
    """Degrees of freedom of the variance ``sum(weight * (y - share @ y) ** 2)``: 2 E^2 / Var for independent y of one variance.

    With M = I - 1 share' it is the quadratic form of B = M' diag(weight) M, so E = tr B and Var = 2 tr B^2.
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
    """The 95% score interval of a share (Wilson 1927); honest at 0% and 100%, where p +- 2 s.e. is empty."""
    p, scale = hits / trials, 1 + Z * Z / trials
    middle = (p + Z * Z / (2 * trials)) / scale
    half = Z * math.sqrt(p * (1 - p) / trials + Z * Z / (4 * trials * trials)) / scale
    return 0.0 if hits == 0 else middle - half, 1.0 if hits == trials else middle + half
