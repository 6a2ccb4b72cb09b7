"""Two harder relatives of the passkey: several keys in one text, and one line of a register of many.

A passkey is the only number in its prompt, so that a model which finds any number passes. Here every prompt holds several
(``keys_prompt``) or nothing else (``lines_prompt``, after the lines of LongChat: Li et al., "How Long Can Open-Source LLMs
Truly Promise on Context Length?", 2023), and the question names the one that is asked for.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from skipwise.data.passkey import Prompt, answer_ids, encode, filler
from skipwise.errors import TooShortError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_KEYS = 4
_KEYS_HEAD = (
    "There are several pass keys hidden inside a lot of irrelevant text. Find them and memorize them. "
    "I will quiz you about one of them.\n"
)
_LINES_HEAD = "Below is a register. Every line has a name and a number. Remember them all, for one of them will be asked for.\n"
_LEAST_LINE = 4  # tokens, by far
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_SYLLABLES = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]


def keys_prompt(
    tokenizer: "PreTrainedTokenizerBase",
    length: int,
    rng: np.random.Generator,
    depth: float | None = None,
) -> Prompt:
    """Draw a prompt of filler with four named pass keys, one of which is asked for.

    Args:
        tokenizer: the model's own.
        length: tokens of prompt and answer at the most; reached to within one sentence of filler.
        rng: draws names, keys and places.
        depth: of the key asked for, the share of the filler before it; default: uniform.

    Raises:
        DataError: ``length`` is too short for a prompt without filler, or the tokenizer cannot write digits.
    """
    names, keys = _names(rng, _KEYS), _numbers(rng, _KEYS)
    places = rng.random(_KEYS)
    if depth is not None:
        places[0] = depth
    order = np.argsort(places, kind="stable")

    def drawn(sentences: int) -> tuple[str, str]:
        lines, done = [_KEYS_HEAD], 0
        for i in order:
            before = int(places[i] * sentences + 0.5)
            lines.append(filler(before - done, done) + "\n" if before > done else "")
            lines.append(
                f"The pass key of {names[i]} is {keys[i]}. Remember it. {keys[i]} is the pass key of {names[i]}.\n"
            )
            done = before
        lines.append(filler(sentences - done, done) + "\n" if sentences > done else "")
        question = f"What is the pass key of {names[0]}? The pass key of {names[0]} is"
        return "".join(lines) + question, keys[0]

    most, ids = _longest(tokenizer, drawn, length, 0, length)
    return Prompt(ids, keys[0], int(places[0] * most + 0.5) / most if most else 0.0)


def lines_prompt(
    tokenizer: "PreTrainedTokenizerBase",
    length: int,
    rng: np.random.Generator,
    depth: float | None = None,
) -> Prompt:
    """Draw a register of lines, each a name and a number; the number of one of them is asked for.

    Args:
        tokenizer: the model's own.
        length: tokens of prompt and answer at the most; reached to within one line.
        rng: draws names, numbers, and the line asked for.
        depth: of the line asked for, the share of the lines before it; default: uniform.

    Raises:
        DataError: ``length`` is too short for a register of two lines, or the tokenizer cannot write digits.
    """
    most = max(2, length // _LEAST_LINE)
    names, numbers = _names(rng, most), _numbers(rng, most)
    place = rng.random() if depth is None else depth
    lines = [f"line {name}: the number is {number}.\n" for name, number in zip(names, numbers, strict=True)]

    def asked(count: int) -> int:
        return min(int(place * count), count - 1)

    def drawn(count: int) -> tuple[str, str]:
        name = names[asked(count)]
        question = f"What is the number in line {name}? In line {name}, the number is"
        return _LINES_HEAD + "".join(lines[:count]) + question, numbers[asked(count)]

    count, ids = _longest(tokenizer, drawn, length, 2, most)
    return Prompt(ids, numbers[asked(count)], asked(count) / (count - 1))


def _longest(
    tokenizer: "PreTrainedTokenizerBase",
    drawn: Callable[[int], tuple[str, str]],
    length: int,
    least: int,
    most: int,
) -> tuple[int, list[int]]:
    """How many parts, ``least`` to ``most``, make the longest prompt that fits with its answer, and its ids.

    The number of tokens is nearly linear in the parts: each step aims at the last part that fits, by the tokens a part
    measured so far, and narrows the span in which it lies.

    Args:
        tokenizer: the model's own.
        drawn: prompt and answer of so many parts.
        length: tokens of both at the most.
        least: parts that a prompt must have.
        most: parts that there are.

    Raises:
        DataError: not even ``least`` parts fit.
    """

    def tried(parts: int) -> tuple[list[int], int]:
        text, answer = drawn(parts)
        ids = encode(tokenizer, text)
        return ids, len(ids) + len(answer_ids(tokenizer, answer))

    ids, bare = tried(least)
    if bare > length:
        raise TooShortError(
            f"length {length} is too short for this prompt: its shortest needs {bare} tokens with its answer; ask for "
            "at least that"
        )
    low, high, tokens, each = least, most + 1, bare, 10.0
    while high - low > 1:
        middle = min(max(low + int((length - tokens) / each), low + 1), high - 1)
        found, needed = tried(middle)
        each = max(1.0, (needed - bare) / (middle - least))
        if needed <= length:
            low, ids, tokens = middle, found, needed
        else:
            high = middle
    return low, ids


def _names(rng: np.random.Generator, count: int) -> list[str]:
    """Different names of four syllables, as bado-kemi."""
    kinds = len(_SYLLABLES)
    drawn = rng.choice(kinds**4, size=count, replace=False)
    names = []
    for value in drawn.tolist():
        first, second, third, fourth = (_SYLLABLES[value // kinds**k % kinds] for k in range(4))
        names.append(f"{first}{second}-{third}{fourth}")
    return names


def _numbers(rng: np.random.Generator, count: int) -> list[str]:
    """Numbers of five digits, different as far as there are as many."""
    return [str(10_000 + n) for n in rng.choice(90_000, size=count, replace=count > 90_000).tolist()]
