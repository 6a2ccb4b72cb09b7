"""RULER's two counting tasks: the ten most common words of a list (``cwe``), the three most frequent of a coded text
(``fwe``).

A unit of ``cwe`` is a different word. The sizes are tried in this order, and the first that fits is taken:

    | from tokens | words of the example, common and other ones repeated | common words repeated | others repeated |
    |       4,096 | 40, 10 and 3 times                                   | 30 times              | 3 times         |
    |           0 | 20, 3 and 1 times                                    | 6 times               | once            |
    |           0 | no example                                           | 3 times               | once            |

The first two are RULER's. There are 8,166 words. If they do not suffice for a length, the words of the list stand
in it twice as often, then three times, and so on.

A unit of ``fwe`` is a word of the coded text before rounding: of n, the k-th word has n / (k^2 * zeta(2)), rounded
down. The first are dots. With fewer than 53, the third and the fourth word may be equally frequent, so there are at
least so many. The coded text draws from one word for each 50 tokens of length, as in RULER.
"""

from functools import partial
from math import pi
from random import Random
from string import ascii_lowercase

from skipwise.data.ruler.prompts import FULL_SIZE, SHUFFLE_SEED, Drawn, Form, PromptRequest
from skipwise.data.ruler.words import common_words

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
    """Draw a list of ``units`` words, ten of which are repeated more often, and an example in front, if any."""
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
    """Draw a coded text of ``different`` words, whose frequencies fall as Zipf's law with exponent 2."""
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
