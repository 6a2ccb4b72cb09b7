"""Which relative distances one training example trains, and how often (PoSE, appendix B, ``fig:prob``).

A relative distance d is covered by an example when some pair of its tokens is d positions apart. Attention
sees positions through their distances alone (RoPE), so a distance that is never covered is never trained.
Closed form for one and two chunks, Monte Carlo with a stated standard error for what has none.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from skipwise.errors import RecipeError
from skipwise.keys import Keys
from skipwise.positions import SCHEMES, LengthRule, Plans, SkipRule, end_anchored_skips
from skipwise.results import CoverageRecord

Scheme = Literal["pose", "randpos", "cream", "full", "short"]

# Up to this many chunks, merging the intervals of all chunk pairs is cheaper than a Fourier transform.
_MOST_CHUNKS_AS_INTERVALS = 32
_BATCH_ELEMENTS = 2**22
_MOST_DISTANCES = 2**24


@dataclass(frozen=True)
class Coverage:
    """The probability that one example covers each relative distance.

    Attributes:
        distances: int64 [target_length - 1], 1..target_length - 1, in tokens.
        probability: float64 [target_length - 1].
        standard_error: float64 [target_length - 1], sqrt(p (1 - p) / samples); zeros in closed form.
        train_length: L_c in tokens.
        samples: how many examples were drawn; 0 in closed form.
    """

    distances: np.ndarray
    probability: np.ndarray
    standard_error: np.ndarray
    train_length: int
    samples: int = 0

    @property
    def target_length(self) -> int:
        """L_t in tokens."""
        return len(self.distances) + 1


def coverage(
    train_length: int,
    target_length: int,
    chunks: int = 2,
    *,
    scheme: Scheme = "pose",
    lengths: LengthRule = "paper",
    skips: SkipRule = "uniform",
    samples: int | None = None,
    seed: int = 0,
) -> Coverage:
    """Compute the coverage of a scheme: in closed form where there is one, else or with ``samples`` by Monte Carlo.

    Args:
        train_length: L_c, the tokens in a training example.
        target_length: L_t, positions are drawn below it.
        chunks: N, for ``scheme="pose"``.
        scheme: ``short`` is one contiguous chunk, ``full`` trains contiguously on the target length.
        lengths: how chunk lengths are drawn, by the paper's rule or the released code's.
        skips: how PoSE's skips are drawn, uniformly as in the paper or anchored at the end.
        samples: Monte Carlo examples; default 200,000, or where only a Fourier transform serves,
            2**24 / target_length and at least 200 (about a second).
        seed: of the Monte Carlo examples.

    Raises:
        RecipeError: the scheme or a rule is unknown, or a length, the chunks or the samples break theirs.
    """
    _one_of("scheme", scheme, get_args(Scheme))
    _one_of("lengths", lengths, get_args(LengthRule))
    _one_of("skips", skips, get_args(SkipRule))
    if scheme in ("short", "full"):
        _check(train_length, target_length, chunks=1)
        return _contiguous(target_length if scheme == "full" else train_length, target_length)
    if scheme == "pose" and chunks <= 2 and samples is None:
        return closed_form(train_length, target_length, chunks, lengths, skips)
    return monte_carlo(
        train_length,
        target_length,
        chunks,
        scheme=scheme,
        lengths=lengths,
        skips=skips,
        samples=samples,
        seed=seed,
    )


def closed_form(
    train_length: int,
    target_length: int,
    chunks: int = 2,
    lengths: LengthRule = "paper",
    skips: SkipRule = "uniform",
) -> Coverage:
    """Compute the exact coverage of PoSE with one or two chunks.

    One chunk covers 1..L_c - 1 always. Two chunks hold the positions 0..l0 - 1 and l0 + u..L_c - 1 + u,
    with l0 ~ U{1..H} (H = L_c - 1 in the paper, (L_c + 1) // 2 in the released code), l1 = L_c - l0 and u one of
    S equally likely skips (0..L_t - L_c, so S = L_t - L_c + 1, or the comb of ``end_anchored_skips``). The
    pairs inside a chunk cover 1..max(l0, l1) - 1; the pairs across run through every distance from u + 1 (end
    of the first to start of the second) to u + L_c - 1 (start to end). Hence

        not inside:  max(l0, l1) <= d  <=>  L_c - d <= l0 <= d,    in n(d) of H cases
        across:      d - L_c + 1 <= u <= d - 1,                    in m(d) of S cases

    and, l0 and u being independent, P(d) = 1 - n(d) (S - m(d)) / (H S). From L_c on n(d) = H, which leaves
    m(d) / S: under uniform skips the plateau (L_c - 1) / (L_t - L_c + 1) up to L_t - L_c + 1 and a fall to
    1 / S at L_t - 1, under end-anchored ones 1 / S throughout.

    Raises:
        RecipeError: the chunks are not 1 or 2, or a length breaks its rule.
    """
    _check(train_length, target_length, chunks)
    if chunks > 2:
        raise RecipeError(
            f"chunks {chunks}: the coverage has a closed form for 1 and 2 chunks only; use monte_carlo"
        )
    if chunks == 1:
        return _contiguous(train_length, target_length)
    d = np.arange(1, target_length)
    most = train_length - 1 if lengths == "paper" else (train_length + 1) // 2
    not_inside = np.clip(np.minimum(most, d) - np.maximum(1, train_length - d) + 1, 0, None)
    drawn = np.arange(target_length - train_length + 1)
    if skips == "end_anchored":
        drawn = np.sort(end_anchored_skips(train_length, target_length))
    across = np.searchsorted(drawn, d - 1, side="right") - np.searchsorted(drawn, d - train_length + 1)
    probability = (most * len(drawn) - not_inside * (len(drawn) - across)) / (most * len(drawn))
    return Coverage(d, probability, np.zeros(len(d)), train_length)


def monte_carlo(
    train_length: int,
    target_length: int,
    chunks: int = 2,
    *,
    scheme: Scheme = "pose",
    lengths: LengthRule = "paper",
    skips: SkipRule = "uniform",
    samples: int | None = None,
    seed: int = 0,
) -> Coverage:
    """Estimate the coverage of PoSE, RandPos or CREAM from ``samples`` independent examples.

    The standard error is the estimate's own, sqrt(p (1 - p) / samples): it is 0 where every example, or
    none, covered the distance.

    Raises:
        RecipeError: the scheme has no chunks to draw, or a length, the chunks or the samples break their
            rule.
    """
    if scheme in ("full", "short"):
        raise RecipeError(f"scheme {scheme!r} draws no positions; use coverage")
    _check(train_length, target_length, chunks if scheme == "pose" else 1)
    chunks = 3 if scheme == "cream" else chunks
    as_intervals = scheme != "randpos" and chunks <= _MOST_CHUNKS_AS_INTERVALS
    if samples is None:
        samples = 200_000 if as_intervals else max(200, 2**24 // target_length)
    if samples < 1:
        raise RecipeError(f"samples {samples} must be at least 1; a few thousand give a smooth curve")
    count = count_by_intervals if as_intervals else count_by_positions
    width = chunks**2 if as_intervals else 4 * target_length
    covered = np.zeros(target_length - 1, dtype=np.int64)
    batch = max(1, _BATCH_ELEMENTS // width)
    for first in range(0, samples, batch):
        indices = np.arange(first, min(samples, first + batch))
        plans = SCHEMES[scheme](
            Keys.of(seed, 0, indices),
            train_length,
            target_length,
            np.full(len(indices), train_length, dtype=np.int64),
            chunks=chunks,
            lengths=lengths,
            skips=skips,
            content="zero",
        )
        covered += count(plans, target_length)
    p = covered / samples
    return Coverage(np.arange(1, target_length), p, np.sqrt(p * (1 - p) / samples), train_length, samples)


def coverage_record(curve: Coverage, label: str, points: int = 1024) -> CoverageRecord:
    """Make a record of a curve, for ``results.jsonl`` and the figure.

    At most about ``points`` distances are kept: evenly spread ones, and the two beside each bend of the
    two-chunk curve (train length, target - train length).
    """
    last = len(curve.distances)
    bends = np.array([curve.train_length, last + 2 - curve.train_length])
    even = np.linspace(1, last, min(points, last)).astype(np.int64)
    kept = np.unique(np.concatenate([even, bends - 1, bends]))
    kept = kept[(kept >= 1) & (kept <= last)] - 1
    return CoverageRecord(
        label=label,
        train_length=curve.train_length,
        target_length=curve.target_length,
        distances=curve.distances[kept].tolist(),
        probability=curve.probability[kept].tolist(),
        standard_error=curve.standard_error[kept].tolist(),
    )


def count_by_intervals(plans: Plans, target_length: int) -> np.ndarray:
    """Count the examples that cover each distance, by the intervals that their chunk pairs span.

    Chunks i < j that hold the positions s_i..e_i and s_j..e_j cover every distance from s_j - e_i to
    e_j - s_i; one chunk covers 1..l - 1. The intervals of an example are sorted and cut where an earlier
    one reaches, so that each distance counts once.

    Returns:
        int64 [target_length - 1].
    """
    starts = np.cumsum(plans.lengths, axis=1) - plans.lengths + plans.skips
    ends = starts + plans.lengths - 1
    i, j = np.triu_indices(starts.shape[1], k=1)
    inside = plans.lengths.max(axis=1, keepdims=True) - 1
    low = np.concatenate([np.ones_like(inside), starts[:, j] - ends[:, i]], axis=1)
    high = np.concatenate([inside, ends[:, j] - starts[:, i]], axis=1)
    order = np.argsort(low, axis=1)
    low, high = np.take_along_axis(low, order, axis=1), np.take_along_axis(high, order, axis=1)
    reached = np.zeros_like(high)
    reached[:, 1:] = np.maximum.accumulate(high, axis=1)[:, :-1]
    low = np.maximum(low, reached + 1)
    new = high >= low
    begins = np.bincount(low[new], minlength=target_length + 1)
    stops = np.bincount(high[new] + 1, minlength=target_length + 1)
    return np.cumsum(begins - stops)[1:target_length]


def count_by_positions(plans: Plans, target_length: int) -> np.ndarray:
    """Count the examples that cover each distance, by the autocorrelation of their positions.

    The autocorrelation of the 0/1 vector of occupied positions is, at lag d, the number of pairs that are d
    apart; a Fourier transform gives all lags at once, whatever the number of chunks.

    Returns:
        int64 [target_length - 1].
    """
    positions = plans.position_ids()
    occupied = np.zeros((len(positions), target_length))
    np.put_along_axis(occupied, positions, 1.0, axis=1)
    spectrum = np.fft.rfft(occupied, n=2 * target_length, axis=1)
    pairs = np.fft.irfft(np.abs(spectrum) ** 2, n=2 * target_length, axis=1)[:, 1:target_length]
    return np.count_nonzero(pairs > 0.5, axis=0)


def _contiguous(reach: int, target_length: int) -> Coverage:
    d = np.arange(1, target_length)
    return Coverage(d, (d < reach).astype(np.float64), np.zeros(len(d)), reach)


def _one_of(name: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise RecipeError(f"{name} {value!r} is unknown; choose one of {', '.join(valid)}")


def _check(train_length: int, target_length: int, chunks: int) -> None:
    if train_length < 1:
        raise RecipeError(f"train length {train_length} must be at least 1 token")
    if target_length <= train_length:
        raise RecipeError(
            f"target {target_length:,} must exceed the train length {train_length:,}; choose a longer target"
        )
    if target_length > _MOST_DISTANCES:
        raise RecipeError(
            f"target {target_length:,}: coverage is computed distance by distance, for {_MOST_DISTANCES:,} at the "
            "most; choose a nearer target, the curve has the same shape at the same ratio of lengths"
        )
    if not 1 <= chunks <= train_length:
        raise RecipeError(
            f"chunks {chunks:,} must be between 1 and the train length {train_length:,}: "
            "a chunk has at least one token"
        )
