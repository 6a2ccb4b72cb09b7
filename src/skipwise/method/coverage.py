"""Which relative distances one training example trains, and how often (PoSE, appendix B, ``fig:prob``).

An example covers a relative distance d if two of its tokens are d positions apart. RoPE attention depends on
positions only through such distances, so a distance that no example covers is never trained. There is a closed form
for contiguous text and for PoSE with one or two chunks; Monte Carlo with a standard error serves all other schemes.
"""

from dataclasses import dataclass, replace

import numpy as np

from skipwise.errors import RecipeError, at_least, one_of
from skipwise.method.lengths import LONGEST, MOST_CHUNKS, parse_length
from skipwise.method.positions import PAPER, SCHEMES, ChunkRules, Plans, end_anchored_skips
from skipwise.method.rng import Rng

# Up to this many chunks, merging the intervals of all chunk pairs is cheaper than a Fourier transform.
_MOST_CHUNKS_AS_INTERVALS = 32
_BATCH_ELEMENTS = 2**22
_MOST_ELEMENTS = 2**34  # about a quarter of an hour


@dataclass(frozen=True)
class Coverage:
    """The probability that one example covers each relative distance; arrays are [target_length - 1].

    The standard error is sqrt(p (1 - p) / samples); 0 for a closed form, and where every example, or none, covered the
    distance.
    """

    distances: np.ndarray  # int64, 1..target_length - 1, in tokens
    probability: np.ndarray  # float64
    standard_error: np.ndarray  # float64
    train_length: int  # L_c in tokens; under ``full_length`` L_t
    samples: int = 0  # the number of examples drawn; 0 for a closed form

    @property
    def target_length(self) -> int:
        """L_t in tokens."""
        return len(self.distances) + 1


def coverage(
    train_length: int | str,
    target_length: int | str,
    rules: ChunkRules = PAPER,
    *,
    scheme: str = "pose",
    samples: int | None = None,
    seed: int = 0,
) -> Coverage:
    """Return the coverage of a scheme, by its closed form if there is one, otherwise by Monte Carlo.

    Example:
        >>> f"{coverage('2k', '16k').probability[8191]:.4f}"  # two chunks, distance 8,192
        '0.1428'

    Args:
        train_length: L_c, the tokens of a training example, as 2048 or "2k".
        target_length: L_t; every position is below it.
        rules: how ``scheme="pose"`` draws its chunks.
        scheme: a name in ``skipwise.method.positions.SCHEMES``.
        samples: draw this many examples (Monte Carlo) even if there is a closed form. Default without one: 200,000, or
            2**24 / N**2 if that is less; for more than 32 chunks 2**24 / target_length, at least 200 (one second).
        seed: of the Monte Carlo examples.

    Raises:
        RecipeError: the scheme is unknown, a length, the chunks or the samples break their rule, or the examples would
            take hours to draw.
    """
    one_of("scheme", scheme, SCHEMES)
    train, target = _check(train_length, target_length, rules.chunks if scheme == "pose" else 1)
    if samples is None and scheme in ("no_skip", "full_length"):
        return _contiguous(target if scheme == "full_length" else train, target)
    if samples is None and scheme == "pose" and rules.chunks <= 2:
        return closed_form(train, target, rules)
    return _monte_carlo(train, target, replace(rules, content="zero"), scheme, samples, seed)


def closed_form(train_length: int | str, target_length: int | str, rules: ChunkRules = PAPER) -> Coverage:
    """Return the exact coverage of PoSE with one or two chunks.

    One chunk always covers 1..L_c - 1. Two chunks hold the positions 0..l0 - 1 and l0 + u..L_c - 1 + u,
    with l0 ~ U{1..H} (H = L_c - 1 in the paper, (L_c + 1) // 2 in the released code), l1 = L_c - l0 and u one of
    S equally likely skips (0..L_t - L_c, so S = L_t - L_c + 1, or the comb of ``end_anchored_skips``). The
    pairs inside a chunk cover 1..max(l0, l1) - 1; the pairs across the chunks cover every distance from u + 1 (end
    of the first to start of the second) to u + L_c - 1 (start to end). Hence

        not inside:  max(l0, l1) <= d  <=>  L_c - d <= l0 <= d,    in n(d) of H cases
        across:      d - L_c + 1 <= u <= d - 1,                    in m(d) of S cases

    and, l0 and u being independent, P(d) = 1 - n(d) (S - m(d)) / (H S). From L_c on, n(d) = H and P(d) = m(d) / S:
    with uniform skips the plateau (L_c - 1) / (L_t - L_c + 1) up to L_t - L_c + 1, then a fall to 1 / S at L_t - 1;
    with end-anchored skips 1 / S throughout. Contiguous examples, a share of all, cover 1..L_c - 1.

    Raises:
        RecipeError: there are more than two chunks, or a length breaks its rule.
    """
    train, target = _check(train_length, target_length, rules.chunks)
    if rules.chunks > 2:
        raise RecipeError(
            f"chunks {rules.chunks}: the coverage has a closed form for 1 and 2 chunks only; use coverage"
        )
    if rules.chunks == 1:
        return _contiguous(train, target)
    d = np.arange(1, target)
    most = train - 1 if rules.lengths == "paper" else (train + 1) // 2
    not_inside = np.clip(np.minimum(most, d) - np.maximum(1, train - d) + 1, 0, None)
    skips = np.arange(target - train + 1)
    if rules.skips == "end_anchored":
        skips = np.sort(end_anchored_skips(train, target))
    across = np.searchsorted(skips, d - 1, side="right") - np.searchsorted(skips, d - train + 1)
    probability = (most * len(skips) - not_inside * (len(skips) - across)) / (most * len(skips))
    if rules.no_skip_share:
        probability = (1 - rules.no_skip_share) * probability + rules.no_skip_share * (d < train)
    return Coverage(d, probability, np.zeros(len(d)), train)


def _monte_carlo(train: int, target: int, rules: ChunkRules, scheme: str, samples: int | None, seed: int) -> Coverage:
    """Estimate the coverage of any scheme from independent examples, as ``coverage`` describes."""

    def drawn(indices: np.ndarray) -> Plans:
        # Long documents suit every scheme; no position depends on their length.
        documents = np.full(len(indices), target, dtype=np.int64)
        return SCHEMES[scheme](Rng.of(seed, 0, indices), train, target, documents, rules)

    first = drawn(np.zeros(1, dtype=np.int64)).lengths  # [1, chunks]
    chunks = first.shape[1]
    as_intervals = chunks <= _MOST_CHUNKS_AS_INTERVALS
    if samples is None:
        samples = min(200_000, 2**24 // chunks**2) if as_intervals else max(200, 2**24 // target)
    at_least("samples", samples, 1)
    count = count_by_intervals if as_intervals else count_by_positions
    elements = chunks**2 if as_intervals else 4 * target  # of each example
    if samples * elements > _MOST_ELEMENTS:
        raise RecipeError(
            f"samples {samples:,} of {chunks:,} chunks up to {target:,} would take hours; lower samples to "
            f"at most {_MOST_ELEMENTS // elements:,}"
        )
    batch = max(1, _BATCH_ELEMENTS // elements)
    covered = np.zeros(target - 1, dtype=np.int64)
    for done in range(0, samples, batch):
        covered += count(drawn(np.arange(done, min(samples, done + batch))), target)
    p = covered / samples
    return Coverage(np.arange(1, target), p, np.sqrt(p * (1 - p) / samples), int(first.sum()), samples)


def count_by_intervals(plans: Plans, target_length: int) -> np.ndarray:
    """Count the examples that cover each distance, int64 [target_length - 1], from the intervals of all chunk pairs.

    Chunks i < j with the positions s_i..e_i and s_j..e_j cover every distance from s_j - e_i to e_j - s_i; one chunk
    covers 1..l - 1. The intervals of an example are sorted, and the part that a previous interval reaches is cut off,
    so that each distance counts once.
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
    """Count the examples that cover each distance, int64 [target_length - 1], from their positions' autocorrelation.

    The autocorrelation of the 0/1 vector of occupied positions is, at lag d, the number of token pairs that are d
    apart. A Fourier transform gives all lags at once, for any number of chunks.
    """
    positions = plans.position_ids()
    occupied = np.zeros((len(positions), target_length))
    np.put_along_axis(occupied, positions, 1.0, axis=1)
    spectrum = np.fft.rfft(occupied, n=2 * target_length, axis=1)
    pairs = np.fft.irfft(np.abs(spectrum) ** 2, n=2 * target_length, axis=1)[:, 1:target_length]
    return np.count_nonzero(pairs > 0.5, axis=0)


def _contiguous(reach: int, target: int) -> Coverage:
    d = np.arange(1, target)
    return Coverage(d, (d < reach).astype(np.float64), np.zeros(len(d)), reach)


def _check(train_length: int | str, target_length: int | str, chunks: int) -> tuple[int, int]:
    """Return both lengths in tokens."""
    train, target = parse_length(train_length), parse_length(target_length)
    if target <= train:
        raise RecipeError(f"target {target:,} must exceed the train length {train:,}; choose a longer target")
    if target > LONGEST:
        raise RecipeError(
            f"target {target:,}: coverage is computed for each distance, at most {LONGEST:,}; choose a shorter "
            "target, the curve has the same shape at the same ratio of lengths"
        )
    if not 1 <= chunks <= train:
        raise RecipeError(
            f"chunks {chunks:,} must be between 1 and the train length {train:,}: a chunk has at least one token"
        )
    if chunks > MOST_CHUNKS:
        raise RecipeError(f"chunks {chunks:,} must be at most {MOST_CHUNKS:,}, or drawing them takes hours; lower it")
    return train, target
