"""Passkey prompts: five digits hidden in filler text, asked for at the end (Mohtashami and Jaggi, 2023).

The text is that of the PoSE paper's passkey figure. The model's own tokenizer measures the length of a prompt; its
``depth`` is the share of the filler before the key.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from skipwise.data.prompts import Prompt, Room, longest_prompt, require_digits
from skipwise.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HEAD = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.\n"
)
_SENTENCES = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")
_SENTENCE_TOKENS = 6.0  # about, by usual tokenizers
_QUESTION = "What is the pass key? The pass key is"


def filler(sentences: int, first: int = 0) -> str:
    """Return filler sentences, joined by spaces, from number ``first`` of the endless cycle on."""
    return " ".join(_SENTENCES[i % len(_SENTENCES)] for i in range(first, first + sentences))


def passkey_text(key: str, before: int, after: int) -> str:
    """Return a prompt with ``before`` filler sentences before ``key`` and ``after`` after it."""
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

    require_digits(room.tokenizer)
    return longest_prompt(room, drawn, range(max(room.length, 0) + 1), each=_SENTENCE_TOKENS)
