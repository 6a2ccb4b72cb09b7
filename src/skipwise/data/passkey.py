"""Passkey prompts: five digits hidden in filler, asked for at the end (Mohtashami and Jaggi, 2023).

The text is the one in the PoSE paper's passkey figure. A prompt is as long as a number of the model's own
tokens allows, to within one sentence of filler; ``depth`` is the share of the filler before the key.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from skipwise.errors import DataError, TooShortError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HEAD = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.\n"
)
_SENTENCES = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
_CYCLE = len(_SENTENCES)
_QUESTION = "What is the pass key? The pass key is"


@dataclass(frozen=True)
class Prompt:
    """A prompt and what should follow it.

    Attributes:
        ids: the prompt's token ids, ending with the question.
        answer: the five digits asked for.
        depth: share of the filler sentences that stand before the key, in [0, 1].
    """

    ids: list[int]
    answer: str
    depth: float


def filler(sentences: int, first: int = 0) -> str:
    """So many sentences of the cycle from number ``first`` on, joined by spaces."""
    return " ".join(_SENTENCES[i % _CYCLE] for i in range(first, first + sentences))


def passkey_text(key: str, before: int, after: int) -> str:
    """The prompt with ``before`` filler sentences ahead of ``key`` and ``after`` behind it."""
    lines = [
        filler(before) + "\n" if before else "",
        f"The pass key is {key}. Remember it. {key} is the pass key.\n",
        filler(after) + "\n" if after else "",
    ]
    return _HEAD + "".join(lines) + _QUESTION


def passkey_prompt(
    tokenizer: "PreTrainedTokenizerBase",
    length: int,
    rng: np.random.Generator,
    depth: float | None = None,
) -> Prompt:
    """Draw the longest prompt that fits ``length`` tokens together with its answer.

    One more sentence of filler, at the same place, would not fit.

    Args:
        tokenizer: the model's own; its special tokens are added as it does by default, but no EOS.
        length: tokens of prompt and answer at the most.
        rng: draws the key, then the depth.
        depth: share of the filler before the key; default: uniform.

    Raises:
        DataError: ``length`` is too short for a prompt without filler, ``depth`` is not in [0, 1], or the
            tokenizer cannot write digits.
    """
    key = _draw_key(rng)
    split = _uniform_split(rng.random()) if depth is None else _split_at(depth)
    most, ids = _fill(tokenizer, key, length - len(answer_ids(tokenizer, key)), split, length)
    return Prompt(ids, key, split(most) / most if most else 0.0)


def training_passkey(
    tokenizer: "PreTrainedTokenizerBase", length: int, rng: np.random.Generator
) -> list[int]:
    """Draw a prompt with its answer and EOS, of at most ``length`` token ids, to train on.

    The number of filler sentences is uniform from none to the most that fit, and so is the key's place
    among them. A tokenizer without EOS adds none.

    Raises:
        DataError: ``length`` is too short for a prompt without filler, or the tokenizer cannot write digits.
    """
    key = _draw_key(rng)
    end = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    reply = answer_ids(tokenizer, key) + end
    split = _uniform_split(rng.random())
    most, ids = _fill(tokenizer, key, length - len(reply), split, length)
    sentences = int(rng.integers(0, most, endpoint=True))
    if sentences < most:
        before = split(sentences)
        ids = encode(tokenizer, passkey_text(key, before, sentences - before))
    return ids + reply


def answer_ids(tokenizer: "PreTrainedTokenizerBase", key: str) -> list[int]:
    """The token ids by which ``key`` continues the question.

    Raises:
        DataError: the tokenizer cannot write digits.
    """
    _measure(tokenizer)
    return _continuation(tokenizer, key)


def _draw_key(rng: np.random.Generator) -> str:
    return str(int(rng.integers(10_000, 100_000)))


def _split_at(depth: float) -> Callable[[int], int]:
    """Sentences before the key out of n: the nearest to ``depth * n``; grows with n by 0 or 1."""
    if not 0 <= depth <= 1:
        raise DataError(f"depth {depth} must lie between 0 (the key first) and 1 (the key last)")
    return lambda sentences: int(depth * sentences + 0.5)


def _uniform_split(u: float) -> Callable[[int], int]:
    """Sentences before the key out of n: uniform on 0..n for ``u`` uniform on [0, 1); grows by 0 or 1."""
    return lambda sentences: int(u * (sentences + 1))


def _fill(
    tokenizer: "PreTrainedTokenizerBase", key: str, room: int, split: Callable[[int], int], length: int
) -> tuple[int, list[int]]:
    """Find the most filler sentences for which the prompt has at most ``room`` tokens, and its ids.

    Counts are predicted from short pieces, which is exact wherever tokens do not cross sentences, so a
    prompt of any length is tokenised once. Where the prediction fails, the counts are measured instead.
    """
    bare = len(encode(tokenizer, passkey_text(key, 0, 0)))
    if bare > room:
        raise TooShortError(
            f"length {length} is too short for a passkey prompt: without filler it needs "
            f"{bare + length - room} tokens with its answer; ask for at least that (--lengths, or a recipe's "
            "evaluation.passkey_lengths), or for none (evaluation.passkey_trials=0)"
        )
    lines = _measure(tokenizer)

    def predicted(sentences: int) -> int:
        before = split(sentences)
        return bare + lines.before(before) + lines.after(sentences - before)

    def encoded(sentences: int) -> list[int]:
        before = split(sentences)
        return encode(tokenizer, passkey_text(key, before, sentences - before))

    candidates = range(room + 1)  # a sentence has at least one token
    most = bisect_right(candidates, room, key=predicted) - 1
    ids = encoded(most)
    if len(ids) != predicted(most):
        most = bisect_right(candidates, room, key=lambda sentences: len(encoded(sentences))) - 1
        ids = encoded(most)
    return most, ids


@dataclass(frozen=True)
class _FillerTokens:
    """Tokens that a filler line adds to the prompt: by its sentences 0..9, from there on by extrapolation."""

    before_key: list[int]
    after_key: list[int]

    def before(self, sentences: int) -> int:
        return self._extrapolate(self.before_key, sentences)

    def after(self, sentences: int) -> int:
        return self._extrapolate(self.after_key, sentences)

    @staticmethod
    def _extrapolate(counts: list[int], sentences: int) -> int:
        cycles = max(0, sentences // _CYCLE - 1)  # the second cycle on is like the second
        return counts[sentences - cycles * _CYCLE] + cycles * (counts[-1] - counts[-1 - _CYCLE])


@lru_cache(maxsize=8)
def _measure(tokenizer: "PreTrainedTokenizerBase") -> _FillerTokens:
    """Check once that the tokenizer can write digits, and measure its filler lines."""
    for digit in "0123456789":
        decoded = str(tokenizer.decode(_continuation(tokenizer, digit))).strip()
        if decoded != digit:
            raise DataError(
                f"the tokenizer writes the digit {digit} as {decoded!r}: a pass key must survive encoding "
                "and decoding; use a tokenizer whose vocabulary has all ten digits"
            )

    def added(before: int, after: int) -> int:
        return len(encode(tokenizer, passkey_text("12345", before, after))) - bare

    bare = len(encode(tokenizer, passkey_text("12345", 0, 0)))
    sentences = range(2 * _CYCLE)
    return _FillerTokens([added(n, 0) for n in sentences], [added(0, n) for n in sentences])


def _continuation(tokenizer: "PreTrainedTokenizerBase", word: str) -> list[int]:
    """Token ids of `` word`` after other words: at a text's start, some tokenizers would add a space."""
    context = "The pass key is"
    head, whole = encode(tokenizer, context), encode(tokenizer, f"{context} {word}")
    if whole[: len(head)] == head:
        return whole[len(head) :]
    return list(tokenizer(f" {word}", add_special_tokens=False)["input_ids"])  # tokens run across words


def encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Tokenise as the model is used to, but let the text go on: no EOS at its end."""
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]  # not verbose: long texts are meant here
    ends = ids and ids[-1] == tokenizer.eos_token_id
    return ids[:-1] if ends else ids
