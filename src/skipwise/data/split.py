"""Which documents of a text are trained on, which are held out to measure on, and which are too short."""

from dataclasses import dataclass

import numpy as np

from skipwise.data.tokens import TokenStore, split_by_name
from skipwise.errors import DataError, counted
from skipwise.recipes.schema import Data


@dataclass(frozen=True)
class Split:
    """The documents of a store by what they are for; indices into it are int64 and rise."""

    train: np.ndarray  # to train on
    held_out: np.ndarray  # by name, of any length
    shortest: int  # the fewest tokens that a document to train on has
    setting: str  # that says how few
    dropped: int  # how many documents are neither held out nor long enough

    @property
    def told(self) -> str:
        """A sentence on how many documents are kept, and on what keeps more."""
        kept, all_long = len(self.train), len(self.train) + self.dropped
        if not self.dropped:
            return f"kept {kept:,} of {counted(all_long, 'document')}; none has fewer than {self.shortest:,} tokens"
        return (
            f"kept {kept:,} of {all_long:,} documents, and left out {self.dropped:,} of fewer than {self.shortest:,} tokens. "
            f"To keep more, lower `{self.setting}` or join documents"
        )


def split_documents(store: TokenStore, data: Data, window: int, *, whole: bool) -> Split:
    """Choose the documents to train on: those not held out by name, of ``data.min_tokens`` or a ``window`` of tokens at least.

    Conversations may be shorter, because they are packed, but not in windows that are as long as the ``whole`` target.

    Raises:
        DataError: there are none.
    """
    train, held_out = split_by_name(store, data.held_out)
    packed = store.holds_conversations and not whole
    shortest = data.min_tokens or 2 if packed else max(data.min_tokens or 0, window)
    setting = "data.min_tokens" if shortest != window else "target" if whole else "train_length"
    long = train[store.lengths[train] >= shortest]
    if not len(long):
        raise DataError(_none_left(store, train, held_out, shortest, setting, data.held_out))
    return Split(long, held_out, shortest, setting, len(train) - len(long))


def _none_left(
    store: TokenStore, train: np.ndarray, held_out: np.ndarray, shortest: int, setting: str, share: float
) -> str:
    """Say why no document is left to train on, and what helps."""
    documents = counted(len(store), "document")
    if not len(train):
        return f"data.held_out = {share:g} leaves none of {documents} to train on; give more documents, or lower it"
    longest = train[np.argsort(-store.lengths[train], kind="stable")][:3]
    named = ", ".join(f"{store.names[i]} ({store.lengths[i]:,})" for i in longest)
    lower = [setting, *(["data.held_out"] if (store.lengths[held_out] >= shortest).any() else [])]
    return (
        f"of {documents} none of {shortest:,} tokens or more is left to train on after holding out {len(held_out):,}; the longest "
        f"are {named}; give longer text, join documents, or lower {' or '.join(lower)}"
    )
