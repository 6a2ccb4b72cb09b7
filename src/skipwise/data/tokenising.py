"""Build the token store of a source, once per content and tokenizer.

    CACHE/tokens/FINGERPRINT/           a store (``skipwise.data.store``)
    CACHE/tokens/.draft-FINGERPRINT/    a store that is being written; after a kill, the next build continues it
    CACHE/tokens/.locks/FINGERPRINT     held while a store is written

The threads of the tokenizers library tokenise; memory holds a batch of documents, 150 bytes for each character.
"""

import hashlib
import json
import math
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from rich.console import Console

from skipwise.data.chat import Conversation, chat_encoder
from skipwise.data.store import SCHEMA, StoreWriter, TokenStore, open_store
from skipwise.data.text import Corpus, Document, Tokens, open_corpus
from skipwise.errors import DataError, counted
from skipwise.progress import progress
from skipwise.recipes.schema import Data
from skipwise.results.files import default_cache, is_shared, sync_folder

_BATCH_CHARACTERS = 2**22  # keep every core busy
_BATCH_DOCUMENTS = 2**13

Ids = Sequence[int] | np.ndarray
Flags = Sequence[bool] | np.ndarray
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
    once. ``on_progress`` gets documents, tokens, and the share that is done, 0 to 1, or None if unknown, after each batch.

    Raises:
        DataError: the source cannot be read or tokenised.
        OSError: the store cannot be written.
        RunError: the store was changed after it was written.
    """
    data = Data.of(source)
    corpus = open_corpus(data)
    if corpus.unread:
        names = ", ".join(corpus.unread[:3]) + (", ..." if len(corpus.unread) > 3 else "")
        on_message(f"{corpus.source}: left out {counted(len(corpus.unread), 'file')} with other endings: {names}")
    template = getattr(tokenizer, "chat_template", None)
    key = [SCHEMA, corpus.fingerprint(), tokenizer_fingerprint(tokenizer), template, data.max_train_tokens]
    fingerprint = hashlib.sha256(json.dumps(key, default=str).encode()).hexdigest()
    stores = default_cache() / "tokens"
    folder = stores / fingerprint
    (stores / ".locks").mkdir(parents=True, exist_ok=True)
    with FileLock(stores / ".locks" / fingerprint, mode=0o666 if is_shared() else 0o600):
        if folder.exists():
            store = open_store(folder)
            if on_progress:
                on_progress(len(store), len(store.tokens), 1.0)
            return store
        _build(stores / f".draft-{fingerprint}", folder, corpus, data, tokenizer, on_progress)
        return TokenStore(folder)


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return a SHA-256 in hex of the rules of a tokenizer, without truncation and padding."""
    if backend := getattr(tokenizer, "backend_tokenizer", None):
        saved = json.loads(backend.to_str())
        rules = {name: rule for name, rule in saved.items() if name not in ("truncation", "padding")}
    else:
        rules = {"vocabulary": tokenizer.get_vocab(), "settings": getattr(tokenizer, "init_kwargs", {})}
    split = bool(getattr(tokenizer, "split_special_tokens", False))
    key = [type(tokenizer).__name__, tokenizer.special_tokens_map, split, rules]
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()


def _build(
    draft: Path, folder: Path, corpus: Corpus, data: Data, tokenizer: Any, on_progress: OnProgress | None
) -> None:
    """Write the store of a corpus to ``draft``, and rename it to ``folder``."""
    vocabulary = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=0))
    if (first := next(iter(corpus), None)) is None:
        raise DataError(f"{corpus.source} holds no document; choose another data.source")
    encode, limit = _encoder(tokenizer, vocabulary), data.max_train_tokens or math.inf
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
            files.finish(fingerprint=folder.name, source=corpus.source, labelled=isinstance(first.text, Tokens))
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


def _encoder(tokenizer: Any, vocabulary: int) -> Callable[[list[Document]], Iterator[tuple[Document, Ids, Flags]]]:
    """Return a function from documents to each one's ids, and which of them are context."""
    encode_texts, encode_chat = text_encoder(tokenizer), chat_encoder(tokenizer)

    def encode(documents: list[Document]) -> Iterator[tuple[Document, Ids, Flags]]:
        texts = encode_texts([document.text for document in documents if isinstance(document.text, str)])
        for document in documents:
            if isinstance(document.text, str):
                yield document, next(texts), ()
            elif isinstance(document.text, Conversation):
                yield document, *encode_chat(document.text, document.name)
            else:
                ids = document.text.ids
                if len(outside := ids[(ids < 0) | (ids >= vocabulary)]):
                    raise DataError(
                        f"{document.name}: token {outside[0]} is not in 0..{vocabulary - 1}; tokenise with the model's own "
                        "tokenizer, or give text"
                    )
                yield document, ids, document.text.untrained

    return encode


def text_encoder(tokenizer: Any) -> Callable[[Sequence[str]], Iterator[Ids]]:
    """Return a function from texts to the ids of ``tokenizer(text)``, special tokens included."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda texts: iter(tokenizer(list(texts), truncation=False, verbose=False)["input_ids"])
    # The Rust side, without truncation and padding: the ids of ``tokenizer(text)`` in two thirds of the time.
    backend = type(backend).from_str(backend.to_str())
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    return lambda texts: (encoding.ids for encoding in backend.encode_batch_fast(list(texts)))
