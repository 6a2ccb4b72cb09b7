"""Sample windows that contain loss tokens, e.g. of a long document and a short answer.

Drawn like other text, nearly all windows of such a document hold nothing that is trained. So a trained token is drawn first,
each with the same chance, and the chunks are moved until one holds it: the last one that can train a token.
"""

from collections.abc import Sequence

import numpy as np

from skipwise.data.store import TokenStore
from skipwise.method.positions import Plans
from skipwise.method.rng import Rng

NOWHERE = -1  # the aim of an example that may begin anywhere

# Draw numbers, besides those of skipwise.data.examples.
_TOKEN, _BEFORE = 2**40 + 8, 2**40 + 9


class Answers:
    """Where the trained tokens of a store are, if its documents also have tokens that are not trained.

    Args:
        store: the tokens, and which of them are context.
    """

    def __init__(self, store: TokenStore) -> None:
        self.store = store
        begins = np.sort(np.concatenate([store.offsets[:-1], store.context[:, 1]]))
        ends = np.sort(np.concatenate([store.context[:, 0], store.offsets[1:]]))
        first = np.searchsorted(store.context[:, 0], store.offsets)  # of the spans of context of each document
        self._spans = np.diff(first)
        # A document has one run of trained tokens more than it has spans of context; a run may be empty.
        runs = first + np.arange(len(first))
        earliest = np.repeat(store.offsets[:-1] + 1, np.diff(runs))  # nothing predicts a first token
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


def draw_aims(rng: Rng, trained: Sequence[np.ndarray]) -> np.ndarray:
    """Draw a trained token of each document, its place, or ``NOWHERE`` if all or none are trained; int64 [examples].

    ``trained`` are bool [tokens] of each document. Its first token is not drawn.
    """
    places = [1 + np.flatnonzero(flags[1:]) for flags in trained]
    drawn = rng.integers(_TOKEN, 0, np.array([max(len(some) - 1, 0) for some in places]))
    aimed = [0 < len(some) < len(flags) - 1 for some, flags in zip(places, trained, strict=True)]
    return np.array([some[at] if one else NOWHERE for some, at, one in zip(places, drawn, aimed, strict=True)])


def aim(rng: Rng, plans: Plans, aims: np.ndarray, lengths: np.ndarray) -> Plans:
    """Move the text of each example so that it holds the token at its aim, after another token of its chunk.

    The chunk is the last of more than one token. All chunks move as far, but not beyond the document's ends. Positions
    and contiguous text stay so.

    Args:
        rng: one generator per example.
        plans: the plans.
        aims: places in the documents, at least 1, or ``NOWHERE``, int64 [examples].
        lengths: the documents' lengths in tokens, int64 [examples].
    """
    chunks, tokens = plans.lengths.shape[1], plans.lengths.sum(axis=1)
    example = np.arange(len(aims))
    whole = (plans.offsets == plans.offsets[:, :1]).all(axis=1)
    chosen = chunks - 1 - np.argmax((plans.lengths > 1)[:, ::-1], axis=1)
    starts = np.cumsum(plans.lengths, axis=1) - plans.lengths
    start = np.where(whole, 0, starts[example, chosen])
    size = np.where(whole, tokens, plans.lengths[example, chosen])
    before = rng.integers(_BEFORE, np.minimum(1, size - 1), size - 1)
    shift = aims - before - start - plans.offsets[example, chosen]
    moved = np.clip(plans.offsets + shift[:, None], 0, (lengths - tokens)[:, None])
    return Plans(plans.lengths, plans.skips, np.where((aims != NOWHERE)[:, None], moved, plans.offsets))
