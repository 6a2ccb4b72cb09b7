"""Passkey prompts: five digits hidden in filler text, asked for at the end (Mohtashami and Jaggi, 2023).

The text is that of the PoSE paper's passkey figure. The model's own tokenizer measures the length of a prompt; its
``depth`` is the share of the filler that stands before the key.
"""

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
_SENTENCES = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")
_SENTENCE_TOKENS = 6.0  # about, by usual tokenizers
_ANY = "a retrieval prompt"  # in messages
_QUESTION = "What is the pass key? The pass key is"


@dataclass(frozen=True)
class Prompt:
    """A prompt and its answer."""

    ids: list[int]  # token ids of the prompt; they end with the question
    answer: str  # the number asked for
    depth: float  # share of the filler before the number, in [0, 1]


@dataclass(frozen=True)
class Room:
    """The tokens that a prompt and its answer may take together."""

    tokenizer: "PreTrainedTokenizerBase"
    length: int
    reserved: int = 0  # of ``length``, kept free behind the answer
    what: str = _ANY  # the prompt in the message of the error

    def measured(self, text: str, answer: str) -> tuple[list[int], int]:
        """Return the ids of a prompt, and the tokens that it takes with its answer and what is reserved."""
        ids = encode(self.tokenizer, text)
        return ids, len(ids) + (len(answer_ids(self.tokenizer, answer)) if answer else 0) + self.reserved

    def too_short(self, shortest: int) -> TooShortError:
        """Return the error where even the shortest prompt, of ``shortest`` tokens with its answer, does not fit."""
        return TooShortError(
            f"length {self.length} is too short for {self.what}: the shortest has {shortest} tokens with its answer; choose at "
            f"least that (--lengths, evaluation.passkey_lengths{', or train_length with data.passkey' * (self.what == _ANY)}), or no "
            "prompts",
            shortest=shortest,
        )


def filler(sentences: int, first: int = 0) -> str:
    """Return filler sentences, joined by spaces, from number ``first`` of the endless cycle on."""
    return " ".join(_SENTENCES[i % len(_SENTENCES)] for i in range(first, first + sentences))


def passkey_text(key: str, before: int, after: int) -> str:
    """Return a prompt with ``before`` filler sentences before ``key`` and ``after`` behind it."""
    lines = [filler(before), f"The pass key is {key}. Remember it. {key} is the pass key.", filler(after)]
    return _HEAD + "".join(f"{line}\n" for line in lines if line) + _QUESTION


def passkey_prompt(
    tokenizer: "PreTrainedTokenizerBase", length: int, rng: np.random.Generator, depth: float | None = None
) -> Prompt:
    """Draw the longest passkey prompt that fits ``length`` tokens together with its answer.

    One more sentence of filler, at the same depth, would not fit. ``depth`` is the share of the filler before the key,
    uniform by default. The tokenizer, the model's own, adds its usual special tokens, but no EOS at the end.
    """
    key, split = _drawn_key_and_split(rng, depth)
    most, ids = _fill(Room(tokenizer, length), key, split)
    return Prompt(ids, key, split(most) / most if most else 0.0)


def training_passkey(tokenizer: "PreTrainedTokenizerBase", length: int, rng: np.random.Generator) -> list[int]:
    """Draw a passkey prompt with its answer and EOS to train on: at most ``length`` token ids.

    The number of filler sentences is uniform between none and the most that fit, and the key's place among them is
    uniform. A tokenizer without EOS adds none.
    """
    key, split = _drawn_key_and_split(rng)
    end = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    most, ids = _fill(Room(tokenizer, length, reserved=len(end)), key, split)
    sentences = int(rng.integers(0, most, endpoint=True))
    if sentences < most:
        before = split(sentences)
        ids = encode(tokenizer, passkey_text(key, before, sentences - before))
    return ids + answer_ids(tokenizer, key) + end


def answer_ids(tokenizer: "PreTrainedTokenizerBase", key: str) -> list[int]:
    """Return the token ids with which ``key`` continues the question."""
    _require_digits(tokenizer)
    return _continuation(tokenizer, key)


def longest_prompt(
    room: Room, drawn: Callable[[int], tuple[str, str]], parts: range, *, each: float = 10.0
) -> tuple[int, list[int]]:
    """Return the largest number of parts whose prompt fits the room with its answer, and that prompt's ids.

    The tokens grow almost linearly with the parts, so each step tries the count at which a line through the nearest two
    measurements meets the room's length.

    Args:
        drawn: returns prompt and answer for a number of parts; an empty answer if the room reserves what it takes.
        each: tokens that a part has, or a few times as many: where the search begins.

    Raises:
        TooShortError: not even the fewest parts fit.
    """
    low, high = parts[0], parts[-1] + 1
    ids, fits = room.measured(*drawn(low))
    if fits > room.length:
        raise room.too_short(fits)
    exceeds = None  # tokens of the shortest prompt that does not fit; ``fits`` has the longest that does
    while high - low > 1:
        if exceeds is not None:
            each = max(1.0, (exceeds - fits) / (high - low))
        middle = min(max(low + int((room.length - fits) / each), low + 1), high - 1)
        found, needed = room.measured(*drawn(middle))
        if needed <= room.length:
            each = max(1.0, (needed - fits) / (middle - low))
            low, ids, fits = middle, found, needed
        else:
            high, exceeds = middle, needed
    return low, ids


def _drawn_key_and_split(rng: np.random.Generator, depth: float | None = None) -> tuple[str, Callable[[int], int]]:
    """Draw a key, and the function from n filler sentences to those before it: nearest to a depth, or uniform on 0..n.

    One more sentence adds 0 or 1 to those before the key.
    """
    key = str(int(rng.integers(10_000, 100_000)))
    if depth is None:
        u = rng.random()
        return key, lambda sentences: int(u * (sentences + 1))
    if not 0 <= depth <= 1:
        raise DataError(f"depth {depth} must lie between 0 (the key first) and 1 (the key last)")
    return key, lambda sentences: int(depth * sentences + 0.5)


def _fill(room: Room, key: str, split: Callable[[int], int]) -> tuple[int, list[int]]:
    """Return the most filler sentences that fit, and the prompt's ids."""

    def drawn(sentences: int) -> tuple[str, str]:
        return passkey_text(key, split(sentences), sentences - split(sentences)), key

    _require_digits(room.tokenizer)
    return longest_prompt(room, drawn, range(max(room.length, 0) + 1), each=_SENTENCE_TOKENS)


@lru_cache(maxsize=8)
def _require_digits(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Require, once, a tokenizer that can write digits."""
    for digit in "0123456789":
        decoded = str(tokenizer.decode(_continuation(tokenizer, digit))).strip()
        if decoded != digit:
            raise DataError(
                f"the tokenizer turns the digit {digit} into {decoded!r}, but a pass key must survive encoding and "
                "decoding; use a tokenizer whose vocabulary has all ten digits"
            )


def _continuation(tokenizer: "PreTrainedTokenizerBase", word: str) -> list[int]:
    """Return the token ids of `` word`` after other words; at the start of a text some tokenizers add a space."""
    context = "The pass key is"
    head, whole = encode(tokenizer, context), encode(tokenizer, f"{context} {word}")
    if whole[: len(head)] == head:
        return whole[len(head) :]
    return list(tokenizer(f" {word}", add_special_tokens=False)["input_ids"])  # tokens run across words


def encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Return the token ids of a text that goes on: with the usual special tokens, but no EOS at the end."""
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]  # verbose would warn about long texts
    ends = ids and ids[-1] == tokenizer.eos_token_id
    return ids[:-1] if ends else ids
