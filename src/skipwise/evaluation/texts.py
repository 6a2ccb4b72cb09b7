"""A text -> what is measured on: documents that no model was trained on, the longest first, and segments of them."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from skipwise.data.store import TokenStore, split_by_name
from skipwise.errors import DataError, RecipeError, counted
from skipwise.model.origin import Origin
from skipwise.recipes.schema import Data

_OTHER = "(--set evaluation.source=OTHER of extend, --data OTHER of the other commands)"


@dataclass(frozen=True)
class Segment:
    """A document, or the part of it that is read: its name, where it begins there, and its tokens, int [tokens]."""

    document: str
    begin: int
    tokens: np.ndarray


@dataclass(frozen=True)
class EvaluationText:
    """What one model reads of one text."""

    source: str
    documents: list[Segment]  # the longest first, cut to the tokens that are read
    windows: list[int]  # those that every document fills, in tokens, rising
    segments: dict[int, list[Segment]]  # by their length in tokens
    fingerprint: str  # of the token store that they come from

    @property
    def digest(self) -> str:
        """SHA-256 in hex of the documents' names and tokens: equal where two models read the same."""
        digest = hashlib.sha256()
        for one in self.documents:
            digest.update(one.document.encode() + b"\0" + np.asarray(one.tokens, dtype=np.int64).tobytes())
        return digest.hexdigest()

    @property
    def described(self) -> str:
        """What is read, in one sentence."""
        names = [one.document for one in self.documents]
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        lengths = [len(one.tokens) for one in self.documents]
        tokens = f"{lengths[0]:,}" if lengths[0] == lengths[-1] else f"{lengths[-1]:,} to {lengths[0]:,}"
        return f"{self.source}: reading {counted(len(names), 'document')} ({shown}), {tokens} tokens of each"


def fair_documents(store: TokenStore, text: Data, origins: Iterable[Origin], console: Console) -> np.ndarray:
    """Return the documents that no model was trained on, and say how many: int64 indices into ``store``.

    Every command that measures on text asks here. A document that was trained on is recognised by its text, wherever
    it lies, and by its name in the text that the model was trained on, where it may have been edited since. The
    embedded model was trained on the standard library, so of that only the held-out tenth is read, whatever the model.
    ``origins`` say what the models were trained on.
    """
    fair = np.arange(len(store))
    shares = [Data().held_out] if text.source == "stdlib" else []
    for origin in origins:
        fair = fair[~np.isin(store.digests[fair], origin.documents)]
        trained = origin.text
        ours, theirs = Path(text.source).resolve(), Path(trained.source).resolve()
        same = trained.source == text.source or (ours == theirs and ours.exists())
        if same and trained.split == text.split:
            shares.append(trained.held_out)
    if shares:  # a document held out at a small share is held out at every larger one
        fair = np.intersect1d(fair, split_by_name(store, min(shares))[1])
    if len(fair) < len(store):
        console.print(
            f"{text.source}: {len(fair):,} of {len(store):,} documents are read to measure; the others are for training, by their text "
            "or by their names"
        )
    return fair


def longest_first(store: TokenStore, candidates: np.ndarray) -> np.ndarray:
    """Sort documents by length, the longest first."""
    return candidates[np.argsort(-store.lengths[candidates], kind="stable")]


def filled_windows(store: TokenStore, candidates: np.ndarray, windows: Sequence[int], console: Console) -> list[int]:
    """Return the windows that the longest of ``candidates`` fills; say which are left out.

    A document shorter than a window would be measured at a shorter window than the table says.
    """
    if len(candidates) == 0:
        raise DataError(
            f"no document of {len(store):,} is left to measure on, since trained text and copies of it are left out: measure on "
            f"another text {_OTHER}, or {_before(len(store))}"
        )
    first = longest_first(store, candidates)[0]
    longest, name = int(store.lengths[first]), store.names[first]
    filled = sorted({window for window in windows if window <= longest})
    if not filled:
        raise DataError(
            f"the longest document to measure on, {name}, has {longest:,} tokens and does not fill a window of "
            f"{min(windows):,}: measure on longer text {_OTHER}, or at a smaller window"
        )
    if missing := sorted({window for window in windows if window > longest}):
        shown = ", ".join(f"{window:,}" for window in missing)
        console.print(
            f"perplexity at {shown} tokens is left out: the longest document to measure on, {name}, has {longest:,}",
            style="yellow",
        )
    return filled


def _before(documents: int) -> str:
    """Say how to hold some of a text out. Of a model that is trained it comes too late: it has read the parts as well."""
    larger = "raise data.held_out, or " if documents > 1 else ""
    return f"before training {larger}split the text into several files"


def longest_documents(
    store: TokenStore, candidates: np.ndarray, *, at_least: int, most: int, limit: int | None
) -> list[Segment]:
    """Take the ``most`` longest of ``candidates`` that have ``at_least`` tokens, each cut to its first ``limit``."""
    if limit is not None and limit < at_least:
        raise RecipeError(
            f"tokens_per_document {limit:,} must be at least the largest window, {at_least:,}: raise it, or lower the "
            "windows"
        )
    order = longest_first(store, candidates)
    chosen = order[store.lengths[order] >= at_least][:most]
    return [Segment(store.names[i], 0, np.asarray(store.document(int(i))[:limit])) for i in chosen]


def spread_segments(store: TokenStore, candidates: np.ndarray, length: int, most: int) -> list[Segment]:
    """Cut ``candidates`` into segments of ``length`` tokens that do not overlap, and take the first ``most``.

    The first segment of every document comes before the second of any, because documents differ more from each other
    than the parts of one document do. The longest document comes first. The list is empty if no document is that long.
    """
    places = [
        (begin, rank, int(document))
        for rank, document in enumerate(longest_first(store, candidates))
        for begin in range(0, int(store.lengths[document]) - length + 1, length)
    ]
    return [
        Segment(store.names[d], begin, np.asarray(store.document(d)[begin : begin + length], dtype=np.int64))
        for begin, _, d in sorted(places)[:most]
    ]
