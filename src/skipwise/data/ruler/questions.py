"""RULER's two QA tasks: a question of SQuAD 2.0 or HotpotQA, and its documents among others.

A unit is a document. The trial's number is the question's, in the order of the file.
"""

import json
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from random import Random

from skipwise.data.ruler.sources import QUESTION_FILES, SHUFFLE_SEED, Drawn, Form, PromptRequest, read_file
from skipwise.errors import DataError

_TEMPLATE = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "The following are given documents.\n\n{context}\n\n"
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "Question: {query} Answer:"
)
_QUESTIONS = 500  # RULER asks the first 500 questions of a file; the others are spares


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
    """Read ``squad.json`` or ``hotpotqa.json``.

    Raises:
        DataError: the file is missing or damaged.
    """
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


def forms(name: str, request: PromptRequest) -> list[Form]:
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
    return Drawn(_TEMPLATE.format(context=context, query=question.text), question.answers, depth)
