"""Windows that hold what is trained, of documents of which only some tokens are: a long document and the short answer to it.

Drawn like other text, nearly all windows of such a document hold nothing that is trained. So a trained token is drawn first,
each with the same chance, and a chunk is moved to hold it: the last one that can train a token. The other chunks stay where
the plan has them, in front of it and behind it, and so do the positions.
"""

from collections.abc import Sequence

import numpy as np

from skipwise.data.tokens import TokenStore
from skipwise.method.positions import Plans
from skipwise.method.rng import Rng

NOWHERE = -1  # the aim of an example that may begin anywhere

# Draw numbers, beside those of skipwise.data.examples.
_TOKEN, _BEFORE = 2**40 + 8, 2**40 + 9


class Answers:
    """Where the trained tokens of a store are, if its documents also have tokens that are not trained.

    Args:
        store: the tokens, and which of them are context.
        context: tokens that must stand before a trained one in its document; at least 1, from which it is predicted.
    """

    def __init__(self, store: TokenStore, context: int) -> None:
        self.store = store
        begins = np.sort(np.concatenate([store.offsets[:-1], store.context[:, 1]]))
        ends = np.sort(np.concatenate([store.context[:, 0], store.offsets[1:]]))
        first = np.searchsorted(store.context[:, 0], store.offsets)  # of the spans of context of each document
        self._spans = np.diff(first)
        # A document has one run of trained tokens more than it has spans of context; a run may be empty.
        runs = first + np.arange(len(first))
        earliest = np.repeat(store.offsets[:-1] + context, np.diff(runs))
        self._begins = np.minimum(np.maximum(begins, earliest), ends)
        self._trained = np.concatenate([[0], np.cumsum(ends - self._begins)])  # tokens before each run, and all
        self._before = self._trained[runs]  # and before each document

    @property
    def counts(self) -> np.ndarray:
        """How many tokens of each document are trained: int64 [documents]."""
        return np.diff(self._before)

    def draw(self, rng: Rng, documents: np.ndarray) -> np.ndarray:
        """Draw a trained token of each document: its place there, or ``NOWHERE`` if all tokens are trained; int64 [examples]."""
        drawn = rng.integers(_TOKEN, self._before[documents], self._before[documents + 1] - 1)
        run = np.searchsorted(self._trained, drawn, side="right") - 1
        place = self._begins[run] + drawn - self._trained[run]
        return np.where(self._spans[documents] > 0, place - self.store.offsets[documents], NOWHERE)


def draw_aims(rng: Rng, trained: Sequence[np.ndarray], context: int) -> np.ndarray:
    """Draw a trained token of each document, its place, or ``NOWHERE`` if all or none are trained; int64 [examples].

    ``trained`` are bool [tokens] of each document. Its first ``context`` tokens are not drawn.
    """
    places = [context + np.flatnonzero(flags[context:]) for flags in trained]
    drawn = rng.integers(_TOKEN, 0, np.array([max(len(some) - 1, 0) for some in places]))
    aimed = [0 < len(some) < len(flags) - context for some, flags in zip(places, trained, strict=True)]
    return np.array([some[at] if one else NOWHERE for some, at, one in zip(places, drawn, aimed, strict=True)])


def aim(
    rng: Rng,
    plans: Plans,
    origins: np.ndarray,
    *,
    aims: np.ndarray,
    context: int,
    spans: np.ndarray,
    lengths: np.ndarray,
    largest_skip: int | None,
) -> tuple[Plans, np.ndarray]:
    """Move spans and chunks so that each example holds the token at its aim, with ``context`` tokens of its chunk before it.

    The chunk is the last of more than ``context`` tokens. First the span moves in the document, then, at the document's ends,
    the chunk in the span: v_k changes, and v_i of the others only as far as they would overlap. Text that is contiguous
    stays so.

    Args:
        rng: one generator per example.
        plans: the plans, whose offsets count inside the spans.
        origins: where the spans start in their documents, int64 [examples].
        aims: places in the documents, at least ``context``, or ``NOWHERE``, int64 [examples].
        context: tokens before the aim.
        spans: the spans' lengths in tokens, int64 [examples].
        lengths: the documents' lengths in tokens, int64 [examples].
        largest_skip: chunks whose skip is their offset keep that, as far as this skip in tokens; None: skips stay.

    Returns:
        The plans and the origins; those of examples without an aim as they were.
    """
    chunks, tokens = plans.lengths.shape[1], plans.lengths.sum(axis=1)
    example, column = np.arange(len(aims)), np.arange(chunks)
    whole = (plans.offsets == plans.offsets[:, :1]).all(axis=1)
    chosen = chunks - 1 - np.argmax((plans.lengths > context)[:, ::-1], axis=1)
    starts = np.cumsum(plans.lengths, axis=1) - plans.lengths
    start = np.where(whole, 0, starts[example, chosen])
    size = np.where(whole, tokens, plans.lengths[example, chosen])
    before = rng.integers(_BEFORE, np.minimum(context, size - 1), size - 1)
    wanted = aims - before - start  # where in the document v_k should be
    moved_origins = np.clip(wanted - plans.offsets[example, chosen], 0, lengths - spans)
    offset = np.clip(wanted - moved_origins, 0, spans - tokens)[:, None]
    apart = np.where(column < chosen[:, None], np.minimum(plans.offsets, offset), np.maximum(plans.offsets, offset))
    apart[example, chosen] = offset[:, 0]
    moved = np.where(whole[:, None], offset, apart)
    aimed = (aims != NOWHERE)[:, None]
    skips = plans.skips
    if largest_skip is not None:
        follows = aimed & ~whole[:, None] & (plans.skips == plans.offsets)
        skips = np.where(follows, np.minimum(moved, largest_skip), skips)
    return (
        Plans(plans.lengths, skips, np.where(aimed, moved, plans.offsets)),
        np.where(aimed[:, 0], moved_origins, origins),
    )
