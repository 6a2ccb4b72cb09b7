"""Documents -> a token store, built once per content and tokenizer; an interrupted build is continued.

    CACHE/tokens/.draft-FINGERPRINT/    a store being written (``skipwise.data.draft``)
    CACHE/tokens/.locks/FINGERPRINT     held while a store is written

Memory is limited by one batch of documents, or by the text of the longest document. The threads of the tokenizers
library tokenise (its Rust side releases Python's lock). Processes would each have to import the libraries and send
their tokens back, and would need a guarded ``__main__`` in every script of a user.
"""

import hashlib
import json
import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from filelock import FileLock
from rich.console import Console

from skipwise.data.conversations import TODAY, Conversation, conversation_encoder, tells_the_date
from skipwise.data.corpus import Corpus, Document, Place
from skipwise.data.documents import FileCorpus, open_corpus
from skipwise.data.draft import Draft
from skipwise.data.hugging_face import StreamError
from skipwise.data.names import printable
from skipwise.data.pieces import Ids, encoder, splits_special
from skipwise.data.spans import Spans
from skipwise.data.tokenised import Tokenised, tokenised_encoder
from skipwise.data.tokens import FILES, SCHEMA, TokenStore
from skipwise.errors import DataError, RunError, counted
from skipwise.progress import progress
from skipwise.recipes.schema import Data
from skipwise.results.files import (
    default_cache,
    keep_private,
    private_folder,
    private_mode,
    read_json,
    require_sealed,
    seal,
    sync_folder,
    write_json,
)

_BATCH_CHARACTERS = 2**22  # enough to keep every core busy; the encodings take about 100 MB
_BATCH_DOCUMENTS = 2**13
_ABANDONED_SECONDS = 7 * 86_400
_IDENTITY = 1  # part of every fingerprint; runs record those, so it changes only if the tokens of a text do
_CONVERSATIONS = 2  # the same, of stores with conversations alone

OnProgress = Callable[[int, int, float | None], None]
Say = Callable[[str], None]


def build_token_store(
    source: str | Path | Data, tokenizer: Any, *, on_progress: OnProgress | None = None, say: Say = warnings.warn
) -> TokenStore:
    """Tokenise a source, or open the store if it exists: the same content and tokenizer give the same store.

    A document gets the special tokens that the tokenizer gives a single sequence. If two processes need the same store
    at once, one waits for the other. An interrupted build continues after its last complete batch. A store or draft
    that is not what was written, by its hashes, is built again, and ``say`` gets a sentence about it, and about files that
    are not read.

    Of a recipe's data section ``max_tokens``, ``cache`` and ``workers`` apply too. The threads start when a process
    tokenises for the first time; a later change of ``workers`` has no effect. ``on_progress`` gets after each
    batch the numbers of documents and of tokens so far, and which share of all is done, 0..1, or None where nobody knows.

    Raises:
        DataError: the source cannot be read, a document cannot be tokenised, or the store cannot be written.
    """
    data = Data.of(source)
    corpus = open_corpus(data)
    if isinstance(corpus, FileCorpus) and (unread := corpus.unread):
        some = ", ".join(unread[:3]) + (", ..." if len(unread) > 3 else "")
        say(
            f"{corpus.source}: left out {counted(len(unread), 'file')}, whose endings are not those of text files: {some}"
        )
    limit = "" if data.max_tokens is None else f" {data.max_tokens}"
    content = corpus.fingerprint()
    chat = getattr(tokenizer, "chat_template", None)  # any document may be a conversation
    kind = corpus.kind()
    template = "" if chat is None and kind is not Conversation else f" {chat}"
    if template and kind is not Tokenised:
        template += f" {_CONVERSATIONS}" + (f" {TODAY}" if tells_the_date(str(chat)) else "")
    without = f"{_IDENTITY} {content} {tokenizer_fingerprint(tokenizer)}{limit}"
    names = _sha256(without), _sha256(without + template)
    cache = Path(data.cache) if data.cache else default_cache()
    if kind is not str:
        names = names[1], names[1]
    try:
        store, _ = _find(cache / "tokens", names)
        if store is None:
            if data.workers is not None:
                os.environ["RAYON_NUM_THREADS"] = str(min(data.workers, os.cpu_count() or 1))
            private_folder(cache)
            return _build(cache / "tokens", names, corpus, content, tokenizer, data.max_tokens, on_progress, say)
    except OSError as error:  # an unreadable source is a DataError already
        raise DataError(
            f"{printable(error.filename or cache)}: the token store cannot be written ({error.strerror or error}); "
            "set data.cache or $SKIPWISE_CACHE to a folder of yours with room"
        ) from error
    if on_progress is not None:
        on_progress(len(store), len(store.tokens), 1.0)
    return store


def tokenise(source: str | Path | Data, tokenizer: Any, console: Console) -> TokenStore:
    """Return ``build_token_store`` of a source, and show the progress on the console: in a log file, a line every 30 s.

    The time left is told where it is known how much text there is: not of one file of records, and not of a stream.
    """
    doing = f"tokenising {printable(Data.of(source).source)}"
    say = partial(console.print, style="yellow", markup=False, soft_wrap=True)
    with progress(doing, None, console, transient=True) as work:

        def show(documents: int, tokens: int, share: float | None) -> None:
            told = f"{counted(documents, 'document')}, {tokens:,} tokens"
            work.reach(share or work.done, total=1.0 if share else None, status=told)

        return build_token_store(source, tokenizer, on_progress=show, say=say)


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return a SHA-256 in hex of what decides the tokens of a text.

    Truncation and padding do not count: calls of the tokenizer change them, and they are not applied here.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        rules = {"vocabulary": tokenizer.get_vocab(), "settings": getattr(tokenizer, "init_kwargs", {})}
    else:
        saved = json.loads(backend.to_str())
        rules = {name: rule for name, rule in saved.items() if name not in ("truncation", "padding")}
    about = [type(tokenizer).__name__, tokenizer.special_tokens_map, splits_special(tokenizer), rules]
    return _sha256(json.dumps(about, sort_keys=True, default=str))


def _build(
    stores: Path,
    names: tuple[str, str],
    corpus: Corpus,
    content: str,
    tokenizer: Any,
    limit: int | None,
    on_progress: OnProgress | None,
    say: Say,
) -> TokenStore:
    draft = stores / f".draft-{names[1]}"
    private_folder(stores)
    private_folder(stores / ".locks")
    with FileLock(stores / ".locks" / names[1], mode=private_mode()):
        store, damage = _find(stores, names)
        if store is not None:  # another process built it meanwhile
            return store
        if damage:
            say(damage)
        _sweep(stores)
        try:
            about = _write(draft, corpus, tokenizer, limit, on_progress, say)
            if corpus.fingerprint() != content:
                raise DataError(
                    f"{printable(corpus.source)} was changed while it was read, so its tokens are of no known text; run the "
                    "command again when nothing writes there"
                )
            fingerprint = names[bool((draft / "context.bin").stat().st_size)]
            folder = stores / fingerprint
            about |= {"schema": SCHEMA, "fingerprint": fingerprint, "source": corpus.source, "seal": seal(draft, FILES)}
            write_json(draft / "store.json", about)
            keep_private(draft / "store.json")
            shutil.rmtree(folder, ignore_errors=True)  # damaged, or of another schema
            draft.rename(folder)
            sync_folder(stores)
        except StreamError:
            raise
        except (DataError, OSError):  # the next build would fail in the same way, or need the disk space
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return TokenStore(folder)


def _write(
    draft: Path, corpus: Corpus, tokenizer: Any, max_tokens: int | None, on_progress: OnProgress | None, say: Say
) -> dict[str, Any]:
    """Write all files of the store but ``store.json``, and return their counts for it."""
    vocabulary = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=0))
    encode, limit = _encoder(tokenizer, corpus, vocabulary), math.inf if max_tokens is None else max_tokens
    with Draft(draft, vocabulary, say) as files:
        counts = files.counts
        for batch, place in _batches(corpus, files.place):
            for document, rows, context in encode(batch):
                if counts["tokens"] >= limit:
                    break
                files.add(document, rows, context)
            files.keep(place)
            if on_progress is not None:
                known = [corpus.share(place), None if max_tokens is None else counts["tokens"] / max_tokens]
                on_progress(counts["documents"], counts["tokens"], max(filter(None, known), default=None))
            if counts["tokens"] >= limit:
                break
        files.finish()
    return {**counts, "dtype": files.dtype.str, "labelled": corpus.kind() is Tokenised}


def _encoder(
    tokenizer: Any, corpus: Corpus, vocabulary: int
) -> Callable[[list[Document]], Iterator[tuple[Document, Iterable[Ids], Spans]]]:
    """Return a function from documents to each one's token ids, piece by piece, and the spans that are context."""
    first = corpus.kind()
    kinds = {str: "a text", Conversation: "a conversation", Tokenised: "tokenised"}
    texts = encoder(tokenizer)
    others: dict[type[str], Callable[[Any, str], tuple[Any, Spans]]] = {}  # made when the first such document comes

    def encode(documents: list[Document]) -> Iterator[tuple[Document, Iterable[Ids], Spans]]:
        for kind, group in groupby(documents, key=lambda document: type(document.text)):
            alike = list(group)
            if (kind is Tokenised) != (first is Tokenised):
                raise DataError(
                    f"{alike[0].name} is {kinds[kind]}, and the first document of {printable(corpus.source)} is {kinds[first]}; "
                    "keep tokens in a source of their own"
                )
            if kind is str:
                yield from ((document, rows, []) for document, rows in texts(alike))
                continue
            if kind not in others:
                chat = kind is Conversation
                others[kind] = conversation_encoder(tokenizer) if chat else tokenised_encoder(tokenizer, vocabulary)
            for document in alike:
                ids, context = others[kind](document.text, document.name)
                yield document, [ids], context

    return encode


def _batches(corpus: Corpus, place: Place) -> Iterator[tuple[list[Document], Place]]:
    """Yield the documents after ``place`` in batches worth starting threads for, and the place of each one's last."""
    batch: list[Document] = []
    characters, mark = 0, None
    for document, mark in corpus.read(place):
        batch.append(document)
        characters += len(document.text)
        if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_DOCUMENTS:
            yield batch, corpus.place(mark)
            batch, characters = [], 0
    if batch:
        yield batch, corpus.place(mark)


def _find(stores: Path, names: tuple[str, str]) -> tuple[TokenStore | None, str]:
    """Return the store of a source, or None and what is wrong with it.

    The template counts for conversations alone, and whether there are any shows when all is read. So a store without one has the
    first name, whatever the tokenizer's template, and one with some the second.
    """
    store, damage = _open(stores / names[0])
    if store is None and names[1] != names[0]:
        store, other = _open(stores / names[1])
        damage = damage or other
    return store, damage


def _open(folder: Path) -> tuple[TokenStore | None, str]:
    """Return the store in ``folder``, or None and what is wrong with it: nothing, if there is none of this schema."""
    if not folder.is_dir():
        return None, ""
    try:
        about = read_json(folder / "store.json")
        if about.get("schema") != SCHEMA:
            return None, ""
        require_sealed(folder, about["seal"], "it is built again")
        return TokenStore(folder), ""
    except (RunError, DataError) as error:
        return None, f"token store: {error}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return (
            None,
            f"token store: {folder / 'store.json'} is not the file that was written ({error}); it is built again",
        )


def _sweep(stores: Path) -> None:
    """Remove drafts to which nothing was written for a week."""
    for draft in stores.glob(".draft-*"):
        try:
            newest = max(path.stat().st_mtime for path in (draft, *draft.iterdir()))
        except FileNotFoundError:  # another process has just finished it
            continue
        if newest < time.time() - _ABANDONED_SECONDS:
            shutil.rmtree(draft, ignore_errors=True)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
