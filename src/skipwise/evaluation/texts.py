"""Texts to measure on: documents that no model was trained on, the longest first, and segments of documents.

Text of other kinds ships with the package: prose, mathematics and code, in segments inside the original window. The difference
of the losses of base and extended model is the cost of the extension on that kind of text.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from skipwise.data.store import TokenStore, split_by_name
from skipwise.data.text import KINDS, Document, shipped_text
from skipwise.data.tokenising import text_encoder
from skipwise.errors import DataError, RecipeError, counted
from skipwise.model.config import Origin
from skipwise.recipes.schema import Data
from skipwise.results.records import OTHER_TEXT
from skipwise.results.statistics import FEWEST_SEGMENTS

_SEGMENTS = 32  # at most, of each document of other text; one record each
_TOKENS = 2**14  # at most, of each document of other text
_FIX = "give more or longer text (--data, or --set evaluation.source=TEXT)"


@dataclass(frozen=True)
class Segment:
    """A document, or a part of it: its name, the index of its first token, and its tokens, int [tokens]."""

    document: str
    begin: int
    tokens: np.ndarray


@dataclass(frozen=True)
class EvaluationText:
    """The documents and segments of one text that one model reads."""

    source: str
    documents: list[Segment]  # the longest first, cut to the tokens that are read
    windows: list[int]  # that every document fills, in tokens, ascending
    segments: dict[int, list[Segment]]  # by their length in tokens
    fingerprint: str  # of the token store

    @property
    def digest(self) -> str:
        """SHA-256 in hex of the documents' names and tokens."""
        digest = hashlib.sha256()
        for one in self.documents:
            digest.update(one.document.encode() + b"\0" + np.asarray(one.tokens, dtype=np.int64).tobytes())
        return digest.hexdigest()

    @property
    def described(self) -> str:
        """Documents and tokens in one sentence."""
        names = [one.document for one in self.documents]
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        lengths = [len(one.tokens) for one in self.documents]
        tokens = f"{lengths[0]:,}" if lengths[0] == lengths[-1] else f"{lengths[-1]:,} to {lengths[0]:,}"
        return f"{self.source}: reading {counted(len(names), 'document')} ({shown}), {tokens} tokens of each"


def fair_documents(store: TokenStore, text: Data, origins: Iterable[Origin], console: Console) -> np.ndarray:
    """Return the documents that no model was trained on: int64 indices into ``store``.

    Documents of the training text are matched by their text, and by name in the same source, where a document may have been
    edited. The embedded model was trained on the standard library: of that only the held-out tenth is read.
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
        console.print(f"{text.source}: {len(fair):,} of {len(store):,} documents are not for training, and are read")
    return fair


def longest_first(store: TokenStore, candidates: np.ndarray) -> np.ndarray:
    """Sort documents by length, the longest first."""
    return candidates[np.argsort(-store.lengths[candidates], kind="stable")]


def filled_windows(store: TokenStore, candidates: np.ndarray, windows: Sequence[int], console: Console) -> list[int]:
    """Return the windows that the longest candidate fills, ascending; print those left out.

    Raises:
        DataError: there is no candidate, or it fills no window.
    """
    if len(candidates) == 0:
        raise DataError(f"all {counted(len(store), 'document')} are for training; {_FIX}, or raise data.held_out")
    first = longest_first(store, candidates)[0]
    longest, name = int(store.lengths[first]), store.names[first]
    filled = sorted({window for window in windows if window <= longest})
    if not filled:
        raise DataError(
            f"the longest document, {name}, has {longest:,} tokens and does not fill a window of {min(windows):,}; {_FIX}, or a "
            "smaller window"
        )
    if missing := sorted({window for window in windows if window > longest}):
        shown = ", ".join(f"{window:,}" for window in missing)
        console.print(
            f"no perplexity at {shown} tokens: the longest document, {name}, has {longest:,}",
            style="yellow",
            soft_wrap=True,
        )
    return filled


def longest_documents(
    store: TokenStore, candidates: np.ndarray, *, at_least: int, most: int, limit: int | None
) -> list[Segment]:
    """Take the ``most`` longest of ``candidates`` that have ``at_least`` tokens, each cut to its first ``limit``."""
    if limit is not None and limit < at_least:
        raise RecipeError(
            f"tokens_per_document {limit:,} must be at least the largest window, {at_least:,}; raise it, or lower the windows"
        )
    order = longest_first(store, candidates)
    chosen = order[store.lengths[order] >= at_least][:most]
    return [Segment(store.names[i], 0, np.asarray(store.document(int(i))[:limit])) for i in chosen]


def spread_segments(store: TokenStore, candidates: np.ndarray, length: int, most: int) -> list[Segment]:
    """Cut ``candidates`` into disjoint segments of ``length`` tokens, and take the first ``most``.

    The first segment of every document comes before the second of any: documents differ more than parts of a document. The
    list is empty if no document is that long.
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


def longest_segment(window: int) -> int:
    """Return the largest length of a segment of other text: inside ``window``, and with enough segments."""
    return min(window, _TOKENS // FEWEST_SEGMENTS)


def most_segments(length: int) -> int:
    """Return the largest number of segments of ``length`` tokens of a document of other text."""
    return min(_SEGMENTS, _TOKENS // length)


def cut_segments(document: str, tokens: np.ndarray, window: int) -> list[Segment]:
    """Cut a document, int64 [tokens], into eight or more segments of one length, at most ``window``."""
    length = min(longest_segment(window), len(tokens) // FEWEST_SEGMENTS)
    if length < 2:
        return []
    most = min(len(tokens) // length, most_segments(length))
    return [Segment(document, n * length, tokens[n * length : (n + 1) * length]) for n in range(most)]


def other_text(
    tokenizer: PreTrainedTokenizerBase, window: int, origins: Sequence[Origin], console: Console
) -> EvaluationText:
    """Return the segments of every kind of other text, at most ``window`` tokens each, without training text."""
    trained_on = np.concatenate([np.empty(0, dtype="<u8"), *(origin.documents for origin in origins)])
    segments: dict[int, list[Segment]] = {}
    texts = [shipped_text(kind) for kind in KINDS]
    for document, ids in zip(map(Document, KINDS, texts), text_encoder(tokenizer)(texts), strict=True):
        if np.isin(np.frombuffer(document.digest, dtype="<u8"), trained_on):
            console.print(
                f"the {document.name} that ships with skipwise is training text, and is not read", style="yellow"
            )
            continue
        tokens = np.asarray(ids, dtype=np.int64)
        for segment in cut_segments(document.name, tokens, window):
            segments.setdefault(len(segment.tokens), []).append(segment)
    return EvaluationText(OTHER_TEXT, [], [], segments, fingerprint="")
