"""A fixed text: word salad of a small grammar, by integer arithmetic of its own, so that no library changes a letter."""

from collections.abc import Iterator
from pathlib import Path


def _words(text: str) -> list[str]:
    return text.split()


_ARTICLES = _words("the a every some one that this another")
_ADJECTIVES = _words(
    "old small green quiet broken early heavy narrow bright hollow distant careful empty sudden wooden plain "
    "silver gentle frozen crooked"
)
_NOUNS = _words(
    "river window garden letter bridge clock harbour ladder mountain engine basket candle market station orchard "
    "bottle carpenter sailor teacher farmer painter neighbour stranger captain village kitchen library tower field "
    "cellar machine lantern mirror pocket blanket hammer ribbon saddle wagon chimney"
)
_VERBS = _words(
    "carries opens follows repairs forgets remembers measures paints sells borrows hides watches breaks finds "
    "leaves cleans lifts counts draws answers"
)
_ADVERBS = _words("slowly again today often quietly twice seldom together outside lately")
_LINKS = _words("and but because while after before until although")
_NAMES = _words(
    "Adela Boris Carla Dmitri Elena Farid Greta Hugo Irene Jonas Klara Lucas Marta Nils Olga Pavel Rosa Stefan "
    "Tilda Umar Vera Walter Xenia Yusuf Zita"
)

# Sentences of each file, in turn: the first are too few to train on, the 320 are some 7,000 tokens of nano.
_SIZES = (8, 60, 30, 110, 45, 180, 75, 320, 20, 140)
FILES = 40


class Draws:
    """Numbers by a linear congruential generator of 64 bits (Knuth's MMIX constants), of which the upper half is used."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, limit: int) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 32) % limit

    def one_of(self, words: list[str]) -> str:
        return words[self.below(len(words))]


def write_text(folder: Path) -> Path:
    """Write every file, under names that decide by their hash what is held out."""
    folder.mkdir(parents=True)
    for number in range(FILES):
        sentences = _SIZES[number % len(_SIZES)]
        (folder / f"chapter-{number:02}.txt").write_bytes(_chapter(number, sentences).encode())
    return folder


def _chapter(number: int, sentences: int) -> str:
    """Paragraphs about the same few people and things, so that what was said far back helps to read on."""
    draws = Draws(7919 * number + 1)
    people = [draws.one_of(_NAMES) for _ in range(3)]
    things = [f"{draws.one_of(_ADJECTIVES)} {draws.one_of(_NOUNS)}" for _ in range(6)]
    return "\n\n".join(_paragraphs(draws, people, things, sentences)) + "\n"


def _paragraphs(draws: Draws, people: list[str], things: list[str], sentences: int) -> Iterator[str]:
    while sentences > 0:
        length = min(sentences, 3 + draws.below(6))
        yield " ".join(_sentence(draws, people, things) for _ in range(length))
        sentences -= length


def _sentence(draws: Draws, people: list[str], things: list[str]) -> str:
    words = _clause(draws, people, things)
    while draws.below(3) == 0:
        words += f", {draws.one_of(_LINKS)} {_clause(draws, people, things)}"
    return f"{words[0].upper()}{words[1:]}{'?' if draws.below(9) == 0 else '.'}"


def _clause(draws: Draws, people: list[str], things: list[str]) -> str:
    who = draws.one_of(people) if draws.below(2) else _thing(draws, things)
    clause = f"{who} {draws.one_of(_VERBS)} {_thing(draws, things)}"
    if draws.below(4) == 0:
        clause += f" {draws.one_of(_ADVERBS)}"
    return clause + f" {draws.below(90) + 10} times" * (draws.below(12) == 0)


def _thing(draws: Draws, things: list[str]) -> str:
    own = draws.below(3) > 0
    return f"{draws.one_of(_ARTICLES)} {draws.one_of(things) if own else draws.one_of(_NOUNS)}"
