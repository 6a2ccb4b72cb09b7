"""Text of other kinds, which ships with the package: what an extension costs where it was not trained.

Every document is cut into segments no longer than the original window, and short enough for an interval over them. The
base and the extended model read the same ones, so the difference of their losses is the price on text of that kind.
"""

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from skipwise.data.shipped import KINDS, shipped_text
from skipwise.data.text import Document
from skipwise.data.tokenising import text_encoder
from skipwise.evaluation.texts import EvaluationText, Segment
from skipwise.model.origin import Origin
from skipwise.results.records import OTHER_TEXT
from skipwise.results.statistics import FEWEST_SEGMENTS

_SEGMENTS = 32  # of each document; a record is written for each
_TOKENS = 2**14  # of each document


def longest_segment(window: int) -> int:
    """Return how many tokens a segment has at the most, so that it fits ``window`` and there are enough of them."""
    return min(window, _TOKENS // FEWEST_SEGMENTS)


def most_segments(length: int) -> int:
    """Return how many segments of ``length`` tokens are read of a document at the most."""
    return min(_SEGMENTS, _TOKENS // length)


def cut_segments(document: str, tokens: np.ndarray, window: int) -> list[Segment]:
    """Cut a document from its beginning into segments of at most ``window`` tokens: eight or more, all of one length.

    ``tokens`` is int64 [tokens]. What is left at the end is not read. The list is empty if there is nothing to score.
    """
    length = min(longest_segment(window), len(tokens) // FEWEST_SEGMENTS)
    if length < 2:
        return []
    most = min(len(tokens) // length, most_segments(length))
    return [Segment(document, n * length, tokens[n * length : (n + 1) * length]) for n in range(most)]


def other_text(
    tokenizer: PreTrainedTokenizerBase, window: int, origins: Sequence[Origin], console: Console
) -> EvaluationText:
    """Return the segments of every kind of text, at most ``window`` tokens each.

    ``origins`` say what models are trained on. A document that is among it is left out, and the console is told.
    """
    trained_on = np.concatenate([np.empty(0, dtype="<u8"), *(origin.documents for origin in origins)])
    segments: dict[int, list[Segment]] = {}
    texts = [shipped_text(kind) for kind in KINDS]
    for document, ids in zip(map(Document, KINDS, texts), text_encoder(tokenizer)(texts), strict=True):
        if np.isin(np.frombuffer(document.digest, dtype="<u8"), trained_on):
            console.print(
                f"the {document.name} that ships with skipwise is in the training text, so it does not show what the "
                "extension costs on other text, and is left out",
                style="yellow",
            )
            continue
        tokens = np.asarray(ids, dtype=np.int64)
        for segment in cut_segments(document.name, tokens, window):
            segments.setdefault(len(segment.tokens), []).append(segment)
    return EvaluationText(OTHER_TEXT, [], [], segments, fingerprint="")
