"""RULER's words: nouns, adjectives and verbs of the package wonderwords (the extra ``ruler``)."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from random import Random
from typing import overload

from skipwise.data.ruler.prompts import SHUFFLE_SEED
from skipwise.errors import RecipeError, pip_install


@lru_cache(maxsize=1)
def common_words() -> list[str]:
    """Return all nouns, adjectives and verbs, once each, in RULER's order."""
    words = sorted({*_listed("noun"), *_listed("adjective"), *_listed("verb")})
    Random(SHUFFLE_SEED).shuffle(words)
    return words


@lru_cache(maxsize=1)
def key_words() -> "Pairs":
    """Return all keys of needles: adjective-noun, such as ``quick-harbor``, sorted."""
    return Pairs(_listed("adjective"), _listed("noun"))


class Pairs(Sequence[str]):
    """All ``adjective-noun``, sorted and each once, of which only those that are asked for are written.

    They are 6.2 million, which would take more than a gigabyte. Pairs whose adjectives begin alike up to a character
    that does not sort behind the hyphen (``blue`` and ``blue-eyed``) stand together in the sorted list, in a block.
    All other adjectives have a block of their own, in the order of the nouns.
    """

    def __init__(self, adjectives: Iterable[str], nouns: Iterable[str]) -> None:
        self._nouns = sorted(set(nouns))
        alike: dict[str, list[str]] = {}
        for adjective in sorted(set(adjectives)):
            stem = next((adjective[:i] for i, letter in enumerate(adjective) if letter <= "-"), adjective)
            alike.setdefault(stem, []).append(adjective)
        self._blocks = [alike[stem] for stem in sorted(alike)]
        self._ends = list(accumulate(self._size(block) for block in self._blocks))

    def __len__(self) -> int:
        """Return the number of pairs."""
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """Return the pair, or the pairs, at a place of the sorted list."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        number = bisect_right(self._ends, place)
        block = self._blocks[number]
        place -= self._ends[number - 1] if number else 0
        return f"{block[0]}-{self._nouns[place]}" if len(block) == 1 else self._written(block)[place]

    def _size(self, block: list[str]) -> int:
        return len(self._nouns) if len(block) == 1 else len(self._written(block))

    def _written(self, block: list[str]) -> list[str]:
        return sorted({f"{adjective}-{noun}" for adjective in block for noun in self._nouns})


def _listed(kind: str) -> list[str]:
    try:
        from wonderwords import RandomWord
    except ImportError as error:
        raise RecipeError(
            f"RULER's words need the package wonderwords, which is not installed: {pip_install('ruler')}"
        ) from error
    return list(RandomWord(enhanced_prefixes=False).filter(include_categories=[kind]))
