"""Retrieval prompts: a number hidden in filler text, or in a register of other numbers, and asked for at the end.

The passkey is that of the PoSE paper (Mohtashami and Jaggi, 2023). It is the only number in its prompt, so a model that finds
any number passes. The prompts of ``keys_prompt`` hold several keys, those of ``lines_prompt`` nothing but numbers, and the
question names one of them (after LongChat: Li et al., "How Long Can Open-Source LLMs Truly Promise on Context Length?", 2023).

A prompt is the longest that fits a number of tokens together with its answer, measured by the model's own tokenizer. To add a
task, write its prompt function and enter it in ``TASKS``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from skipwise.errors import TooShortError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HEAD = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.\n"
)
_KEYS_HEAD = (
    "There are several pass keys hidden inside a lot of irrelevant text. Find them and memorize them. "
    "I will quiz you about one of them.\n"
)
_LINES_HEAD = (
    "Below is a register. Every line has a name and a number. Remember them all, for one of them will be asked for.\n"
)
_SENTENCES = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")
_SENTENCE_TOKENS = 6.0  # about, by usual tokenizers
_LEAST_LINE = 4  # tokens; a line always has more
_KEYS = 4
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


# --- the longest prompt that fits ---


@dataclass(frozen=True)
class Prompt:
    """A prompt and its answer."""

    ids: list[int]  # token ids of the prompt; they end with the question
    answer: str  # the number asked for
    depth: float  # share of the filler before the number, in [0, 1]


def longest_prompt(
    tokenizer: "PreTrainedTokenizerBase",
    length: int,
    drawn: Callable[[int], tuple[str, str]],
    parts: range,
    *,
    each: float = 10.0,
    reserved: int = 0,
    what: str = "a retrieval prompt",
) -> tuple[int, list[int]]:
    """Return the most parts that fit ``length`` tokens as a prompt with its answer, and the prompt's ids.

    The tokens grow almost linearly with the parts, so each step tries the count at which a line through the nearest two
    measurements meets the length.

    Args:
        drawn: returns prompt and answer for a number of ``parts``; an empty answer if ``reserved`` tokens hold it.
        each: tokens that a part has, or a few times as many: where the search begins.
        what: the prompt's name in the message of the error.

    Raises:
        TooShortError: not even the fewest parts fit.
    """

    def measured(count: int) -> tuple[list[int], int]:
        text, answer = drawn(count)
        ids = encode(tokenizer, text)
        return ids, len(ids) + (len(answer_ids(tokenizer, answer)) if answer else 0) + reserved

    low, high = parts[0], parts[-1] + 1
    ids, fits = measured(low)
    if fits > length:
        raise TooShortError(
            f"length {length} is too short for {what}: the shortest has {fits} tokens with its answer; choose at "
            "least that (--lengths, evaluation.prompt_lengths), or no prompts",
            shortest=fits,
        )
    exceeds = None  # tokens of the shortest prompt that does not fit; ``fits`` has the longest that does
    while high - low > 1:
        if exceeds is not None:
            each = max(1.0, (exceeds - fits) / (high - low))
        middle = min(max(low + int((length - fits) / each), low + 1), high - 1)
        longer, needed = measured(middle)
        if needed <= length:
            each = max(1.0, (needed - fits) / (middle - low))
            low, ids, fits = middle, longer, needed
        else:
            high, exceeds = middle, needed
    return low, ids


def encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Return the token ids of a text that goes on: with the usual special tokens, but no EOS at the end."""
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]  # verbose would warn about long texts
    return ids[:-1] if ids[-1:] == [tokenizer.eos_token_id] else ids


def answer_ids(tokenizer: "PreTrainedTokenizerBase", key: str) -> list[int]:
    """Return the token ids with which ``key`` continues the question; at the start of a text some tokenizers add a space."""
    question = "The pass key is"
    before, ids = encode(tokenizer, question), encode(tokenizer, f"{question} {key}")
    if ids[: len(before)] == before:
        return ids[len(before) :]
    return list(tokenizer(f" {key}", add_special_tokens=False)["input_ids"])  # tokens run across words


# --- the tasks ---


def filler(sentences: int, first: int = 0) -> str:
    """Return filler sentences, joined by spaces, from number ``first`` of the endless cycle on."""
    return " ".join(_SENTENCES[i % len(_SENTENCES)] for i in range(first, first + sentences))


def passkey_text(key: str, before: int, after: int) -> str:
    """Return a prompt with ``before`` filler sentences before ``key`` and ``after`` after it."""
    lines = [filler(before), f"The pass key is {key}. Remember it. {key} is the pass key.", filler(after)]
    return _HEAD + "".join(f"{line}\n" for line in lines if line) + "What is the pass key? The pass key is"


def passkey_prompt(
    tokenizer: "PreTrainedTokenizerBase", length: int, rng: np.random.Generator, depth: float | None = None
) -> Prompt:
    """Draw the longest passkey prompt that fits ``length`` tokens together with its answer.

    ``depth`` is the share of the filler before the key, 0 to 1; default: uniform.
    """
    key = str(int(rng.integers(10_000, 100_000)))
    share = rng.random() if depth is None else depth

    def before(sentences: int) -> int:  # uniform on 0..sentences, or nearest to the depth
        return int(share * (sentences + 1)) if depth is None else int(share * sentences + 0.5)

    def drawn(sentences: int) -> tuple[str, str]:
        return passkey_text(key, before(sentences), sentences - before(sentences)), key

    most, ids = longest_prompt(tokenizer, length, drawn, range(max(length, 0) + 1), each=_SENTENCE_TOKENS)
    return Prompt(ids, key, before(most) / most if most else 0.0)


def keys_prompt(
    tokenizer: "PreTrainedTokenizerBase", length: int, rng: np.random.Generator, depth: float | None = None
) -> Prompt:
    """Draw a prompt of filler with four named pass keys, one of which is asked for; ``depth`` is that key's."""
    names, keys = _names(rng, _KEYS), _numbers(rng, _KEYS)
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

    most, ids = longest_prompt(tokenizer, length, drawn, range(max(length, 0) + 1))
    return Prompt(ids, keys[0], int(places[0] * most + 0.5) / most if most else 0.0)


def lines_prompt(
    tokenizer: "PreTrainedTokenizerBase", length: int, rng: np.random.Generator, depth: float | None = None
) -> Prompt:
    """Draw a register of lines with a name and a number each, one of which is asked for; ``depth`` is that line's."""
    most = max(2, length // _LEAST_LINE)
    names, numbers = _names(rng, most), _numbers(rng, most)
    place = rng.random() if depth is None else depth
    lines = [f"line {name}: the number is {number}.\n" for name, number in zip(names, numbers, strict=True)]

    def target(count: int) -> int:
        return min(int(place * count), count - 1)

    def drawn(count: int) -> tuple[str, str]:
        name = names[target(count)]
        question = f"What is the number in line {name}? In line {name}, the number is"
        return _LINES_HEAD + "".join(lines[:count]) + question, numbers[target(count)]

    count, ids = longest_prompt(tokenizer, length, drawn, range(2, most + 1))
    return Prompt(ids, numbers[target(count)], target(count) / (count - 1))


@dataclass(frozen=True)
class Task:
    """A retrieval task: its name in reports, and the function that draws its prompts."""

    title: str
    prompt: Callable[..., Prompt]  # with the arguments of ``passkey_prompt``


TASKS: dict[str, Task] = {
    "passkey": Task("passkey", passkey_prompt),
    "keys": Task("one key of four", keys_prompt),
    "lines": Task("one line of a register", lines_prompt),
}


def _names(rng: np.random.Generator, count: int) -> list[str]:
    """Draw different names of four syllables, such as bado-kemi."""
    kinds = len(_SYLLABLES)
    drawn = rng.choice(kinds**4, size=count, replace=False).tolist()
    syllables = [[_SYLLABLES[value // kinds**k % kinds] for k in range(4)] for value in drawn]
    return [f"{first}{second}-{third}{fourth}" for first, second, third, fourth in syllables]


def _numbers(rng: np.random.Generator, count: int) -> list[str]:
    """Draw numbers of five digits, all different up to 90,000 of them."""
    return [str(10_000 + n) for n in rng.choice(90_000, size=count, replace=count > 90_000).tolist()]
