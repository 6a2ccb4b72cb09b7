"""RULER's eight needle tasks: keys with magic values, hidden in repeated sentences, in essays or among other needles.

A unit is a repeated line, a word of the essays, or a needle that nobody asks for. Keys are drawn with replacement, as
in RULER: of n other needles, one has the key that is asked for with a chance of n in 6.2 million.
"""

from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from random import Random
from typing import Literal
from uuid import UUID

from skipwise.data.ruler.sources import SHUFFLE_SEED, Drawn, Form, PromptRequest, RulerData, key_words, sentences
from skipwise.errors import RecipeError

Haystack = Literal["repeat", "essay", "needle"]
Kind = Literal["words", "numbers", "uuids"]

_TEMPLATE = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. I will quiz you about the "
    "{kind} afterwards.\n{context}\nWhat are all the special magic {kind} for {query} mentioned in the provided text? "
    "The special magic {kind} for {query} mentioned in the provided text are"
)
_ONE = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you about the "
    "{kind} afterwards.\n{context}\nWhat is the special magic {kind} for {query} mentioned in the provided text? "
    "The special magic {kind} for {query} mentioned in the provided text is"
)
_NEEDLE = "One of the special magic {kind} for {key} is: {value}."
_SENTENCES = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
_DEPTHS = [round(100 * i / 39) for i in range(40)]  # per cent
_UNIT_TOKENS = {"repeat": 100.0, "essay": 6.0, "needle": 120.0}


@dataclass(frozen=True)
class Kinds:
    """What hides the needles, and what their keys and values are."""

    haystack: Haystack
    key: Kind
    value: Kind


def forms(kinds: Kinds, request: PromptRequest, *, keys: int, values: int, queries: int) -> list[Form]:
    """Return the one form of a needle task; there are at least as many keys as queries."""
    keys = max(keys, queries)
    needles = keys * values
    if needles > len(_DEPTHS):
        raise RecipeError(
            f"{keys} keys with {values} values each are {needles} needles, but RULER has {len(_DEPTHS)} places; "
            "choose fewer keys, values or queries"
        )
    essay, data = kinds.haystack == "essay", request.data
    draw = partial(draw_needles, request.seed, kinds=kinds, data=data, keys=keys, values=values, queries=queries)
    units = request.units(1 if essay else needles)
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
        others = [_SENTENCES] * units
        if kinds.haystack == "needle":  # a key is drawn before its value
            items = [(_item(rng, kinds.key), _item(rng, kinds.value)) for _ in range(units)]
            others = [_NEEDLE.format(kind=kinds.value, key=key, value=value) for key, value in items]
        context, depths = _among_lines(rng, lines, others)
    queried = [hidden[i] for i in rng.sample(range(keys), queries)]
    answers = tuple(value for _, of_key in queried for value in of_key)
    *names, last = [key for key, _ in queried]
    query = f"{', '.join(names)}, and {last}" if names else last
    if len(answers) > 1:
        return Drawn(_TEMPLATE.format(kind=kinds.value, context=context, query=query), answers)
    text = _ONE.format(kind=kinds.value.removesuffix("s"), context=context, query=query)
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
