"""What the tasks of RULER share: a request for a prompt, and the ways in which a task can make it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from skipwise.data.ruler.sources import RulerData

SHUFFLE_SEED = 42  # RULER shuffles needles, words and documents with this seed in every prompt
FULL_SIZE = 4096  # tokens; from here on RULER's tasks have their full size


@dataclass(frozen=True)
class Drawn:
    """A prompt as text, with its answers."""

    text: str
    answers: tuple[str, ...]
    depth: float | None = None  # share of the haystack before the one needle asked for


@dataclass(frozen=True)
class PromptRequest:
    """A prompt that is asked for."""

    tokenizer: "PreTrainedTokenizerBase"
    length: int  # tokens of the prompt and its answer
    seed: int  # of 32 bits: Python's generator and numpy's are both seeded with it, as RULER seeds them
    trial: int
    data: "RulerData"

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
    real_data: bool = True  # nothing stands in for RULER's texts
    whole: int | None = None  # units that the text has, or the documents are; None where each unit is made
