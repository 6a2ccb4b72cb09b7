"""The prompts of RULER's tasks: for each task the ways to make its prompt, and the draw for a number of units.

| task    | a unit                                                                    |
| niah_*  | a repeated line, a word of the essays, or a needle that nobody asks for   |
| vt      | a line of five sentences                                                  |
| cwe     | a different word                                                          |
| fwe     | a word of the coded text before rounding                                  |
| qa_*    | a document                                                                |

Needles: keys are drawn with replacement, as in RULER. ``vt``: from 4,096 tokens on the example has as many lines as fit 500
tokens in steps of five, as in RULER; below, or where five do not fit, as few as its chain needs. ``cwe``: the forms of
``common_forms`` are tried in order; the first two are RULER's. There are 8,166 words; if they do not suffice, all are
repeated more often. ``fwe``: of n units the k-th word has n / (k^2 * zeta(2)), rounded down; the first are dots. With fewer
than 53 units the third and the fourth word may be equally frequent. One word is drawn for each 50 tokens of length, as in RULER.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from math import pi
from random import Random
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Literal
from uuid import UUID

import numpy as np

from skipwise.data.prompts import longest_prompt
from skipwise.data.ruler.sources import (
    SHUFFLE_SEED,
    Library,
    RulerData,
    common_words,
    key_words,
    read_library,
    sentences,
)
from skipwise.errors import TooShortError

_FULL_SIZE = 4096  # tokens; from here on RULER's tasks have their full size


@dataclass(frozen=True)
class Drawn:
    """A prompt as text, with its answers."""

    text: str
    answers: tuple[str, ...]
    depth: float | None = None  # share of the haystack before the one needle asked for


@dataclass(frozen=True)
class PromptRequest:
    """A request for one prompt."""

    tokenizer: Any  # the model's
    length: int  # tokens of the prompt and its answer
    seed: int  # of 32 bits: Python's generator and numpy's are both seeded with it, as RULER seeds them
    trial: int
    data: RulerData

    def units(self, fewest: int) -> range:
        """Return the numbers of units to search; a unit is taken to have at least a quarter of a token."""
        return range(fewest, max(fewest, 4 * self.length) + 1)


@dataclass(frozen=True)
class Form:
    """A way to make a prompt: what it is for each number of units.

    ``draw`` starts from the seed each time, so the prompt for a number of units does not depend on the search.
    """

    draw: Callable[[int], Drawn]
    units: range
    tokens: float  # that a unit has, times four: the search begins with a prompt of a quarter of the length
    real_data: bool = True  # these are RULER's texts

    def text(self, units: int) -> tuple[str, str]:
        """Return the text, and no answer: the task reserves its tokens."""
        return self.draw(units).text, ""


# --- needles ---

Haystack = Literal["repeat", "essay", "needle"]
Kind = Literal["words", "numbers", "uuids"]

_NEEDLES_TEMPLATE = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. I will quiz you about the "
    "{kind} afterwards.\n{context}\nWhat are all the special magic {kind} for {query} mentioned in the provided text? "
    "The special magic {kind} for {query} mentioned in the provided text are"
)
_NEEDLE_TEMPLATE = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you about the "
    "{kind} afterwards.\n{context}\nWhat is the special magic {kind} for {query} mentioned in the provided text? "
    "The special magic {kind} for {query} mentioned in the provided text is"
)
_NEEDLE = "One of the special magic {kind} for {key} is: {value}."
_REPEATED = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
_DEPTHS = [round(100 * i / 39) for i in range(40)]  # per cent
_UNIT_TOKENS = {"repeat": 100.0, "essay": 6.0, "needle": 120.0}


@dataclass(frozen=True)
class Kinds:
    """What hides the needles, and what their keys and values are."""

    haystack: Haystack
    key: Kind
    value: Kind


def needle_forms(kinds: Kinds, request: PromptRequest, *, keys: int, values: int, queries: int) -> list[Form]:
    """Return the one form of a needle task; there are at least as many keys as queries."""
    keys = max(keys, queries)
    essay, data = kinds.haystack == "essay", request.data
    draw = partial(draw_needles, request.seed, kinds=kinds, data=data, keys=keys, values=values, queries=queries)
    units = request.units(1 if essay else keys * values)
    return [Form(draw, units, _UNIT_TOKENS[kinds.haystack], data.real_essays or not essay)]


def draw_needles(
    seed: int, units: int, *, kinds: Kinds, keys: int, values: int, queries: int, data: RulerData
) -> Drawn:
    """Draw a prompt with ``units`` units of haystack, and ``queries`` of its ``keys`` asked for; the draws have RULER's order."""
    rng = Random(seed)
    hidden = [(_item(rng, kinds.key), [_item(rng, kinds.value) for _ in range(values)]) for _ in range(keys)]
    needles = [(key, value) for key, of_key in hidden for value in of_key]
    Random(SHUFFLE_SEED).shuffle(needles)
    lines = [_NEEDLE.format(kind=kinds.value, key=key, value=value) for key, value in needles]
    if kinds.haystack == "essay":
        context, depths = _in_essays(rng, lines, data.essays(units))
    else:
        others = [_REPEATED] * units
        if kinds.haystack == "needle":  # a key is drawn before its value
            items = [(_item(rng, kinds.key), _item(rng, kinds.value)) for _ in range(units)]
            others = [_NEEDLE.format(kind=kinds.value, key=key, value=value) for key, value in items]
        context, depths = _among_lines(rng, lines, others)
    queried = [hidden[i] for i in rng.sample(range(keys), queries)]
    answers = tuple(value for _, of_key in queried for value in of_key)
    *names, last = [key for key, _ in queried]
    query = f"{', '.join(names)}, and {last}" if names else last
    if len(answers) > 1:
        return Drawn(_NEEDLES_TEMPLATE.format(kind=kinds.value, context=context, query=query), answers)
    text = _NEEDLE_TEMPLATE.format(kind=kinds.value.removesuffix("s"), context=context, query=query)
    return Drawn(text, answers, depths[needles.index((query, answers[0]))])


def _item(rng: Random, kind: Kind) -> str:
    if kind == "numbers":
        return str(rng.randint(10**6, 10**7 - 1))
    if kind == "words":
        return rng.choice(key_words())
    return str(UUID(int=rng.getrandbits(128), version=4))


def _among_lines(rng: Random, needles: list[str], lines: list[str]) -> tuple[str, list[float]]:
    """Put each needle before another line, the first needle last; return the text and the needles' depths."""
    places = sorted(rng.sample(range(len(lines)), len(needles)), reverse=True)
    context = list(lines)
    for place, needle in zip(places, needles, strict=True):
        context.insert(place, needle)
    return "\n".join(context), [place / len(lines) for place in places]


def _in_essays(rng: Random, needles: list[str], essays: str) -> tuple[str, list[float]]:
    """Put the needles between sentences; return the text, and for each needle the share of the words before it.

    RULER's depths count sentences. Nothing before a needle leaves a space there, as in RULER.
    """
    text = sentences(essays)
    places = sorted(int(len(text) * (depth / 100)) for depth in rng.sample(_DEPTHS, len(needles)))
    parts = []
    for start, end, needle in zip([0, *places[:-1]], places, needles, strict=True):
        parts += [" ".join(text[start:end]), needle]
    parts.append(" ".join(text[places[-1] :]))
    words = [0, *accumulate(sentence.count(" ") + 1 for sentence in text)]
    return " ".join(parts), [words[place] / words[-1] for place in places]


# --- variables and words ---

_CHAINS_TEMPLATE = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {query} in the text above. "
    "Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assgined the "  # sic
    "value {query}, they are:"
)
_LINE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
_PIECES = [f"{piece}." if piece.strip() else piece for piece in _LINE.split(".")]
_EXAMPLE_TOKENS, _EXAMPLE_STEP, _ANSWER_TOKENS = 500, 5, 30
_COMMON = 10
_COMMON_TEMPLATE = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list? Answer: The top 10 "
    "words that appear most often in the list are:"
)
_FREQUENT_TEMPLATE = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared "
    "coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three "
    "most frequently appeared words in the above coded text? Answer: According to the coded text above, the three most "
    "frequently appeared words are:"
)
_FEWEST_WORDS = 20  # ten common ones and ten others
_FEWEST_CODED = 53
_FEWEST_DIFFERENT = 5  # the dots, three words to find, and one that is less frequent
_CODE_LETTERS, _CODE_TOKENS = 6, 50
_ZETA_2 = pi**2 / 6

Example = tuple[int, int, int]  # words; how often the common ones and the others are repeated
_EXAMPLE, _SMALL_EXAMPLE = (40, 10, 3), (20, 3, 1)


def chain_forms(request: PromptRequest, *, hops: int, chains: int) -> list[Form]:
    """Return two forms: with an example, and without."""
    # Lines with a place for each assignment of a chain; short texts are cut into sentences.
    fewest = (hops + 1) // len(_PIECES) + 1
    draw = partial(draw_chains, request.seed, hops=hops, chains=chains)
    with_example = partial(draw, example_lines=_example_lines(request, hops, chains) or fewest)
    return [Form(with_example, request.units(fewest), 100.0), Form(draw, request.units(fewest), 100.0)]


def draw_chains(seed: int, units: int, *, hops: int, chains: int, example_lines: int = 0) -> Drawn:
    """Draw a prompt with ``units`` lines of sentences, and an example with ``example_lines``, if any.

    The order of draws is RULER's: the example, the prompt, new names for the example's variables.
    """
    rng, numbers = Random(seed), np.random.RandomState(seed)
    example, answers = _chains_text(rng, numbers, example_lines, hops, chains, letters=3) if example_lines else ("", [])
    text, variables = _chains_text(rng, numbers, units, hops, chains, letters=5)
    if example:
        example = _solved(example, answers)
        for name in answers:
            example = example.replace(name, "".join(rng.choices(ascii_uppercase, k=len(name))))
        text = f"{example}\n\n{text}"
    return Drawn(text, tuple(variables))


def _example_lines(request: PromptRequest, hops: int, chains: int) -> int:
    """Return how many lines fit an example, or 0."""

    def drawn(steps: int) -> tuple[str, str]:
        rng, numbers = Random(request.seed), np.random.RandomState(request.seed)
        return _solved(*_chains_text(rng, numbers, steps * _EXAMPLE_STEP, hops, chains, letters=3)), ""

    if request.length < _FULL_SIZE:
        return 0
    try:
        parts = range(1, _EXAMPLE_TOKENS)
        most, _ = longest_prompt(request.tokenizer, _EXAMPLE_TOKENS, drawn, parts, each=125.0, reserved=_ANSWER_TOKENS)
    except TooShortError:
        return 0
    return most * _EXAMPLE_STEP


def _chains_text(
    rng: Random, numbers: np.random.RandomState, lines: int, hops: int, chains: int, *, letters: int
) -> tuple[str, list[str]]:
    """Draw a text up to the beginning of its answer, and the variables that have the value asked for."""
    drawn: dict[str, None] = {}  # RULER does not notice that a name came twice, and stops
    while len(drawn) < (hops + 1) * chains:
        drawn["".join(rng.choices(ascii_uppercase, k=letters))] = None
    names = list(drawn)
    own = [names[i : i + hops + 1] for i in range(0, len(names), hops + 1)]
    values = [str(numbers.randint(10_000, 99_999)) for _ in own]
    text = [_LINE] * lines if lines > hops + 1 else _PIECES * lines
    for chain, value in zip(own, values, strict=True):
        assignments = [f"VAR {chain[0]} = {value}"]
        assignments += [f"VAR {name} = VAR {before} " for before, name in pairwise(chain)]
        places = sorted(rng.sample(range(len(text)), len(assignments)))
        for done, (place, assignment) in enumerate(zip(places, assignments, strict=True)):
            text.insert(place + done, assignment)
    context = " ".join(text).replace(". \n", ".\n")
    return _CHAINS_TEMPLATE.format(context=context, query=values[0], count=hops + 1), own[0]


def _solved(example: str, answers: list[str]) -> str:
    """Append the answers; the two spaces and the empty line are RULER's."""
    return f"{example}  {' '.join(answers)}\n\n"


def common_forms(request: PromptRequest) -> list[Form]:
    """Return the forms of ``cwe``, the largest first."""
    sizes: list[tuple[Example | None, int, int]] = [(_SMALL_EXAMPLE, 6, 1), (None, 3, 1)]
    if request.length >= _FULL_SIZE:
        sizes = [(_EXAMPLE, 30, 3), *sizes]
    units = request.units(_FEWEST_WORDS)
    return [
        Form(partial(draw_common, request.seed, example=example, common=common, other=other), units, 20.0 * other)
        for example, common, other in sizes
    ]


def draw_common(seed: int, units: int, *, example: Example | None, common: int, other: int) -> Drawn:
    """Draw a list of ``units`` words, ten of them repeated more often, and an example in front, if any."""
    rng = Random(seed)
    front = ""
    if example:
        context, answers = _word_list(rng, *example)
        front = f"{_COMMON_TEMPLATE.format(context=context)}{_numbered(answers)}\n"  # RULER has no space here
    more = -(-units // len(common_words()))
    context, answers = _word_list(rng, -(-units // more), more * common, more * other)
    return Drawn(front + _COMMON_TEMPLATE.format(context=context), tuple(answers))


def _word_list(rng: Random, words: int, common: int, other: int) -> tuple[str, list[str]]:
    """Draw words and repeat them; return the list as text, and the common words."""
    drawn = rng.sample(common_words(), words)
    listed = drawn[:_COMMON] * common + drawn[_COMMON:] * other
    Random(SHUFFLE_SEED).shuffle(listed)
    return _numbered(listed), drawn[:_COMMON]


def _numbered(words: list[str]) -> str:
    return " ".join(f"{i}. {word}" for i, word in enumerate(words, start=1))


def frequent_forms(request: PromptRequest) -> list[Form]:
    """Return the one form of ``fwe``."""
    different = max(request.length // _CODE_TOKENS, _FEWEST_DIFFERENT)
    return [Form(partial(draw_frequent, request.seed, different=different), request.units(_FEWEST_CODED), 8.0)]


def draw_frequent(seed: int, units: int, *, different: int) -> Drawn:
    """Draw a coded text of ``different`` words with frequencies that fall as Zipf's law with exponent 2."""
    rng = Random(seed)
    drawn: set[str] = set()
    while len(drawn) < different:
        drawn.add("".join(rng.choices(ascii_lowercase, k=_CODE_LETTERS)))
    words = sorted(drawn)
    Random(SHUFFLE_SEED).shuffle(words)
    words[0] = "..."
    text = [word for k, word in enumerate(words, start=1) for _ in range(int(units * k**-2.0 / _ZETA_2))]
    Random(SHUFFLE_SEED).shuffle(text)
    return Drawn(_FREQUENT_TEMPLATE.format(context=" ".join(text)), tuple(words[1:4]))


# --- questions ---

_QUESTION_TEMPLATE = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "The following are given documents.\n\n{context}\n\n"
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "Question: {query} Answer:"
)
_QUESTIONS = 500  # RULER asks the first 500 questions of a file; the others are spares


def question_forms(name: str, request: PromptRequest) -> list[Form]:
    """Return a form for the trial's question, and for each of its spares, 500 places apart."""
    library = read_library(request.data.folder, name)
    return [
        Form(
            partial(draw_question, request.seed, library=library, number=number),
            request.units(len(library.questions[number].needed)),
            600.0,
        )
        for number in range(request.trial % len(library.questions), len(library.questions), _QUESTIONS)
    ]


def draw_question(seed: int, units: int, *, library: Library, number: int) -> Drawn:
    """Draw a prompt with ``units`` documents: those needed, then related ones, then any; all repeated if too few."""
    question, documents, rng = library.questions[number], library.documents, Random(seed)
    near = question.needed + question.related
    if units >= len(documents):
        chosen = [place % len(documents) for place in range(units)]
    elif units <= len(near):
        chosen = question.needed + rng.sample(question.related, units - len(question.needed))
    else:
        others = sorted(set(range(len(documents))) - set(near))
        chosen = near + rng.sample(others, units - len(near))
    Random(SHUFFLE_SEED).shuffle(chosen)
    context = "\n\n".join(f"Document {i}:\n{documents[document]}" for i, document in enumerate(chosen, start=1))
    places = [place for place, document in enumerate(chosen) if document in question.needed]
    depth = places[0] / max(1, units - 1) if len(places) == 1 else None
    return Drawn(_QUESTION_TEMPLATE.format(context=context, query=question.text), question.answers, depth)
