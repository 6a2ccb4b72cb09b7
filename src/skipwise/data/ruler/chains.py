"""RULER's variable tracking (``vt``): chains of assignments hidden in repeated sentences.

A unit is a line of five sentences. In front stands an example with its answer. From 4,096 tokens on it has as many
lines as fit 500 tokens in steps of five, as in RULER; below, or where five do not fit, as few as its chain needs. A
prompt that is too long even so has no example.
"""

from functools import partial
from itertools import pairwise
from random import Random
from string import ascii_uppercase

import numpy as np

from skipwise.data.prompts import Room, longest_prompt
from skipwise.data.ruler.prompts import FULL_SIZE, Drawn, Form, PromptRequest
from skipwise.errors import RecipeError, TooShortError

_TEMPLATE = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {query} in the text above. "
    "Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assgined the "  # sic
    "value {query}, they are:"
)
_LINE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
_PIECES = [f"{piece}." if piece.strip() else piece for piece in _LINE.split(".")]
_MOST = 10  # hops, since RULER's examples have no more; and chains
_EXAMPLE_TOKENS, _EXAMPLE_STEP, _ANSWER_TOKENS = 500, 5, 30


def forms(request: PromptRequest, *, hops: int, chains: int) -> list[Form]:
    """Return two forms: with an example, and without."""
    for what, value in (("hops", hops), ("chains", chains)):
        if value > _MOST:
            raise RecipeError(f"{value} {what} are more than {_MOST}, the most that vt can have; choose fewer")
    fewest = fewest_lines(hops)
    draw = partial(draw_chains, request.seed, hops=hops, chains=chains)
    units = request.units(fewest)
    with_example = partial(draw, example_lines=_example_lines(request, hops, chains))
    return [Form(with_example, units, 100.0), Form(draw, units, 100.0)]


def fewest_lines(hops: int) -> int:
    """Return the fewest lines with a place for each assignment of a chain; short texts are cut into sentences."""
    return (hops + 1) // len(_PIECES) + 1


def draw_chains(seed: int, units: int, *, hops: int, chains: int, example_lines: int = 0) -> Drawn:
    """Draw a prompt with ``units`` lines of sentences, and an example with ``example_lines``, if any.

    Python's generator and numpy's start from the same seed. The order of draws is RULER's: the example, the prompt,
    new names for the example's variables.
    """
    rng, numbers = Random(seed), np.random.RandomState(seed)
    example, answers = _chains_text(rng, numbers, example_lines, hops, chains, letters=3) if example_lines else ("", [])
    text, variables = _chains_text(rng, numbers, units, hops, chains, letters=5)
    if example:
        text = f"{_renamed(rng, _solved(example, answers), answers)}\n\n{text}"
    return Drawn(text, tuple(variables))


def _example_lines(request: PromptRequest, hops: int, chains: int) -> int:
    """Return how many lines an example has; the module says the rule."""

    def drawn(steps: int) -> tuple[str, str]:
        rng, numbers = Random(request.seed), np.random.RandomState(request.seed)
        return _solved(*_chains_text(rng, numbers, steps * _EXAMPLE_STEP, hops, chains, letters=3)), ""

    if request.length < FULL_SIZE:
        return fewest_lines(hops)
    room = Room(request.tokenizer, _EXAMPLE_TOKENS, reserved=_ANSWER_TOKENS)
    try:
        most, _ = longest_prompt(room, drawn, range(1, _EXAMPLE_TOKENS), each=125.0)
    except TooShortError:
        return fewest_lines(hops)
    return most * _EXAMPLE_STEP


def _chains_text(
    rng: Random, numbers: np.random.RandomState, lines: int, hops: int, chains: int, *, letters: int
) -> tuple[str, list[str]]:
    """Draw a text up to the beginning of its answer, and the variables that have the value asked for."""
    names = _names(rng, (hops + 1) * chains, letters)
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
    return _TEMPLATE.format(context=context, query=values[0], count=hops + 1), own[0]


def _names(rng: Random, count: int, letters: int) -> list[str]:
    """Draw different names. (RULER does not notice that a name came twice, and stops.)"""
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(rng.choices(ascii_uppercase, k=letters))] = None
    return list(names)


def _solved(example: str, answers: list[str]) -> str:
    """Append the answers; the two spaces and the empty line are RULER's."""
    return f"{example}  {' '.join(answers)}\n\n"


def _renamed(rng: Random, example: str, names: list[str]) -> str:
    for name in names:
        example = example.replace(name, "".join(rng.choices(ascii_uppercase, k=len(name))))
    return example
