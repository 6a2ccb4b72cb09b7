"""RULER's variable tracking (``vt``), its ten most common words of a list (``cwe``), and its three most frequent words of a
coded text (``fwe``).

A unit of ``vt`` is a line of five sentences. In front is an example with its answer. From 4,096 tokens on it has as
many lines as fit 500 tokens in steps of five, as in RULER; below, or where five do not fit, as few as its chain needs.
A prompt that is too long even so has no example.

A unit of ``cwe`` is a different word. The sizes are tried in this order, and the first that fits is taken:

    | from tokens | words of the example, common and other ones repeated | common words repeated | others repeated |
    |       4,096 | 40, 10 and 3 times                                   | 30 times              | 3 times         |
    |           0 | 20, 3 and 1 times                                    | 6 times               | once            |
    |           0 | no example                                           | 3 times               | once            |

The first two are RULER's. There are 8,166 words. If they do not suffice for a length, the words of the list are
in it twice as often, then three times, and so on.

A unit of ``fwe`` is a word of the coded text before rounding: of n, the k-th word has n / (k^2 * zeta(2)), rounded
down. The first are dots. With fewer than 53, the third and the fourth word may be equally frequent, so there are at
least this many. The coded text draws from one word for each 50 tokens of length, as in RULER.
"""

from functools import partial
from itertools import pairwise
from math import pi
from random import Random
from string import ascii_lowercase, ascii_uppercase

import numpy as np

from skipwise.data.prompts import Room, longest_prompt
from skipwise.data.ruler.sources import FULL_SIZE, SHUFFLE_SEED, Drawn, Form, PromptRequest, common_words
from skipwise.errors import TooShortError

_TEMPLATE = (
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

    Python's generator and numpy's start from the same seed. The order of draws is RULER's: the example, the prompt,
    new names for the example's variables.
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
    """Return how many lines fit an example, or 0; the module has the rule."""

    def drawn(steps: int) -> tuple[str, str]:
        rng, numbers = Random(request.seed), np.random.RandomState(request.seed)
        return _solved(*_chains_text(rng, numbers, steps * _EXAMPLE_STEP, hops, chains, letters=3)), ""

    if request.length < FULL_SIZE:
        return 0
    room = Room(request.tokenizer, _EXAMPLE_TOKENS, reserved=_ANSWER_TOKENS)
    try:
        most, _ = longest_prompt(room, drawn, range(1, _EXAMPLE_TOKENS), each=125.0)
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
    return _TEMPLATE.format(context=context, query=values[0], count=hops + 1), own[0]


def _solved(example: str, answers: list[str]) -> str:
    """Append the answers; the two spaces and the empty line are RULER's."""
    return f"{example}  {' '.join(answers)}\n\n"


def common_forms(request: PromptRequest) -> list[Form]:
    """Return the forms of ``cwe``, the largest first."""
    sizes: list[tuple[Example | None, int, int]] = [(_SMALL_EXAMPLE, 6, 1), (None, 3, 1)]
    if request.length >= FULL_SIZE:
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
