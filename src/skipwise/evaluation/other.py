"""Text of other kinds, which ships with the package: what an extension costs where it was not trained.

Every document is cut into segments no longer than the original window. The base and the extended model read the same
ones, so the difference of their losses is the price on text of that kind.
"""

from importlib import resources
from itertools import chain

import numpy as np
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from skipwise.data.corpus import Document
from skipwise.data.draft import text_digest
from skipwise.data.pieces import encoder
from skipwise.evaluation.texts import EvaluationText, Segment
from skipwise.model.origin import Origin
from skipwise.results.records import OTHER_TEXT

KINDS = {"prose": "prose.txt", "mathematics": "mathematics.tex", "code": "code.c"}
_SEGMENTS = 32  # of each document; a record is written for each
_TOKENS = 2**14  # of each document, if a segment is not longer


def most_segments(length: int) -> int:
    """Return how many segments of ``length`` tokens are read of a document at the most."""
    return min(_SEGMENTS, max(1, _TOKENS // length))


def cut_segments(document: str, tokens: np.ndarray, window: int) -> list[Segment]:
    """Cut a document from its beginning into segments of ``window`` tokens; a shorter document is one segment.

    ``tokens`` is int64 [tokens]. What is left at the end is not read. The list is empty if there is nothing to score.
    """
    length = min(window, len(tokens))
    if length < 2:
        return []
    most = min(len(tokens) // length, most_segments(length))
    return [Segment(document, n * length, tokens[n * length : (n + 1) * length]) for n in range(most)]


def other_text(tokenizer: PreTrainedTokenizerBase, window: int, origin: Origin, console: Console) -> EvaluationText:
    """Return the segments of every kind of text, at most ``window`` tokens each.

    ``origin`` says what the model is trained on. A document that is among it is left out, and the console is told.
    """
    segments: dict[int, list[Segment]] = {}
    for document, pieces in encoder(tokenizer)([_document(kind) for kind in KINDS]):
        if np.isin(np.frombuffer(text_digest(document.text), dtype="<u8"), origin.documents):
            console.print(
                f"the {document.name} that ships with skipwise is in the training text, so it does not show what the "
                "extension costs on other text, and is left out",
                style="yellow",
            )
            continue
        tokens = np.fromiter(chain.from_iterable(pieces), dtype=np.int64)
        for segment in cut_segments(document.name, tokens, window):
            segments.setdefault(len(segment.tokens), []).append(segment)
    return EvaluationText(OTHER_TEXT, [], [], segments, fingerprint="")


def _document(kind: str) -> Document:
    file = resources.files("skipwise").joinpath("assets", "other", KINDS[kind])
    return Document(kind, file.read_text(encoding="utf-8"))
