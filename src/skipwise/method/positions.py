"""Position schemes: the position index, and the place in its document, of each token of a training example.

The paper's scheme and the schemes that it is compared with are pure functions with one signature::

    scheme(rng, train_length, target_length, document_lengths, rules) -> Plans

To add a scheme, write such a function and enter it in ``SCHEMES``, the only list of them.

Symbols as in PoSE (Zhu et al., ICLR 2024, section 3.2): L_c train length, L_t target length, L_x document
length, N chunks with lengths l_i, skips u_i, content offsets v_i, chunk starts st_i = l_0 + ... + l_(i-1).
All lengths count tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from skipwise.errors import DataError, RecipeError, at_least, one_of
from skipwise.method.lengths import parse_length
from skipwise.method.rng import Rng

LengthRule = Literal["paper", "released"]
SkipRule = Literal["uniform", "end_anchored"]
ContentRule = Literal["paper", "even", "zero", "aligned"]

# The first draw number of each random quantity; chunk i adds i, so no random word is used twice.
_LENGTH, _SKIP, _OFFSET, _CONTIGUOUS = 0, 2**20, 2**21, 2**22


@dataclass(frozen=True)
class ChunkRules:
    """How ``pose`` draws its chunks. The defaults are the paper's; the other schemes ignore these rules.

    Attributes:
        chunks: N, at most L_c.
        lengths: ``paper``: l_i ~ U{1..the most that leaves one token for each later chunk}, as in the paper's
            coverage code; ``released``: l_0 ~ U{1..(L_c + 1) // 2}, as in the authors' training code, two chunks only.
        skips: u_0 = 0, and ``uniform``: u_i ~ U{u_(i-1)..L_t - L_c}, as in the paper; ``end_anchored``: u_1 drawn from
            ``end_anchored_skips``, two chunks only.
        content: ``paper``: v_0 = 0, v_i ~ U{v_(i-1)..L_x - L_c}. The others read all parts of a document as often: v_i are
            places from a ~ U{0..L_x - L_c} on, sorted, ``zero``: all of them a, contiguous text; ``aligned``: a + u_i;
            ``even``: a + U{0..L_t - L_c}; beyond the document's end counted back from it.
        no_skip_share: the share of examples without skips, u_i = 0 and v_i = v ~ U{0..L_x - L_c}: contiguous text at contiguous
            positions. Its last labels have all of the window before them. The paper has none.

    Raises:
        RecipeError: a rule is unknown or needs two chunks, the chunks are no whole number from 1 up, or the share is not in 0..1.
    """

    chunks: int = 2
    lengths: LengthRule = "paper"
    skips: SkipRule = "uniform"
    content: ContentRule = "paper"
    no_skip_share: float = 0.0

    def __post_init__(self) -> None:
        at_least("chunks", self.chunks, 1)
        if not 0 <= self.no_skip_share <= 1:
            raise RecipeError(f"no_skip_share {self.no_skip_share:g} must lie in 0..1, a share of the examples")
        for name, rule in (("lengths", LengthRule), ("skips", SkipRule), ("content", ContentRule)):
            one_of(name, getattr(self, name), get_args(rule))
        if self.lengths == "released" and self.chunks != 2:
            raise RecipeError(f"lengths 'released' needs 2 chunks, not {self.chunks}; use lengths 'paper'")
        if self.skips == "end_anchored" and self.chunks != 2:
            raise RecipeError(f"skips 'end_anchored' needs 2 chunks, not {self.chunks}; use skips 'uniform'")


PAPER = ChunkRules()


@dataclass(frozen=True)
class Plans:
    """The plans of a batch of examples, one per row.

    Attributes:
        lengths: l_i, int64 [examples, chunks]; each row sums to the number of tokens in the example.
        skips: u_i, int64 [examples, chunks]; never decreases along a row.
        offsets: v_i, int64 [examples, chunks]; where in the document the text of a chunk is taken from.
    """

    lengths: np.ndarray
    skips: np.ndarray
    offsets: np.ndarray

    def position_ids(self) -> np.ndarray:
        """Return u_i + st_i, u_i + st_i + 1, ...: int64 [examples, tokens], strictly increasing along a row."""
        return self._per_token(self.skips)

    def content_indices(self) -> np.ndarray:
        """Return each token's index in its document, v_i + st_i, v_i + st_i + 1, ...: int64 [examples, tokens]."""
        return self._per_token(self.offsets)

    def _per_token(self, biases: np.ndarray) -> np.ndarray:
        examples, tokens = len(self.lengths), int(self.lengths[0].sum())
        spread = np.repeat(biases.ravel(), self.lengths.ravel()).reshape(examples, tokens)
        return spread + np.arange(tokens)


def pose(
    rng: Rng, train_length: int | str, target_length: int | str, document_lengths: np.ndarray, rules: ChunkRules = PAPER
) -> Plans:
    """Draw plans of positional skip-wise training: N chunks, each shifted by its own skip (PoSE, section 3.2).

    Example:
        >>> pose(Rng.of(seed=0, epoch=0, indices=[4]), 8, 64, np.array([100])).position_ids()
        array([[ 0,  1,  2,  3, 38, 39, 40, 41]])

    Args:
        rng: one generator per example.
        train_length: L_c, the tokens of each example, as 2048 or "2k".
        target_length: L_t; every position is below it.
        document_lengths: L_x, int64 [examples], each at least L_c.
        rules: how the chunks are drawn.

    Raises:
        RecipeError: N is not in 1..L_c, L_t < L_c, or a rule for two chunks meets another N.
        DataError: a document is shorter than L_c.
    """
    train_length, target_length = _check(train_length, target_length, document_lengths)
    if rules.chunks > train_length:
        raise RecipeError(
            f"chunks {rules.chunks} must lie in 1..{train_length}, the train length in tokens; a chunk has at least one"
        )
    lengths = _chunk_lengths(rng, train_length, rules)
    skips = _chunk_skips(rng, train_length, target_length, rules)
    room = document_lengths - train_length
    if rules.content == "paper":
        offsets = _rising(rng, _OFFSET, room, rules.chunks)
    elif rules.content == "even":
        offsets = _even(rng, room, rules.chunks, target_length - train_length)
    else:
        offsets = _placed(rng, room, skips if rules.content == "aligned" else np.zeros_like(skips))
    if rules.no_skip_share:
        skipping = (rng.uniform(_CONTIGUOUS) >= rules.no_skip_share)[:, None]
        skips, offsets = skips * skipping, np.where(skipping, offsets, _placed(rng, room, np.zeros_like(skips)))
    return Plans(lengths, skips, offsets)


def end_anchored_skips(train_length: int, target_length: int) -> np.ndarray:
    """Return skips u_1 for two chunks that give every distance from L_c to L_t - 1 the same chance.

    Let M = L_t - L_c. A distance d >= L_c is covered if and only if u lies in the run d - L_c + 1..d - 1. Under
    u ~ U{0..M} the runs of the last distances extend beyond M, so their chance falls to 1 / (M + 1). An equal
    chance p needs every run s..min(M, s + L_c - 2), s = 1..M, to have the weight p. Solve from the end: the run
    s = M holds M alone, so P(M) = p. The next L_c - 2 runs hold M and one more skip each, so those skips have
    weight 0. The run after them no longer holds M, so P(M - (L_c - 1)) = p; and so on. The solution is a comb,

        u in {M, M - (L_c - 1), M - 2 (L_c - 1), ...}, all above 0, each with p = 1 / ceil(M / (L_c - 1)),

    and it is unique, except that a share of the examples could use u = 0. The result is int64
    [ceil(M / (L_c - 1))], decreasing; [0] if L_t = L_c.
    """
    room = target_length - train_length
    return np.arange(room, 0, -max(1, train_length - 1)) if room else np.zeros(1, dtype=np.int64)


def cream(
    rng: Rng, train_length: int, target_length: int, document_lengths: np.ndarray, rules: ChunkRules = PAPER
) -> Plans:
    """Draw plans of CREAM: head, middle and tail, the middle by a truncated Gaussian (Wu et al., NeurIPS 2024).

    With alpha = L_t / L_c, head and tail have L_c // 3 or 4 alpha tokens each, with equal chance. k is the floor of
    a draw from a Gaussian of mean 1 + alpha and standard deviation 3, truncated to [2, 2 alpha]. The last position of
    the middle is drawn from U{floor(head + (middle - 1) k / 2)..floor(k L_c / 2) - tail - 1}; the head starts at
    position 0 and the tail ends at L_t - 1. The text is that of ``even`` content.

    Two differences from the published code: head and tail lengths are drawn for each example (there, once for
    3,000 examples), and 4 alpha is capped at L_c // 3, because a far target would leave no token for the middle.

    Raises:
        RecipeError: L_c < 3, or L_t < L_c.
        DataError: a document is shorter than L_c.
    """
    train_length, target_length = _check(train_length, target_length, document_lengths)
    if train_length < 3:
        raise RecipeError(
            f"train length {train_length} must be at least 3 for CREAM (head, middle, tail); choose a longer one"
        )
    alpha = target_length / train_length
    third = train_length // 3
    ends = np.where(rng.integers(_LENGTH, 0, 1) == 0, third, min(third, int(4 * alpha)))  # head and tail
    middle = train_length - 2 * ends
    k = _truncated_gaussian(rng, mean=1 + alpha, deviation=3, least=2, most=2 * alpha)
    last = rng.integers(_SKIP, ends + (middle - 1) * k // 2, k * train_length // 2 - ends - 1)
    lengths = np.stack([ends, middle, ends], axis=1)
    zero = np.zeros_like(ends)
    skips = np.stack([zero, last - middle + 1 - ends, zero + target_length - train_length], axis=1)
    return Plans(lengths, skips, _even(rng, document_lengths - train_length, 3, target_length - train_length))


def _truncated_gaussian(rng: Rng, *, mean: float, deviation: float, least: float, most: float) -> np.ndarray:
    """Return floors of Gaussian draws truncated to [least, most], by inverting the distribution: int64 [examples]."""
    floors = np.arange(math.floor(least), math.floor(most) + 1)
    edges = np.clip(np.append(floors, most + 1), least, most)
    below = np.array([math.erf((edge - mean) / deviation / math.sqrt(2)) for edge in edges])
    if below[-1] == below[0]:  # least = most
        return np.full(len(rng), floors[0])
    cumulative = (below[1:] - below[0]) / (below[-1] - below[0])
    drawn = rng.uniform(_LENGTH + 1)
    return floors[np.searchsorted(cumulative, drawn, side="right").clip(max=len(floors) - 1)]


def randpos(
    rng: Rng, train_length: int, target_length: int, document_lengths: np.ndarray, rules: ChunkRules = PAPER
) -> Plans:
    """Draw plans of RandPos: L_c of the L_t positions, without replacement, sorted (Ruoss et al., ACL 2023).

    Each token is one chunk; the text is contiguous, from anywhere in the document. Raises what ``pose`` raises.
    """
    train_length, target_length = _check(train_length, target_length, document_lengths)
    scores = rng.table(_SKIP, target_length)
    chosen = np.argpartition(scores, train_length - 1, axis=1)[:, :train_length]
    skips = np.sort(chosen.astype(np.int64), axis=1) - np.arange(train_length)
    text = _placed(rng, document_lengths - train_length, np.zeros_like(skips))
    return Plans(np.ones_like(skips), skips, text)


def full_length(
    rng: Rng, train_length: int, target_length: int, document_lengths: np.ndarray, rules: ChunkRules = PAPER
) -> Plans:
    """Draw plans of full-length fine-tuning: L_t contiguous tokens; each document must have that many."""
    _, target_length = _check(train_length, target_length, document_lengths, full=True)
    return _contiguous(rng, target_length, document_lengths)


def no_skip(
    rng: Rng, train_length: int, target_length: int, document_lengths: np.ndarray, rules: ChunkRules = PAPER
) -> Plans:
    """Draw plans of the control without skips: L_c contiguous tokens at positions 0..L_c - 1."""
    train_length, _ = _check(train_length, target_length, document_lengths)
    return _contiguous(rng, train_length, document_lengths)


Scheme = Callable[[Rng, int, int, np.ndarray, ChunkRules], Plans]

SCHEMES: dict[str, Scheme] = {
    "pose": pose,
    "randpos": randpos,
    "cream": cream,
    "full_length": full_length,
    "no_skip": no_skip,
}


def _chunk_lengths(rng: Rng, train_length: int, rules: ChunkRules) -> np.ndarray:
    """Return l_i: int64 [examples, chunks]; every chunk is drawn from the tokens left over, the last takes the rest."""
    chunks, released = rules.chunks, rules.lengths == "released"
    lengths = np.empty((len(rng), chunks), dtype=np.int64)
    rest = np.full(len(rng), train_length, dtype=np.int64)
    for i in range(chunks - 1):
        longest = (rest + 1) // 2 if released else rest - (chunks - 1 - i)
        lengths[:, i] = rng.integers(_LENGTH + i, 1, longest)
        rest -= lengths[:, i]
    lengths[:, -1] = rest
    return lengths


def _chunk_skips(rng: Rng, train_length: int, target_length: int, rules: ChunkRules) -> np.ndarray:
    """Return u_i: int64 [examples, chunks]."""
    if rules.skips == "uniform":
        return _rising(rng, _SKIP, np.full(len(rng), target_length - train_length), rules.chunks)
    comb = end_anchored_skips(train_length, target_length)
    drawn = comb[rng.integers(_SKIP + 1, 0, len(comb) - 1)]
    return np.stack([np.zeros_like(drawn), drawn], axis=1)


def _rising(rng: Rng, draw: int, highest: np.ndarray, chunks: int) -> np.ndarray:
    """Return b_0 = 0, b_i ~ U{b_(i-1)..highest}: int64 [examples, chunks]; both u_i and v_i follow this rule."""
    biases = np.zeros((len(rng), chunks), dtype=np.int64)
    for i in range(1, chunks):
        biases[:, i] = rng.integers(draw + i, biases[:, i - 1], highest)
    return biases


def _even(rng: Rng, room: np.ndarray, chunks: int, farthest: int) -> np.ndarray:
    """Return places in a document, at most ``farthest`` from a drawn one: int64 [examples, chunks]."""
    gaps = [rng.integers(_OFFSET + i, 0, np.full_like(room, farthest)) for i in range(1, chunks)]
    return _placed(rng, room, np.stack([np.zeros_like(room), *gaps], axis=1))


def _placed(rng: Rng, room: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """Return a + gaps or a - gaps, sorted, with a ~ U{0..room}, reflected at the ends: int64 [examples, chunks].

    The way there and back, 0, 1, ..., room, room, ..., 1, 0, is a circle, on which a uniform place stays uniform when it is
    shifted. So every chunk is from any place with the same chance.
    """
    last = 2 * room[:, None] + 1
    moved = (rng.integers(_CONTIGUOUS + 1, 0, last[:, 0])[:, None] + gaps) % (last + 1)
    return np.sort(np.minimum(moved, last - moved), axis=1)


def _contiguous(rng: Rng, tokens: int, document_lengths: np.ndarray) -> Plans:
    offsets = _placed(rng, document_lengths - tokens, np.zeros((len(rng), 1), dtype=np.int64))
    return Plans(np.full_like(offsets, tokens), np.zeros_like(offsets), offsets)


def _check(
    train_length: int | str, target_length: int | str, document_lengths: np.ndarray, *, full: bool = False
) -> tuple[int, int]:
    """Return both lengths in tokens. Every document must have L_c tokens, or L_t for a ``full_length`` scheme."""
    train, target = parse_length(train_length), parse_length(target_length)
    if train > target:
        raise RecipeError(f"train length {train:,} must not exceed the target length {target:,}; lower it")
    shortest = int(np.min(document_lengths, initial=np.iinfo(np.int64).max))
    needed = target if full else train
    if shortest < needed:
        raise DataError(
            f"a document of {shortest:,} tokens is shorter than an example of {needed:,}; "
            "leave it out (data.min_tokens of a recipe), or lower the train length"
        )
    return train, target
