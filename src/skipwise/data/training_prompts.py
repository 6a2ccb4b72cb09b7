"""Retrieval prompts to train on: facts told inside a document's own text, and asked for at its end.

Names and numbers come from the generators of the prompts that are measured (``retrieval_prompts``), the wording never:
a model that answers the measured prompts has learned to look a name up, not a template.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from skipwise.data.prompts import answer_ids
from skipwise.data.retrieval_prompts import draw_names
from skipwise.data.spans import agreeing
from skipwise.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A fact, and a question whose answer follows it; in those without a name the only number is asked for.
FORMS = (
    ("The {noun} of {name} is {number}.", "What is the {noun} of {name}? The {noun} of {name} is"),
    ("{number} is the {noun} of {name}.", "Which {noun} has {name}? The {noun} of {name} is"),
    ("{name} has {noun} {number}.", "Which {noun} has {name}? {name} has {noun}"),
    ("{name} keeps {number} coins.", "How many coins does {name} keep? {name} keeps"),
    ("Room {number} was given to {name}.", "Which room was given to {name}? Room"),
    ("{name} = {number}", "print({name})  #"),
    ("invoice {name}: {number} paid", "What was paid on invoice {name}? invoice {name}:"),
    ("Dial {number} to reach {name}.", "How is {name} reached? Dial"),
    ("- {name}, {number}", "Complete the entry: - {name},"),
)
_NAMELESS = (
    ("The {noun} is {number}.", "What is the {noun}? The {noun} is"),
    ("{number} is the {noun}. Keep it in mind.", "Tell me the {noun}. The {noun} is"),
    ("My {noun} is {number}, do not forget it.", "What is my {noun}? My {noun} is"),
    ("Remember the {noun} {number}.", "The {noun} to remember was"),
)
NOUNS = (
    "code",
    "number",
    "price",
    "account",
    "secret",
    "serial number",
    "weight",
    "area code",
    "score",
    "ticket number",
)
_TOKENS_A_FACT = 64  # of an example with text; a fact with its question takes about 40
_LEAST_TOKENS = 16  # of a fact and its question, by any tokenizer
_FACTS_A_FORM = 10  # drawn; of those about four find room in a register of 1,024 tokens
_MOST_FACTS, _MOST_QUESTIONS = 16, 4
_REGISTERS, _TOGETHER, _SAME_NUMBER = 0.4, 0.3, 0.25  # of the prompts; of those with text; of those with several facts
_WITHOUT_NAME = 0.5  # of the prompts of one fact


@dataclass(frozen=True)
class TrainingPrompt:
    """Token ids of an example that tells and asks, and which of them are trained."""

    ids: np.ndarray  # int64 [tokens]
    trained: np.ndarray  # bool [tokens]: the text and the answers; facts and questions cannot be predicted
    first_digits: np.ndarray  # bool [tokens]: of each answer the first token with a digit
    told: int  # tokens up to the end of the first fact
    asked: int  # tokens before the first question

    @property
    def text_follows(self) -> np.ndarray:
        """After which tokens text of the document follows, bool [tokens]."""
        following = np.arange(1, len(self.ids) + 1)
        return np.append(self.trained[1:], False) & (following < self.asked)


def training_prompt(tokenizer: "PreTrainedTokenizerBase", text: np.ndarray, rng: np.random.Generator) -> TrainingPrompt:
    """Draw a prompt of exactly ``len(text)`` tokens: ``text`` from its beginning, with facts in it and questions behind it.

    In 4 of 10 prompts as many facts as fit stand together, and every one is asked for, in any order: a register. In the
    others their number is 1, 2, 4, ..., up to one for each 64 tokens, at most 16, up to four of them are asked for, and
    their places in the text are uniform, or in 3 of 10 all one place. In a register of 1,024 tokens about four facts have one form
    (of 256: two or three, of 8k: nine): among 25 of one form the embedded model did not learn whose number is asked for.
    ``require_room`` says whether one fact fits.
    """
    register = rng.random() < _REGISTERS
    counts = [1 << k for k in range(_MOST_FACTS.bit_length()) if 1 << k <= max(1, len(text) // _TOKENS_A_FACT)]
    count = len(text) // _LEAST_TOKENS if register else int(rng.choice(counts))
    most_asked = count if register else int(rng.integers(1, min(count, _MOST_QUESTIONS) + 1))
    facts, answers, room = [], [], len(text)
    for number, (fact, question, answer) in enumerate(_facts(tokenizer, count, rng)):
        asked = number < most_asked
        needed = len(fact) + asked * (len(question) + len(answer))
        if needed > room:
            break
        room -= needed
        facts.append(fact)
        answers += [(question, answer)] * asked
    places = np.sort(rng.integers(min(1, room), room + 1, len(facts)))  # a text may begin with BOS
    if register or rng.random() < _TOGETHER:
        places[:] = rng.choice(places)
    order = rng.permutation(len(facts))
    answers = [answers[i] for i in rng.permutation(len(answers))]
    return _joined(tokenizer, text[:room], [facts[i] for i in order], places, answers)


def require_room(tokenizer: "PreTrainedTokenizerBase", train_length: int) -> None:
    """Refuse a train length that one fact and its question, in the longest form, do not fit, with as much text.

    Raises:
        DataError: says how many tokens are needed, or that the tokenizer cannot write numbers or names.
    """
    answer_ids(tokenizer, "9")  # refuses a tokenizer without digits
    noun = max(NOUNS, key=lambda noun: len(_encoded(tokenizer, noun)))
    said = {"noun": noun, "name": draw_names(np.random.default_rng(0), 1)[0], "number": "9" * 7}
    written = str(tokenizer.decode(_encoded(tokenizer, said["name"])))
    if said["name"] not in written.replace(" ", "").lower():
        raise DataError(
            f"the tokenizer turns the name {said['name']} into {written!r}, but retrieval prompts ask for facts by name; use "
            "a tokenizer of all letters, or set data.retrieval=0"
        )
    needed = 0
    for fact, question in FORMS + _NAMELESS:
        asked, answer = _question(tokenizer, question.format(**said), said["number"])
        needed = max(needed, 2 * (len(_encoded(tokenizer, f"\n{fact.format(**said)}\n")) + len(asked) + len(answer)))
    if needed > train_length:
        raise DataError(
            f"train length {train_length:,} is too short for retrieval prompts of {needed:,} tokens; raise it, or set "
            "data.retrieval=0"
        )


def _facts(
    tokenizer: "PreTrainedTokenizerBase", count: int, rng: np.random.Generator
) -> Iterator[tuple[list[int], list[int], list[int]]]:
    """Yield facts of a few forms in turn, each with its question and its answer, as token ids."""
    forms = _NAMELESS if count == 1 and rng.random() < _WITHOUT_NAME else FORMS
    drawn = [
        (forms[int(rng.integers(len(forms)))], NOUNS[int(rng.integers(len(NOUNS)))])
        for _ in range(math.ceil(count / _FACTS_A_FORM))
    ]
    names, numbers = draw_names(rng, count), [_number(rng) for _ in range(count)]
    if count > 1 and rng.random() < _SAME_NUMBER:
        numbers[1] = numbers[0]
    for ((fact, question), noun), name, number in zip(cycle(drawn), names, numbers, strict=False):
        said = {"noun": noun, "name": name, "number": number}
        yield _encoded(tokenizer, f"\n{fact.format(**said)}\n"), *_question(tokenizer, question.format(**said), number)


def _number(rng: np.random.Generator) -> str:
    """Draw a number of five to seven digits, each length as often."""
    digits = int(rng.integers(5, 8))
    return str(rng.integers(10 ** (digits - 1), 10**digits))


def _joined(
    tokenizer: "PreTrainedTokenizerBase",
    text: np.ndarray,
    facts: list[list[int]],
    places: np.ndarray,
    answers: list[tuple[list[int], list[int]]],
) -> TrainingPrompt:
    pieces: list[tuple[list[int], bool]] = []
    for before, place, fact in zip([0, *places], places, facts, strict=False):
        pieces += [(text[before:place].tolist(), True), (fact, False)]
    told = len(pieces[0][0]) + len(facts[0])
    pieces.append((text[places[-1] :].tolist(), True))
    asked = end = sum(len(ids) for ids, _ in pieces)
    places_of_digits = []
    for question, answer in answers:
        pieces += [(question, False), (answer, True)]
        places_of_digits.append(end + len(question) + _before_digits(tokenizer, answer))
        end += len(question) + len(answer)
    ids = np.concatenate([np.array(ids, dtype=np.int64) for ids, _ in pieces])
    trained = np.repeat([trained for _, trained in pieces], [len(ids) for ids, _ in pieces])
    first_digits = np.zeros(len(ids), dtype=bool)
    first_digits[places_of_digits] = True
    return TrainingPrompt(ids, trained, first_digits, told, asked)


def _before_digits(tokenizer: "PreTrainedTokenizerBase", answer: list[int]) -> int:
    """How many tokens of an answer stand before the first one with a digit: in many tokenizers one, a space."""
    decoded = (str(tokenizer.decode(answer[: end + 1])) for end in range(len(answer)))
    return next((place for place, text in enumerate(decoded) if any(map(str.isdigit, text))), 0)


def _question(tokenizer: "PreTrainedTokenizerBase", text: str, number: str) -> tuple[list[int], list[int]]:
    """Return the ids of a question and of its answer, to the end of the line."""
    alone, whole = _encoded(tokenizer, f"\n{text}"), _encoded(tokenizer, f"\n{text} {number}\n")
    same = agreeing(alone, whole)
    return whole[:same], whole[same:]


def _encoded(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
