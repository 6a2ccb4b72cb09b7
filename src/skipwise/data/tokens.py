"""Documents -> a token store on the disk, memory-mapped, built once for each content and tokenizer.

    CACHE/tokens/FINGERPRINT/
      tokens.bin     every document's tokens, one after the other; uint16 or uint32, little-endian
      offsets.npy    int64 [documents + 1]: document i is tokens[offsets[i]:offsets[i + 1]]
      names.jsonl    a name a line
      store.json     schema, counts and file sizes; written last, so a store without it is none

Memory stays bounded by one batch of documents, or by the longest document. Tokenising runs in the threads
of the tokenizers library (its Rust side lets go of Python's lock); processes would each have to import and
to send their tokens back, and need a guarded ``__main__`` in every script of a user.
"""

import hashlib
import json
import os
import secrets
import shutil
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from skipwise.data.documents import Corpus, Document, is_held_out, open_corpus
from skipwise.errors import DataError

SCHEMA = 1
_FILES = ("tokens.bin", "offsets.npy", "names.jsonl")
_BATCH_CHARACTERS = 2**22  # keeps every core busy; its encodings hold some 100 MB
_BATCH_DOCUMENTS = 2**13
_ABANDONED_SECONDS = 86_400

Progress = Callable[[int, int], None]


class TokenStore:
    """The tokens of a source, memory-mapped and read-only. Pickles as its path.

    Attributes:
        path: its folder.
        fingerprint: SHA-256 in hex of the documents' content and the tokenizer.
        tokens: uint16 or uint32 [tokens], all documents one after the other.
        offsets: int64 [documents + 1].
        largest_token: the largest token id in it; -1 where there is no token.
    """

    def __init__(self, path: Path) -> None:
        """Open the store in folder ``path``.

        Raises:
            DataError: a file is missing, cut short or of another schema.
        """
        self.path = Path(path)
        try:
            about = json.loads((self.path / "store.json").read_text(encoding="utf-8"))
            sizes = {name: (self.path / name).stat().st_size for name in _FILES}
            if about["schema"] != SCHEMA or sizes != about["bytes"]:
                raise ValueError(f"schema {about['schema']}, sizes {sizes}")
            self.fingerprint: str = about["fingerprint"]
            self.largest_token: int = about["largest_token"]
            self.offsets: np.ndarray = np.load(self.path / "offsets.npy", mmap_mode="r", allow_pickle=False)
            # An empty file cannot be mapped.
            self.tokens: np.ndarray = (
                np.memmap(self.path / "tokens.bin", dtype=about["dtype"], mode="r")
                if sizes["tokens.bin"]
                else np.empty(0, dtype=about["dtype"])
            )
            if len(self) != about["documents"] or self.offsets[-1] != len(self.tokens):
                raise ValueError(f"{len(self)} documents, {len(self.tokens)} tokens")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self.path} is no whole token store ({error}); remove it, and it is built again"
            ) from error

    def __len__(self) -> int:
        """How many documents there are."""
        return len(self.offsets) - 1

    def __reduce__(self) -> tuple[type["TokenStore"], tuple[Path]]:
        return TokenStore, (self.path,)

    @cached_property
    def names(self) -> list[str]:
        """The documents' names, in order."""
        with open(self.path / "names.jsonl", encoding="ascii") as file:
            return [json.loads(line) for line in file]

    @cached_property
    def lengths(self) -> np.ndarray:
        """The documents' lengths in tokens: int64 [documents]."""
        return np.diff(self.offsets)

    def document(self, index: int) -> np.ndarray:
        """The tokens of document ``index``: uint16 or uint32 [tokens of it], a view of the map.

        Raises:
            IndexError: there is no such document.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}")
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


def default_cache() -> Path:
    """``$SKIPWISE_CACHE``, else ``skipwise`` in the user's cache folder (``$XDG_CACHE_HOME``, ~/.cache)."""
    own = os.environ.get("SKIPWISE_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skipwise"


def build_token_store(
    source: str | Path,
    tokenizer: Any,
    *,
    cache: str | Path | None = None,
    text_field: str = "text",
    split: str = "train",
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> TokenStore:
    """Tokenise ``source``, or find it tokenised: the same content and tokenizer give the same store.

    A document gets the special tokens that the tokenizer gives a single sequence. Two processes may build
    the same store at once: the first to finish wins, both use it.

    Args:
        source: what ``skipwise.data.documents.read_documents`` reads.
        tokenizer: a transformers tokenizer.
        cache: the cache folder; default ``default_cache()``.
        text_field: the field of records that holds the text.
        split: the split of a Hugging Face data set.
        workers: threads that tokenise, no more than there are cores; default all of them. They start with a
            process's first tokenising, so after that another number changes nothing.
        on_progress: called after each batch with the documents and tokens so far.

    Raises:
        DataError: the source cannot be read, or the cache cannot be written.
    """
    corpus = open_corpus(source, text_field=text_field, split=split)
    fingerprint = _sha256(f"{SCHEMA} {corpus.fingerprint()} {tokenizer_fingerprint(tokenizer)}")
    cache = Path(cache).expanduser() if cache else default_cache()
    store = _open(cache / "tokens" / fingerprint)
    if store is None:
        if workers is not None:
            os.environ["RAYON_NUM_THREADS"] = str(min(workers, os.cpu_count() or 1))
        try:
            store = _build(cache / "tokens", fingerprint, corpus, tokenizer, on_progress)
        except OSError as error:  # what cannot be read is a DataError already
            raise DataError(
                f"{cache}: the token store cannot be written ({error.strerror or error}); "
                "set data.cache or $SKIPWISE_CACHE to a folder with room"
            ) from error
    elif on_progress is not None:
        on_progress(len(store), len(store.tokens))
    return store


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Hash what decides the tokens of a text: SHA-256 in hex.

    Truncation and padding are left out: they are a state that calls change, and are not applied here.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        rules = json.loads(backend.to_str())
        rules.pop("truncation", None)
        rules.pop("padding", None)
    else:
        rules = {"vocabulary": tokenizer.get_vocab(), "settings": getattr(tokenizer, "init_kwargs", {})}
    about = [type(tokenizer).__name__, tokenizer.special_tokens_map, _splits_special(tokenizer), rules]
    return _sha256(json.dumps(about, sort_keys=True, default=str))


def check_vocabulary(store: TokenStore, vocabulary: int) -> None:
    """Refuse a store whose tokens the model does not have.

    Raises:
        DataError: a token id is not below ``vocabulary``; names the first.
    """
    if store.largest_token < vocabulary:
        return
    for index in range(len(store)):
        beyond = store.document(index)[store.document(index) >= vocabulary]
        if len(beyond):
            raise DataError(
                f"document {index:,} ({store.names[index]}): token {beyond[0]} >= vocabulary {vocabulary}: "
                "another model's tokenizer?"
            )


def keep_long(store: TokenStore, min_tokens: int, among: np.ndarray | None = None) -> np.ndarray:
    """Find the documents of at least ``min_tokens`` tokens: int64 [kept] indices, ascending as given.

    Args:
        store: the documents.
        min_tokens: the paper keeps documents of at least the train length.
        among: int64 indices to choose from; default all.

    Raises:
        DataError: none is that long.
    """
    among = np.arange(len(store)) if among is None else np.asarray(among, dtype=np.int64)
    lengths = store.lengths[among]
    kept = among[lengths >= min_tokens]
    if not len(kept):
        longest = (
            f"the longest, {store.names[among[lengths.argmax()]]}, has {lengths.max():,}"
            if len(among)
            else "none"
        )
        raise DataError(
            f"kept 0 of {len(among):,} documents; all are under {min_tokens:,} tokens: {longest}. "
            "Lower `train_length` or `data.min_tokens`, or pack them"
        )
    return kept


def dropped_message(documents: int, kept: int, min_tokens: int, setting: str = "train_length") -> str:
    """Say how many documents ``keep_long`` kept, and which setting to lower for the others."""
    if kept == documents:
        return f"kept all {documents:,} documents; none under {min_tokens:,} tokens"
    return (
        f"kept {kept:,} of {documents:,} documents; {documents - kept:,} under {min_tokens:,} tokens. "
        f"Lower `{setting}`, or pack them"
    )


def split_by_name(store: TokenStore, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Split the documents by a hash of their names: (training, held out), int64 indices, ascending."""
    held_out = np.fromiter((is_held_out(name, share) for name in store.names), dtype=bool, count=len(store))
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _open(folder: Path) -> TokenStore | None:
    """Open a store, or None where there is none or it is damaged."""
    try:
        return TokenStore(folder)
    except DataError:
        return None


def _build(
    stores: Path, fingerprint: str, corpus: Corpus, tokenizer: Any, on_progress: Progress | None
) -> TokenStore:
    stores.mkdir(parents=True, exist_ok=True)
    _sweep(stores)
    draft = stores / f".draft-{fingerprint[:16]}-{secrets.token_hex(8)}"
    draft.mkdir()
    try:
        about = _write(draft, corpus, tokenizer, on_progress)
        about |= {"schema": SCHEMA, "fingerprint": fingerprint, "source": corpus.source}
        about["bytes"] = {name: (draft / name).stat().st_size for name in _FILES}
        with open(draft / "store.json", "w", encoding="utf-8") as file:
            json.dump(about, file, indent=2)
            _flush(file)
        return _publish(draft, stores / fingerprint)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write(draft: Path, corpus: Corpus, tokenizer: Any, on_progress: Progress | None) -> dict[str, Any]:
    """Write all files of the store but ``store.json``, and return what that is to say of them."""
    vocabulary = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=0))
    dtype = np.dtype("<u2" if vocabulary <= 2**16 else "<u4")
    encode = _encoder(tokenizer)
    offsets, largest = array("q", [0]), -1
    with (
        open(draft / "tokens.bin", "wb") as tokens,
        open(draft / "names.jsonl", "w", encoding="ascii") as names,
    ):
        for batch in _batches(corpus):
            for document, row in zip(batch, encode([document.text for document in batch]), strict=True):
                ids = np.asarray(row, dtype=np.int64)
                largest = max(largest, int(ids.max(initial=-1)))
                assert largest < vocabulary, f"token {largest} of a tokenizer of {vocabulary}"
                tokens.write(ids.astype(dtype).tobytes())
                names.write(json.dumps(document.name) + "\n")
                offsets.append(offsets[-1] + len(ids))
            if on_progress is not None:
                on_progress(len(offsets) - 1, offsets[-1])
        _flush(tokens)
        _flush(names)
    with open(draft / "offsets.npy", "wb") as file:
        np.save(file, np.frombuffer(offsets, dtype=np.int64))
        _flush(file)
    return {
        "documents": len(offsets) - 1,
        "tokens": offsets[-1],
        "dtype": dtype.str,
        "largest_token": largest,
    }


def _batches(corpus: Corpus) -> Iterator[list[Document]]:
    """Group the documents, in order, so that a batch is worth starting threads for and fits in memory."""
    batch: list[Document] = []
    characters = 0
    for document in corpus:
        batch.append(document)
        characters += len(document.text)
        if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _encoder(tokenizer: Any) -> Callable[[list[str]], Iterator[Sequence[int]]]:
    """Return texts -> token ids.

    A fast tokenizer's Rust side is called directly, on a copy without truncation and padding: the same ids
    as ``tokenizer(text)`` at two thirds of its time and half its memory, and no warning about long texts.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda texts: iter(tokenizer(texts, truncation=False, verbose=False)["input_ids"])
    copy = type(backend).from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = _splits_special(tokenizer)
    return lambda texts: (encoding.ids for encoding in copy.encode_batch_fast(texts))


def _splits_special(tokenizer: Any) -> bool:
    """Whether ``<s>`` written in a text is read as those three characters and not as the special token."""
    return bool(getattr(tokenizer, "split_special_tokens", False))


def _publish(draft: Path, folder: Path) -> TokenStore:
    """Move the finished draft to its place, unless another process's whole store is there by now."""
    try:
        draft.rename(folder)
    except OSError:
        winner = _open(folder)
        if winner is not None:
            return winner
        damaged = draft.with_name(draft.name + "-damaged")
        folder.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
        draft.rename(folder)
    return TokenStore(folder)


def _sweep(stores: Path) -> None:
    """Remove the drafts of builds that were killed: nothing was written to them for a day."""
    for draft in stores.glob(".draft-*"):
        try:
            newest = max(path.stat().st_mtime for path in (draft, *draft.iterdir()))
        except FileNotFoundError:  # its builder is alive: it finished between the two looks
            continue
        if newest < time.time() - _ABANDONED_SECONDS:
            shutil.rmtree(draft, ignore_errors=True)


def _flush(file: Any) -> None:
    """Bring a file to the disk: renamed first, it could be empty after a power cut."""
    file.flush()
    os.fsync(file.fileno())


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
