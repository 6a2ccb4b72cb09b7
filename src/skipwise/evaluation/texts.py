"""Texts to measure on: documents that no model was trained on, the longest first, and segments of documents.

Text of other kinds ships with the package: prose, mathematics and code, in segments inside the original window. The difference
of the losses of base and extended model is the cost of the extension on that kind of text.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from skipwise.data.store import TokenStore, check_vocabulary, split_by_name
from skipwise.data.text import KINDS, Document, shipped_text
from skipwise.data.tokenising import text_encoder, tokenise
from skipwise.errors import DataError, RecipeError, counted
from skipwise.evaluation.specification import Specification
from skipwise.model.config import Origin, load_config
from skipwise.model.loading import load_tokenizer
from skipwise.recipes.schema import Data
from skipwise.results.records import OTHER_TEXT
from skipwise.results.statistics import FEWEST_SEGMENTS

_SEGMENTS = 32  # at most, of each document of other text; one record each
_TOKENS = 2**14  # at most, of each document of other text
_FIX = "give more or longer text (--data, or --set evaluation.source=TEXT)"


@dataclass(frozen=True)
class Segment:
    """A document or a part of it: name, first token's index, int [tokens]."""

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
    far: list[Segment] = field(default_factory=list)  # of the target length, to compare training steps

    @property
    def digest(self) -> str:
        """SHA-256 in hex of the documents' names and tokens."""
        digest = hashlib.sha256()
        for segment in self.documents:
            digest.update(segment.document.encode() + b"\0" + np.asarray(segment.tokens, dtype=np.int64).tobytes())
        return digest.hexdigest()


def read_texts(
    specification: Specification,
    name: str,
    origins: Sequence[Origin],
    console: Console,
    stores: Mapping[str, TokenStore] | None = None,
) -> list[EvaluationText]:
    """Tokenise the texts for model ``name``, and choose the documents that are read of each.

    ``origins`` have the documents that models were trained on; these are not read. ``stores`` are known token stores by source.

    Raises:
        DataError: no document fills a window, or the target length where training steps are compared.
    """
    rule, texts = specification, list[EvaluationText]()
    tokenizer, config = load_tokenizer(name), load_config(name)
    for text in rule.texts if rule.documents else []:
        store = (stores or {}).get(text.source) or tokenise(text, tokenizer, console)
        check_vocabulary(store, config.get_text_config().vocab_size)
        among = fair_documents(store, text, origins, console)
        windows = filled_windows(store, among, rule.windows, console)
        limit = rule.tokens_read(windows[-1])
        documents = longest_documents(store, among, at_least=windows[-1], most=rule.documents, limit=limit)
        segments = {length: spread_segments(store, among, length, rule.segments) for length in rule.segment_lengths}
        far = spread_segments(store, among, rule.target, rule.segments) if rule.save_best and not texts else []
        if rule.save_best and not texts and not far:
            raise DataError(
                f"evaluation.save_best=true needs documents of the target length, and {text.source} has none of "
                f"{rule.target:,} tokens; give longer text by evaluation.source, or set evaluation.save_best=false"
            )
        texts.append(EvaluationText(text.source, documents, windows, segments, store.fingerprint, far))
        names, lengths = [segment.document for segment in documents], [len(segment.tokens) for segment in documents]
        shown = f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
        tokens = " to ".join(f"{length:,}" for length in sorted({min(lengths), max(lengths)}))
        text_read = f"{text.source}: reading {counted(len(names), 'document')} ({shown}), {tokens} tokens of each"
        console.print(text_read, soft_wrap=True)
    return texts


def fair_documents(store: TokenStore, text: Data, origins: Iterable[Origin], console: Console) -> np.ndarray:
    """Return the documents that no model was trained on: int64 indices into ``store``.

    Documents of the training text are matched by their text, and by name in the same source, where a document may have been
    edited. The embedded model was trained on the standard library: of that only the held-out tenth is read.
    """
    fair = np.arange(len(store))
    shares = [Data().held_out] if text.source == "stdlib" else []
    for origin in origins:
        fair = fair[~np.isin(store.digests[fair], origin.documents)]
        trained = origin.data
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
    if missing := sorted(set(windows).difference(filled)):
        shown = ", ".join(f"{window:,}" for window in missing)
        text = f"no perplexity at {shown} tokens: the longest document, {name}, has {longest:,}"
        console.print(text, style="yellow", soft_wrap=True)
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
    number = min(len(tokens) // length, most_segments(length)) if length > 1 else 0
    return [Segment(document, n * length, tokens[n * length : (n + 1) * length]) for n in range(number)]


def other_text(
    tokenizer: PreTrainedTokenizerBase, window: int, origins: Sequence[Origin], console: Console
) -> EvaluationText:
    """Return segments of at most ``window`` tokens of every kind of other text."""
    trained_on = np.concatenate([np.empty(0, dtype="<u8"), *(origin.documents for origin in origins)])
    segments: dict[int, list[Segment]] = {}
    texts = [shipped_text(kind) for kind in KINDS]
    for document, ids in zip(map(Document, KINDS, texts), text_encoder(tokenizer)(texts), strict=True):
        if np.isin(np.frombuffer(document.digest, dtype="<u8"), trained_on):
            text = f"the {document.name} that ships with skipwise is training text, and is not read"
            console.print(text, style="yellow")
            continue
        for segment in cut_segments(document.name, np.asarray(ids, dtype=np.int64), window):
            segments.setdefault(len(segment.tokens), []).append(segment)
    return EvaluationText(OTHER_TEXT, [], [], segments, fingerprint="")
