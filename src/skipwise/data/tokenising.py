"""Build the token store of a source, once per content and tokenizer.

    CACHE/tokens/FINGERPRINT/           a store (``skipwise.data.store``)
    CACHE/tokens/.draft-FINGERPRINT/    a store that is being written; after a kill, the next build continues it
    CACHE/tokens/.locks/FINGERPRINT     held while a store is written

The threads of the tokenizers library tokenise; memory holds a batch of documents, or the longest document.
"""

import hashlib
import json
import math
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from rich.console import Console

from skipwise.data.chat import Conversation, chat_encoder
from skipwise.data.spans import Spans
from skipwise.data.store import SCHEMA, StoreWriter, TokenStore, open_store
from skipwise.data.text import Corpus, Document, open_corpus
from skipwise.data.tokenised import Tokens, tokens_encoder
from skipwise.errors import DataError, counted
from skipwise.progress import progress
from skipwise.recipes.schema import Data
from skipwise.results.files import default_cache, is_shared, sync_folder

PIECE = 2**18  # characters of a piece of a long text; the library takes 180 bytes of memory for each
_TOGETHER = 16  # pieces that are encoded at a time
AROUND = 512  # characters on each side of a cut that decide whether it is exact
_CUTS = (re.compile(r"\S(?= \S)|\S\n(?=\S)"), re.compile(r"\w(?=[^\w\s])|[^\w\s](?=\w)"))  # cut at the end of a match
_TRIED = 16  # places to cut, of each kind and size of piece
_BLOCK = 2**14  # characters that are searched for places at a time
_BATCH_CHARACTERS = 2**22  # keep every core busy
_BATCH_DOCUMENTS = 2**13

Ids = Sequence[int] | np.ndarray
OnProgress = Callable[[int, int, float | None], None]
OnMessage = Callable[[str], None]


def tokenise(source: str | Path | Data, tokenizer: Any, console: Console) -> TokenStore:
    """Return ``build_token_store`` of a source, with progress on the console."""
    warn = partial(console.print, style="yellow", markup=False, soft_wrap=True)
    with progress(f"tokenising {Data.of(source).source}", None, console, transient=True) as work:

        def show(documents: int, tokens: int, share: float | None) -> None:
            status = f"{counted(documents, 'document')}, {tokens:,} tokens"
            work.reach(share or work.done, total=1.0 if share else None, status=status)

        return build_token_store(source, tokenizer, on_progress=show, on_message=warn)


def build_token_store(
    source: str | Path | Data,
    tokenizer: Any,
    *,
    on_progress: OnProgress | None = None,
    on_message: OnMessage = warnings.warn,
) -> TokenStore:
    """Tokenise a source, or open its store: the same content and tokenizer have the same store.

    A text gets the special tokens that the tokenizer adds to a single sequence. Two processes that need the same store build it
    once.

    Args:
        source: a source, or a recipe's data section.
        tokenizer: the model's.
        on_progress: gets documents, tokens, and the share that is done, 0 to 1, or None if unknown, after each batch.
        on_message: gets a sentence about files that are not read.

    Raises:
        DataError: the source cannot be read or tokenised, or the store cannot be written.
        RunError: the store was changed after it was written.
    """
    data = Data.of(source)
    corpus = open_corpus(data)
    if corpus.unread:
        some = ", ".join(corpus.unread[:3]) + (", ..." if len(corpus.unread) > 3 else "")
        on_message(f"{corpus.source}: left out {counted(len(corpus.unread), 'file')} with other endings: {some}")
    template = getattr(tokenizer, "chat_template", None)
    key = [SCHEMA, corpus.fingerprint(), tokenizer_fingerprint(tokenizer), template, data.max_train_tokens]
    fingerprint = hashlib.sha256(json.dumps(key, default=str).encode()).hexdigest()
    stores = default_cache() / "tokens"
    folder = stores / fingerprint
    try:
        (stores / ".locks").mkdir(parents=True, exist_ok=True)
        with FileLock(stores / ".locks" / fingerprint, mode=0o666 if is_shared() else 0o600):
            if folder.exists():
                store = open_store(folder)
                if on_progress:
                    on_progress(len(store), len(store.tokens), 1.0)
                return store
            _remove_abandoned(stores)
            _build(stores / f".draft-{fingerprint}", folder, corpus, data, tokenizer, on_progress)
            return TokenStore(folder)
    except OSError as error:  # an unreadable source is a DataError already
        raise DataError(
            f"{error.filename or stores}: the token store cannot be written ({error.strerror or error}); free space, or set "
            "$SKIPWISE_CACHE to another folder"
        ) from error


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return a SHA-256 in hex of the rules of a tokenizer, without truncation and padding."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        rules = {"vocabulary": tokenizer.get_vocab(), "settings": getattr(tokenizer, "init_kwargs", {})}
    else:
        saved = json.loads(backend.to_str())
        rules = {name: rule for name, rule in saved.items() if name not in ("truncation", "padding")}
    split = bool(getattr(tokenizer, "split_special_tokens", False))
    key = [type(tokenizer).__name__, tokenizer.special_tokens_map, split, rules]
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()


def _build(
    draft: Path, folder: Path, corpus: Corpus, data: Data, tokenizer: Any, on_progress: OnProgress | None
) -> None:
    """Write the store of a corpus to ``draft``, and rename it to ``folder``."""
    vocabulary = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=0))
    labelled = isinstance(next(iter(corpus)).text, Tokens)
    encode, limit = _encoder(tokenizer, vocabulary, labelled), data.max_train_tokens or math.inf
    try:
        with StoreWriter(draft, vocabulary) as files:
            counts = files.counts
            for batch in _batches(corpus.read(counts["documents"]) if counts["tokens"] < limit else ()):
                for document, ids, context in encode(batch):
                    if counts["tokens"] < limit:
                        files.add(document, ids, context)
                files.keep()
                if on_progress:
                    done = [counts["documents"] / corpus.size if corpus.size else 0, counts["tokens"] / limit]
                    on_progress(counts["documents"], counts["tokens"], max(done) or None)
                if counts["tokens"] >= limit:
                    break
            files.finish(fingerprint=folder.name, source=corpus.source, labelled=labelled)
        draft.rename(folder)
        sync_folder(folder.parent)
    except (DataError, OSError):
        if not data.streaming:  # a stream may have broken off; other errors come again, or need the space
            shutil.rmtree(draft, ignore_errors=True)
        raise


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _encoder(
    tokenizer: Any, vocabulary: int, labelled: bool
) -> Callable[[list[Document]], Iterator[tuple[Document, Ids, Spans]]]:
    """Return a function from documents to each one's ids, and the spans that are context."""
    encode_texts, encode_tokens = text_encoder(tokenizer), tokens_encoder(tokenizer, vocabulary)
    encode_chat = cache(lambda: chat_encoder(tokenizer))

    def encode(documents: list[Document]) -> Iterator[tuple[Document, Ids, Spans]]:
        texts = encode_texts([document.text for document in documents if isinstance(document.text, str)])
        for document in documents:
            if isinstance(document.text, Tokens) != labelled:
                raise DataError(
                    f"{document.name}: text and tokenised documents cannot share a source; give one of them"
                )
            if isinstance(document.text, str):
                yield document, next(texts), []
            elif isinstance(document.text, Conversation):
                yield document, *encode_chat()(document.text, document.name)
            else:
                yield document, *encode_tokens(document.text, document.name)

    return encode


def _remove_abandoned(stores: Path) -> None:
    """Remove drafts that were not written to for a week."""
    for kept in stores.glob(".draft-*/build.json"):
        if kept.stat().st_mtime < time.time() - 7 * 86_400:
            shutil.rmtree(kept.parent, ignore_errors=True)


# --- long texts ---


def text_encoder(tokenizer: Any) -> Callable[[Sequence[str]], Iterator[Ids]]:
    """Return a function from texts to the ids of ``tokenizer(text)``, special tokens included.

    A text of more than ``PIECE`` characters is encoded in pieces, with the ids of the whole. A cut is made only if:

    1. No token goes across it: the pre-tokenizer splits there, or the model is a BPE and no entry of its vocabulary has the
       two characters at the cut side by side.
    2. The right piece does not depend on what comes before. It repeats the character before the cut, so that no prefix is added;
       the ids of that character must come first, and are dropped.
    3. The left piece does not depend on what follows. It has ``AROUND`` characters more; their ids must come last, and are dropped.

    Where no cut can be made, or 2 or 3 fail for a piece, the text is encoded whole.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda texts: iter(tokenizer(list(texts), truncation=False, verbose=False)["input_ids"])
    # The Rust side, without truncation and padding: the ids of ``tokenizer(text)`` in two thirds of the time.
    backend = type(backend).from_str(backend.to_str())
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    pieces = _Pieces(backend)

    def encode(texts: Sequence[str]) -> Iterator[Ids]:
        short = iter(backend.encode_batch_fast([text for text in texts if len(text) <= PIECE]))
        for text in texts:
            yield next(short).ids if len(text) <= PIECE else pieces.encode(text)

    return encode


class _Pieces:
    """Encode long texts piece by piece with a ``tokenizers.Tokenizer``."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        encoding, plain = backend.encode("a"), self._ids("a")
        begin = [*encoding.special_tokens_mask, 0].index(0)
        end = begin + len(plain)
        self.before, self.after = (np.array(ids, dtype=np.int64) for ids in (encoding.ids[:begin], encoding.ids[end:]))
        self.can_cut = encoding.ids[begin:end] == plain and all(encoding.special_tokens_mask[end:])

    def _ids(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode(self, text: str) -> Ids:
        """Return the ids of a text: a list, or int64 [tokens]."""
        if not self.can_cut:
            return self.backend.encode(text).ids
        pieces: list[
            tuple[str, list[int], list[int]]
        ] = []  # text, ids of the character before it, ids of the characters after it
        begin, lead = 0, list[int]()
        while cut := self._next_cut(text, begin):
            pieces.append((text[max(begin - 1, 0) : cut[0] + AROUND], lead, cut[2]))
            begin, lead = cut[:2]
        pieces.append((text[max(begin - 1, 0) :], lead, []))
        found = [self.before]
        for at in range(0, len(pieces), _TOGETHER):
            batch = pieces[at : at + _TOGETHER]
            encodings = self.backend.encode_batch_fast([piece for piece, _, _ in batch], add_special_tokens=False)
            for (_, lead, tail), encoding in zip(batch, encodings, strict=True):
                ids, end = encoding.ids, len(encoding.ids) - len(tail)
                if ids[: len(lead)] != lead or ids[end:] != tail:
                    return self.backend.encode(text).ids
                found.append(np.array(ids[len(lead) : end], dtype=np.int64))
        return np.concatenate([*found, self.after])

    def _next_cut(self, text: str, begin: int) -> tuple[int, list[int], list[int]] | None:
        """Return the next place to cut, with the ids of the character before it and of ``AROUND`` after it."""
        size = PIECE
        while begin + size < len(text):
            for place in _places(text, begin + size // 2, begin + size):
                if ids := self._ids_at(text, place):
                    return place, *ids
            size *= 2
        return None

    def _ids_at(self, text: str, place: int) -> tuple[list[int], list[int]] | None:
        """Return the ids on both sides of a cut, or None if it may change a token."""
        lead, right = self._ids(text[place - 1]), self._ids(text[place - 1 : place + AROUND])
        tail = right[len(lead) :]
        near = self.backend.encode(text[max(place - AROUND, 0) : place + AROUND], add_special_tokens=False)
        split = len(near.ids) - len(tail)
        if not tail or split <= 0 or right[: len(lead)] != lead or near.ids[split:] != tail:
            return None
        if near.word_ids[split - 1] != near.word_ids[split]:  # the pre-tokenizer splits here
            return lead, tail
        across = near.tokens[split - 1][-1:] + near.tokens[split][:1]
        bpe = type(self.backend.model).__name__ == "BPE"
        return (lead, tail) if bpe and across not in self._neighbours else None

    @cached_property
    def _neighbours(self) -> frozenset[str]:
        """All pairs of characters side by side in an entry of the vocabulary."""
        entries = self.backend.get_vocab(with_added_tokens=False)
        return frozenset(entry[i : i + 2] for entry in entries for i in range(len(entry) - 1))


def _places(text: str, begin: int, end: int) -> Iterator[int]:
    """Yield places to cut from ``end`` down to ``begin``: a few between words and lines, a few at punctuation."""

    def backwards(pattern: re.Pattern[str]) -> Iterator[int]:
        for stop in range(end, begin, -_BLOCK):
            yield from reversed([match.end() for match in pattern.finditer(text, max(begin, stop - _BLOCK), stop)])

    for pattern in _CUTS:
        yield from islice(backwards(pattern), _TRIED)
