"""RULER's two QA tasks: a question of SQuAD 2.0 or HotpotQA, and its documents among others.

A unit is a document. The trial's number is the question's, in the order of the file.
"""

from functools import partial
from random import Random
from typing import Literal

from skipwise.data.ruler.prompts import SHUFFLE_SEED, Drawn, Form, PromptRequest
from skipwise.data.ruler.sources import Library

_TEMPLATE = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "The following are given documents.\n\n{context}\n\n"
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "Question: {query} Answer:"
)
_ASKED = 500  # RULER asks the first 500 questions of a file; those behind them are spares


def forms(name: Literal["squad", "hotpotqa"], request: PromptRequest) -> list[Form]:
    """Return a form for the trial's question, and for each of its spares, 500 places apart."""
    library: Library = getattr(request.data, name)
    first = request.trial % len(library.questions)
    return [
        Form(
            partial(draw_question, request.seed, library=library, number=number),
            request.units(len(library.questions[number].needed)),
            600.0,
            whole=len(library.documents),
        )
        for number in range(first, len(library.questions), _ASKED)
    ]


def draw_question(seed: int, units: int, *, library: Library, number: int) -> Drawn:
    """Draw a prompt with ``units`` documents: those needed, then related ones, then any; all repeated if too few."""
    question, documents = library.questions[number], library.documents
    chosen = _chosen(Random(seed), units, library, number)
    Random(SHUFFLE_SEED).shuffle(chosen)
    context = "\n\n".join(f"Document {i}:\n{documents[own]}" for i, own in enumerate(chosen, start=1))
    places = [place for place, own in enumerate(chosen) if own in question.needed]
    depth = places[0] / max(1, units - 1) if len(places) == 1 else None
    return Drawn(_TEMPLATE.format(context=context, query=question.text), question.answers, depth)


def _chosen(rng: Random, units: int, library: Library, number: int) -> list[int]:
    """Draw the numbers of the documents of a prompt."""
    question, every = library.questions[number], range(len(library.documents))
    if units >= len(every):
        return [place % len(every) for place in range(units)]
    free = units - len(question.needed)
    if free <= len(question.related):
        return question.needed + rng.sample(question.related, free)
    near = question.needed + question.related
    known = set(near)
    others = [own for own in every if own not in known]
    return near + rng.sample(others, units - len(near))
