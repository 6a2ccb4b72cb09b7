"""Which position index, and which piece of its document, each token of a training example gets.

The method of the paper, and the rivals that it is compared with, as pure functions of integers and a key::

    scheme(keys, train_length, target_length, document_lengths, *, chunks, lengths, content) -> Plans

Symbols as in PoSE (Zhu et al., ICLR 2024, section 3.2): L_c train length, L_t target length, L_x document
length, N chunks with lengths l_i, skips u_i, content offsets v_i, chunk starts st_i = l_0 + ... + l_(i-1).
All lengths count tokens.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from skipwise.errors import DataError, RecipeError
from skipwise.keys import Keys

LengthRule = Literal["paper", "released"]
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
    """The signature that every scheme shares; ``chunks``, ``lengths`` and ``content`` matter to PoSE alone."""

    def __call__(
        self,
        keys: Keys,
        train_length: int,
        target_length: int,
        document_lengths: np.ndarray,
        *,
        chunks: int = 2,
        lengths: LengthRule = "paper",
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
        content: v_0 = 0 and ``uniform``: v_i ~ U{v_(i-1)..L_x-L_c}; ``zero``: contiguous text;
            ``aligned``: v_i = u_i, as far as the document reaches.

    Raises:
        RecipeError: N is not in 1..L_c, L_t < L_c, or ``released`` with N other than 2.
        DataError: a document is shorter than L_c.
    """
    _check(train_length, target_length, document_lengths, needed=train_length)
    if not 1 <= chunks <= train_length:
        raise RecipeError(f"chunks {chunks} must lie in 1..{train_length}, the train length in tokens")
    chunk_lengths = _chunk_lengths(keys, train_length, chunks, lengths)
    skips = _rising(keys, _SKIP, np.full(len(keys), target_length - train_length), chunks)
    room = document_lengths - train_length
    if content == "uniform":
        offsets = _rising(keys, _OFFSET, room, chunks)
    elif content == "aligned":
        offsets = np.minimum(skips, room[:, None])
    else:
        offsets = np.zeros_like(skips)
    return Plans(chunk_lengths, skips, offsets)


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


SCHEMES: dict[str, Scheme] = {"pose": pose, "randpos": randpos, "full": full_length, "short": short}


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
