"""Which position index, and which piece of its document, each token of a training example gets.

The method of the paper, and the rivals that it is compared with, as pure functions of integers and a key::

    scheme(keys, train_length, target_length, document_lengths, *, chunks, lengths, skips, content) -> Plans

Symbols as in PoSE (Zhu et al., ICLR 2024, section 3.2): L_c train length, L_t target length, L_x document
length, N chunks with lengths l_i, skips u_i, content offsets v_i, chunk starts st_i = l_0 + ... + l_(i-1).
All lengths count tokens.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from skipwise.errors import DataError, RecipeError
from skipwise.keys import Keys

LengthRule = Literal["paper", "released"]
SkipRule = Literal["uniform", "end_anchored"]
ContentRule = Literal["uniform", "zero", "aligned"]

# Draw numbers, so that no random word serves twice; chunk i adds i.
_LENGTH, _SKIP, _OFFSET = 0, 2**20, 2**21


@dataclass(frozen=True)
class Plans:
    """The plans of a batch of examples, each a row.

    Attributes:
        lengths: l_i, int64 [examples, chunks]; every row sums to the example's tokens.
        skips: u_i, int64 [examples, chunks]; never falls along a row.
        offsets: v_i, int64 [examples, chunks]; where in the document a chunk's text is taken from.
    """

    lengths: np.ndarray
    skips: np.ndarray
    offsets: np.ndarray

    def position_ids(self) -> np.ndarray:
        """u_i + st_i, u_i + st_i + 1, ...: int64 [examples, tokens], strictly rising along a row."""
        return self._per_token(self.skips)

    def content_indices(self) -> np.ndarray:
        """Index into the document of each token, v_i + st_i + 0, 1, ...: int64 [examples, tokens]."""
        return self._per_token(self.offsets)

    def _per_token(self, biases: np.ndarray) -> np.ndarray:
        examples, tokens = len(self.lengths), int(self.lengths[0].sum())
        spread = np.repeat(biases.ravel(), self.lengths.ravel()).reshape(examples, tokens)
        return spread + np.arange(tokens)


class Scheme(Protocol):
    """The signature that every scheme shares; what follows the star matters to PoSE alone."""

    def __call__(
        self,
        keys: Keys,
        train_length: int,
        target_length: int,
        document_lengths: np.ndarray,
        *,
        chunks: int = 2,
        lengths: LengthRule = "paper",
        skips: SkipRule = "uniform",
        content: ContentRule = "uniform",
    ) -> Plans: ...


def pose(
    keys: Keys,
    train_length: int,
    target_length: int,
    document_lengths: np.ndarray,
    *,
    chunks: int = 2,
    lengths: LengthRule = "paper",
    skips: SkipRule = "uniform",
    content: ContentRule = "uniform",
) -> Plans:
    """Positional skip-wise training: N chunks, each shifted by its own skip (the paper, section 3.2).

    Args:
        keys: one an example.
        train_length: L_c, the tokens of each example.
        target_length: L_t; positions stay below it.
        document_lengths: L_x, int64 [examples], each at least L_c.
        chunks: N, at most L_c.
        lengths: ``paper``: l_i ~ U{1..what leaves a token for each chunk to come} (the paper's coverage code);
            ``released``: l_0 ~ U{1..(L_c+1)//2}, two chunks, as in the authors' released code.
        skips: u_0 = 0 and ``uniform``: u_i ~ U{u_(i-1)..L_t-L_c} (the paper); ``end_anchored``: u_1 drawn by
            ``end_anchored_skips``, two chunks.
        content: v_0 = 0 and ``uniform``: v_i ~ U{v_(i-1)..L_x-L_c}; ``zero``: contiguous text;
            ``aligned``: v_i = u_i, as far as the document reaches.

    Raises:
        RecipeError: N is not in 1..L_c, L_t < L_c, or ``released`` or ``end_anchored`` with N other than 2.
        DataError: a document is shorter than L_c.
    """
    _check(train_length, target_length, document_lengths, needed=train_length)
    if not 1 <= chunks <= train_length:
        raise RecipeError(f"chunks {chunks} must lie in 1..{train_length}, the train length in tokens")
    chunk_lengths = _chunk_lengths(keys, train_length, chunks, lengths)
    chunk_skips = _chunk_skips(keys, train_length, target_length, chunks, skips)
    room = document_lengths - train_length
    if content == "uniform":
        offsets = _rising(keys, _OFFSET, room, chunks)
    elif content == "aligned":
        offsets = np.minimum(chunk_skips, room[:, None])
    else:
        offsets = np.zeros_like(chunk_skips)
    return Plans(chunk_lengths, chunk_skips, offsets)


def end_anchored_skips(train_length: int, target_length: int) -> np.ndarray:
    """Skips u_1 of two chunks, equally likely, under which each distance from L_c to L_t - 1 has the same chance.

    Two chunks with skip u cover, beyond themselves, the distances u + 1..u + L_c - 1: d >= L_c is covered if and
    only if u lies in d - L_c + 1..d - 1. Under u ~ U{0..M}, M = L_t - L_c, that run of L_c - 1 skips sticks out
    over M for the last distances, whose chance falls to 1 / (M + 1). For the same chance p at every d, the runs
    s..min(M, s + L_c - 2) must weigh p for every s in 1..M. From the end: s = M holds M alone, so P(M) = p;
    the next L_c - 2 runs hold M and one skip more each, which must weigh nothing; then M itself falls out,
    and M - (L_c - 1) must weigh p; and so on. What is left is a comb, anchored at the end,

        u in {M, M - (L_c - 1), M - 2 (L_c - 1), ...}, all above 0, each with p = 1 / ceil(M / (L_c - 1)),

    and it is the only solution, but for a share of the examples that could be spent on u = 0.

    Returns:
        int64 [ceil(M / (L_c - 1))], falling; [0] where L_t = L_c.
    """
    room = target_length - train_length
    return np.arange(room, 0, -max(1, train_length - 1)) if room else np.zeros(1, dtype=np.int64)


def cream(
    keys: Keys, train_length: int, target_length: int, document_lengths: np.ndarray, **_: object
) -> Plans:
    """CREAM: head, middle and tail, the middle drawn by a truncated Gaussian (Wu et al., NeurIPS 2024).

    With alpha = L_t / L_c, head and tail have L_c // 3 or 4 alpha tokens each, by a fair coin. k is the floor of
    a draw from a Gaussian of mean 1 + alpha and deviation 3, truncated to [2, 2 alpha]; the middle ends at
    U{floor(head + (middle - 1) k / 2)..floor(k L_c / 2) - tail - 1}, the head begins at 0 and the tail ends at
    L_t - 1. Text is taken from where the positions point, as far as the document reaches. The coin is thrown
    for each example (the published code throws it once in 3,000); 4 alpha is cut to L_c // 3, without which
    nothing would be left for the middle of a far target.

    Raises:
        RecipeError: L_c < 3, or L_t < L_c.
        DataError: a document is shorter than L_c.
    """
    _check(train_length, target_length, document_lengths, needed=train_length)
    if train_length < 3:
        raise RecipeError(f"train length {train_length} must be at least 3 for CREAM: head, middle, tail")
    alpha = target_length / train_length
    third = train_length // 3
    ends = np.where(keys.integers(_LENGTH, 0, 1) == 0, third, min(third, int(4 * alpha)))  # head and tail
    middle = train_length - 2 * ends
    k = _truncated_gaussian(keys, _LENGTH + 1, mean=1 + alpha, deviation=3, least=2, most=2 * alpha)
    last = keys.integers(_SKIP, ends + (middle - 1) * k // 2, k * train_length // 2 - ends - 1)
    lengths = np.stack([ends, middle, ends], axis=1)
    zero = np.zeros_like(ends)
    skips = np.stack([zero, last - middle + 1 - ends, zero + target_length - train_length], axis=1)
    return Plans(lengths, skips, np.minimum(skips, (document_lengths - train_length)[:, None]))


def _truncated_gaussian(
    keys: Keys, draw: int, *, mean: float, deviation: float, least: float, most: float
) -> np.ndarray:
    """Floors of draws from a Gaussian truncated to [least, most], by inverting their distribution: int64."""
    floors = np.arange(math.floor(least), math.floor(most) + 1)
    edges = np.clip(np.append(floors, most + 1), least, most)
    below = np.array([math.erf((edge - mean) / deviation / math.sqrt(2)) for edge in edges])
    if below[-1] == below[0]:  # least = most
        return np.full(len(keys), floors[0])
    cumulative = (below[1:] - below[0]) / (below[-1] - below[0])
    return floors[np.searchsorted(cumulative, keys.uniform(draw), side="right").clip(max=len(floors) - 1)]


def randpos(
    keys: Keys, train_length: int, target_length: int, document_lengths: np.ndarray, **_: object
) -> Plans:
    """RandPos: L_c of the L_t positions, drawn without replacement and sorted (Ruoss et al., ACL 2023).

    Each token is a chunk of its own; the text is contiguous. Arguments and errors as in ``pose``.
    """
    _check(train_length, target_length, document_lengths, needed=train_length)
    scores = keys.table(_SKIP, target_length)
    chosen = np.argpartition(scores, train_length - 1, axis=1)[:, :train_length]
    skips = np.sort(chosen.astype(np.int64), axis=1) - np.arange(train_length)
    return Plans(np.ones_like(skips), skips, np.zeros_like(skips))


def full_length(
    keys: Keys, train_length: int, target_length: int, document_lengths: np.ndarray, **_: object
) -> Plans:
    """Full-length fine-tuning: L_t contiguous tokens at positions 0..L_t-1. Documents must hold L_t tokens."""
    _check(train_length, target_length, document_lengths, needed=target_length)
    return _contiguous(len(keys), target_length)


def short(
    keys: Keys, train_length: int, target_length: int, document_lengths: np.ndarray, **_: object
) -> Plans:
    """The control without skips: L_c contiguous tokens at positions 0..L_c-1."""
    _check(train_length, target_length, document_lengths, needed=train_length)
    return _contiguous(len(keys), train_length)


SCHEMES: dict[str, Scheme] = {
    "pose": pose,
    "randpos": randpos,
    "cream": cream,
    "full": full_length,
    "short": short,
}


def _chunk_lengths(keys: Keys, train_length: int, chunks: int, rule: LengthRule) -> np.ndarray:
    """l_i: int64 [examples, chunks], by breaking a stick of L_c tokens; the last chunk takes the rest."""
    if rule == "released" and chunks != 2:
        raise RecipeError(f"lengths 'released' knows 2 chunks, not {chunks}; take lengths 'paper'")
    broken = np.empty((len(keys), chunks), dtype=np.int64)
    rest = np.full(len(keys), train_length, dtype=np.int64)
    for i in range(chunks - 1):
        longest = (rest + 1) // 2 if rule == "released" else rest - (chunks - 1 - i)
        broken[:, i] = keys.integers(_LENGTH + i, 1, longest)
        rest -= broken[:, i]
    broken[:, -1] = rest
    return broken


def _chunk_skips(
    keys: Keys, train_length: int, target_length: int, chunks: int, rule: SkipRule
) -> np.ndarray:
    """u_i: int64 [examples, chunks]."""
    if rule == "uniform":
        return _rising(keys, _SKIP, np.full(len(keys), target_length - train_length), chunks)
    if chunks != 2:
        raise RecipeError(f"skips 'end_anchored' knows 2 chunks, not {chunks}; take skips 'uniform'")
    comb = end_anchored_skips(train_length, target_length)
    drawn = comb[keys.integers(_SKIP + 1, 0, len(comb) - 1)]
    return np.stack([np.zeros_like(drawn), drawn], axis=1)


def _rising(keys: Keys, draw: int, highest: np.ndarray, chunks: int) -> np.ndarray:
    """b_0 = 0, b_i ~ U{b_(i-1)..highest}: int64 [examples, chunks]; the rule of both u_i and v_i."""
    biases = np.zeros((len(keys), chunks), dtype=np.int64)
    for i in range(1, chunks):
        biases[:, i] = keys.integers(draw + i, biases[:, i - 1], highest)
    return biases


def _contiguous(examples: int, tokens: int) -> Plans:
    zeros = np.zeros((examples, 1), dtype=np.int64)
    return Plans(zeros + tokens, zeros, zeros)


def _check(train_length: int, target_length: int, document_lengths: np.ndarray, needed: int) -> None:
    if not 1 <= train_length <= target_length:
        raise RecipeError(
            f"train length {train_length:,} must lie in 1..{target_length:,}, the target length in tokens"
        )
    shortest = int(np.min(document_lengths, initial=np.iinfo(np.int64).max))
    if shortest < needed:
        raise DataError(
            f"a document of {shortest:,} tokens is shorter than an example of {needed:,}; "
            "leave it out (data.min_tokens), or lower the train length"
        )
