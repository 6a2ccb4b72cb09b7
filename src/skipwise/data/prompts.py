"""Prompts of every task: their longest form that fits a number of tokens, measured by the model's own tokenizer.

Ids are those of a text that goes on: the tokenizer adds its usual special tokens at the beginning and no EOS at the end. An
answer has the ids with which it continues the question.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from skipwise.errors import DataError, TooShortError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
    reserved: int = 0  # of ``length``, kept free after the answer
    what: str = "a retrieval prompt"  # in the message of the error

    def measured(self, text: str, answer: str) -> tuple[list[int], int]:
        """Return the ids of a prompt, and the tokens that it takes with its answer and what is reserved."""
        ids = encode(self.tokenizer, text)
        return ids, len(ids) + (len(answer_ids(self.tokenizer, answer)) if answer else 0) + self.reserved

    def too_short(self, shortest: int) -> TooShortError:
        """Return the error where even the shortest prompt, of ``shortest`` tokens with its answer, does not fit."""
        return TooShortError(
            f"length {self.length} is too short for {self.what}: the shortest has {shortest} tokens with its answer; choose at "
            "least that (--lengths, evaluation.prompt_lengths), or no prompts",
            shortest=shortest,
        )


def longest_prompt(
    room: Room, drawn: Callable[[int], tuple[str, str]], parts: range, *, each: float = 10.0
) -> tuple[int, list[int]]:
    """Return the most parts that fit the room as a prompt with its answer, and the prompt's ids.

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


def answer_ids(tokenizer: "PreTrainedTokenizerBase", key: str) -> list[int]:
    """Return the token ids with which ``key`` continues the question."""
    require_digits(tokenizer)
    return _continuation(tokenizer, key)


def encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Return the token ids of a text that goes on: with the usual special tokens, but no EOS at the end."""
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]  # verbose would warn about long texts
    ends = ids and ids[-1] == tokenizer.eos_token_id
    return ids[:-1] if ends else ids


@lru_cache(maxsize=8)
def require_digits(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Require, once, a tokenizer that can write digits."""
    for digit in "0123456789":
        decoded = str(tokenizer.decode(_continuation(tokenizer, digit))).strip()
        if decoded != digit:
            raise DataError(
                f"the tokenizer turns the digit {digit} into {decoded!r}, but a pass key must survive encoding and "
                "decoding; use a tokenizer with all ten digits"
            )


def _continuation(tokenizer: "PreTrainedTokenizerBase", word: str) -> list[int]:
    """Return the token ids of `` word`` after other words; at the start of a text some tokenizers add a space."""
    context = "The pass key is"
    head, whole = encode(tokenizer, context), encode(tokenizer, f"{context} {word}")
    if whole[: len(head)] == head:
        return whole[len(head) :]
    return list(tokenizer(f" {word}", add_special_tokens=False)["input_ids"])  # tokens run across words
