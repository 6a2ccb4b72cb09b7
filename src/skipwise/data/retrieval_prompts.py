"""Retrieval tasks: the passkey, one key of several, and one line of a register.

A passkey is the only number in its prompt, so a model that finds any number passes. The prompts of ``keys_prompt``
hold several keys, those of ``lines_prompt`` nothing but numbers, and the question names the one that is asked for
(after the lines of LongChat: Li et al., "How Long Can Open-Source LLMs Truly Promise on Context Length?", 2023).

To add a task, write its prompt function and enter it in ``TASKS``, the only list of them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from skipwise.data.passkey import filler, passkey_prompt
from skipwise.data.prompts import Prompt, Room, longest_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_KEYS = 4
_KEYS_HEAD = (
    "There are several pass keys hidden inside a lot of irrelevant text. Find them and memorize them. "
    "I will quiz you about one of them.\n"
)
_LINES_HEAD = (
    "Below is a register. Every line has a name and a number. Remember them all, for one of them will be asked for.\n"
)
_LEAST_LINE = 4  # tokens; a line always has more
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_SYLLABLES = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]


class DrawPrompt(Protocol):
    """The signature of every prompt function; ``passkey_prompt`` documents the arguments."""

    def __call__(
        self, tokenizer: "PreTrainedTokenizerBase", length: int, rng: np.random.Generator, depth: float | None = None
    ) -> Prompt: ...


def keys_prompt(
    tokenizer: "PreTrainedTokenizerBase", length: int, rng: np.random.Generator, depth: float | None = None
) -> Prompt:
    """Draw a prompt of filler with four named pass keys, one of which is asked for; ``depth`` is that key's."""
    names, keys = draw_names(rng, _KEYS), _numbers(rng, _KEYS)
    places = rng.random(_KEYS)
    if depth is not None:
        places[0] = depth
    order = np.argsort(places, kind="stable")

    def drawn(sentences: int) -> tuple[str, str]:
        lines, done = [], 0
        for i in order:
            before = int(places[i] * sentences + 0.5)
            key = f"The pass key of {names[i]} is {keys[i]}. Remember it. {keys[i]} is the pass key of {names[i]}."
            lines += [filler(before - done, done), key]
            done = before
        lines.append(filler(sentences - done, done))
        question = f"What is the pass key of {names[0]}? The pass key of {names[0]} is"
        return _KEYS_HEAD + "".join(f"{line}\n" for line in lines if line) + question, keys[0]

    most, ids = longest_prompt(Room(tokenizer, length), drawn, range(max(length, 0) + 1))
    return Prompt(ids, keys[0], int(places[0] * most + 0.5) / most if most else 0.0)


def lines_prompt(
    tokenizer: "PreTrainedTokenizerBase", length: int, rng: np.random.Generator, depth: float | None = None
) -> Prompt:
    """Draw a register of lines with a name and a number each, one of which is asked for; ``depth`` is that line's."""
    most = max(2, length // _LEAST_LINE)
    names, numbers = draw_names(rng, most), _numbers(rng, most)
    place = rng.random() if depth is None else depth
    lines = [f"line {name}: the number is {number}.\n" for name, number in zip(names, numbers, strict=True)]

    def asked(count: int) -> int:
        return min(int(place * count), count - 1)

    def drawn(count: int) -> tuple[str, str]:
        name = names[asked(count)]
        question = f"What is the number in line {name}? In line {name}, the number is"
        return _LINES_HEAD + "".join(lines[:count]) + question, numbers[asked(count)]

    count, ids = longest_prompt(Room(tokenizer, length), drawn, range(2, most + 1))
    return Prompt(ids, numbers[asked(count)], asked(count) / (count - 1))


@dataclass(frozen=True)
class Task:
    """A retrieval task: its name in reports, and the function that draws its prompts."""

    title: str
    prompt: DrawPrompt


TASKS: dict[str, Task] = {
    "passkey": Task("passkey", passkey_prompt),
    "keys": Task("one key of four", keys_prompt),
    "lines": Task("one line of a register", lines_prompt),
}


def draw_names(rng: np.random.Generator, count: int) -> list[str]:
    """Draw different names of four syllables, such as bado-kemi."""
    kinds = len(_SYLLABLES)
    drawn = rng.choice(kinds**4, size=count, replace=False).tolist()
    syllables = [[_SYLLABLES[value // kinds**k % kinds] for k in range(4)] for value in drawn]
    return [f"{first}{second}-{third}{fourth}" for first, second, third, fourth in syllables]


def _numbers(rng: np.random.Generator, count: int) -> list[str]:
    """Draw numbers of five digits, all different up to 90,000 of them."""
    return [str(10_000 + n) for n in rng.choice(90_000, size=count, replace=count > 90_000).tolist()]
