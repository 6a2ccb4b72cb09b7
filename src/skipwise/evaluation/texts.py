"""A token store -> what is measured on: its longest documents, and segments of one length."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from skipwise.data.tokens import TokenStore
from skipwise.errors import DataError, RecipeError

Segments = tuple[list[str], np.ndarray]  # the document's name of each, and tokens [segments, length]


@dataclass(frozen=True)
class EvaluationText:
    """Documents to measure on, and the windows that each of them fills.

    Attributes:
        names: of the documents, the longest first.
        documents: their tokens, int [tokens] each.
        windows: in tokens, rising.
    """

    names: list[str]
    documents: list[np.ndarray]
    windows: list[int]


def longest_documents(
    store: TokenStore,
    candidates: np.ndarray,
    *,
    windows: Sequence[int],
    most: int,
    limit: int | None,
    console: Console,
) -> EvaluationText:
    """Take the ``most`` longest of ``candidates`` that fill the largest window, each cut to ``limit`` tokens.

    A window that no candidate fills is left out, and it is said: its perplexity would be another window's.
    ``limit`` is by default twice the largest window that is left.

    Raises:
        DataError: no candidates, or none that fills the smallest window.
        RecipeError: the limit is below a window.
    """
    if len(candidates) == 0:
        raise DataError(
            f"no document of {len(store):,} is left to measure on: raise data.held_out, or give text of its own by "
            "evaluation.source"
        )
    by_length = candidates[np.argsort(-store.lengths[candidates], kind="stable")]
    longest, name = int(store.lengths[by_length[0]]), store.names[by_length[0]]
    filled = sorted({window for window in windows if window <= longest})
    if not filled:
        raise DataError(
            f"the longest document to measure on, {name}, has {longest:,} tokens and does not fill a window of "
            f"{min(windows):,}: give longer text, or a smaller window"
        )
    if missing := sorted({window for window in windows if window > longest}):
        shown = ", ".join(f"{window:,}" for window in missing)
        console.print(
            f"perplexity at {shown} tokens is left out: the longest document to measure on, {name}, has {longest:,}",
            style="yellow",
        )
    if limit is not None and limit < filled[-1]:
        raise RecipeError(
            f"evaluation.tokens_per_document {limit:,} must be at least the largest window, {filled[-1]:,}: "
            "raise it, or lower evaluation.windows"
        )
    chosen = by_length[store.lengths[by_length] >= filled[-1]][:most]
    documents = [np.asarray(store.document(int(i))[: limit or 2 * filled[-1]]) for i in chosen]
    return EvaluationText([store.names[i] for i in chosen], documents, filled)


def spread_segments(store: TokenStore, candidates: np.ndarray, length: int, most: int) -> Segments:
    """Cut ``candidates`` into segments of ``length`` tokens that do not overlap, and take the ``most`` first.

    The first segment of every document comes before the second of any, the longest document first: what varies
    between documents weighs more than what varies inside one.

    Returns:
        The document's name of each segment, and the tokens, int64 [segments, length]; none where no document is
        that long.
    """
    order = candidates[np.argsort(-store.lengths[candidates], kind="stable")]
    places = [
        (begin, rank, int(document))
        for rank, document in enumerate(order)
        for begin in range(0, int(store.lengths[document]) - length + 1, length)
    ]
    chosen = sorted(places)[:most]
    rows = [np.asarray(store.document(d)[begin : begin + length], dtype=np.int64) for begin, _, d in chosen]
    names = [store.names[d] for _, _, d in chosen]
    return names, np.stack(rows) if rows else np.empty((0, length), dtype=np.int64)
