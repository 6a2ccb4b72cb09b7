"""Documents -> a token store, built once for each content and tokenizer; what was killed is gone on with.

    CACHE/tokens/.draft-FINGERPRINT/    a store being written: its files, and after each batch in draft.json how
                                        much of them is whole and the place in the source to read on from
    CACHE/tokens/.locks/FINGERPRINT     held while one is written

Memory stays bounded by one batch of documents, or by the longest document. Tokenising runs in the threads
of the tokenizers library (its Rust side lets go of Python's lock); processes would each have to import and
to send their tokens back, and need a guarded ``__main__`` in every script of a user.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from skipwise.data.corpus import Corpus, Document, Place
from skipwise.data.documents import open_corpus
from skipwise.data.hugging_face import StreamError
from skipwise.data.tokens import FILES, SCHEMA, TokenStore, default_cache
from skipwise.errors import DataError

_BATCH_CHARACTERS = 2**22  # keeps every core busy; its encodings hold some 100 MB
_BATCH_DOCUMENTS = 2**13
_ABANDONED_SECONDS = 7 * 86_400

Progress = Callable[[int, int], None]


def build_token_store(
    source: str | Path,
    tokenizer: Any,
    *,
    cache: str | Path | None = None,
    text_field: str = "text",
    split: str = "train",
    subset: str | None = None,
    stream: bool = False,
    max_tokens: int | None = None,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> TokenStore:
    """Tokenise ``source``, or find it tokenised: the same content and tokenizer give the same store.

    A document gets the special tokens that the tokenizer gives a single sequence. Of two processes that would
    build the same store at once, one waits for the other. A build that was killed, or whose stream broke off,
    goes on after its last whole batch.

    Args:
        source: what ``skipwise.data.documents.read_documents`` reads.
        tokenizer: a transformers tokenizer.
        cache: the cache folder; default ``default_cache()``.
        text_field: the field of records that holds the text.
        split: the split of a Hugging Face data set.
        subset: its subset (configuration) on the hub.
        stream: read a data set of the hub as it comes, without fetching it whole.
        max_tokens: read no document after the one that brings the store to so many tokens.
        workers: threads that tokenise, no more than there are cores; default all of them. They start with a
            process's first tokenising, so after that another number changes nothing.
        on_progress: called after each batch with the documents and tokens so far.

    Raises:
        DataError: the source cannot be read, or the cache cannot be written.
    """
    corpus = open_corpus(source, text_field=text_field, split=split, subset=subset, stream=stream)
    bounds = "" if max_tokens is None else f" {max_tokens}"
    fingerprint = _sha256(f"{SCHEMA} {corpus.fingerprint()} {tokenizer_fingerprint(tokenizer)}{bounds}")
    cache = Path(cache).expanduser() if cache else default_cache()
    store = _open(cache / "tokens" / fingerprint)
    if store is None:
        if workers is not None:
            os.environ["RAYON_NUM_THREADS"] = str(min(workers, os.cpu_count() or 1))
        try:
            store = _build(cache / "tokens", fingerprint, corpus, tokenizer, max_tokens, on_progress)
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


def _build(
    stores: Path,
    fingerprint: str,
    corpus: Corpus,
    tokenizer: Any,
    max_tokens: int | None,
    on_progress: Progress | None,
) -> TokenStore:
    folder, draft = stores / fingerprint, stores / f".draft-{fingerprint}"
    (stores / ".locks").mkdir(parents=True, exist_ok=True)
    with FileLock(stores / ".locks" / fingerprint):
        if store := _open(folder):  # another process built it meanwhile
            return store
        _sweep(stores)
        try:
            about = _write(draft, corpus, tokenizer, max_tokens, on_progress)
            about |= {"schema": SCHEMA, "fingerprint": fingerprint, "source": corpus.source}
            about["bytes"] = {name: (draft / name).stat().st_size for name in FILES}
            with open(draft / "store.json", "w", encoding="utf-8") as file:
                json.dump(about, file, indent=2)
                _flush(file)
            shutil.rmtree(folder, ignore_errors=True)  # of a damaged one
            draft.rename(folder)
        except StreamError:
            raise
        except (DataError, OSError):  # the next build would make the same mistake, or need the room
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return TokenStore(folder)


def _write(
    draft: Path, corpus: Corpus, tokenizer: Any, max_tokens: int | None, on_progress: Progress | None
) -> dict[str, Any]:
    """Write all files of the store but ``store.json``, and return what that is to say of them."""
    vocabulary = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=0))
    dtype = np.dtype("<u2" if vocabulary <= 2**16 else "<u4")
    encode = _encoder(tokenizer)

    def enough(tokens: int) -> bool:
        return max_tokens is not None and tokens >= max_tokens

    with _Draft(draft) as files:
        for batch, place in _batches(corpus, files.place):
            for document, row in zip(batch, encode([document.text for document in batch]), strict=True):
                if enough(files.tokens):
                    break
                ids = np.asarray(row, dtype=np.int64)
                assert ids.max(initial=-1) < vocabulary, f"token {ids.max()} of a tokenizer of {vocabulary}"
                files.add(document.name, ids, dtype)
            files.keep(place)
            if on_progress is not None:
                on_progress(files.documents, files.tokens)
            if enough(files.tokens):
                break
        files.finish()
    return {
        "documents": files.documents,
        "tokens": files.tokens,
        "dtype": dtype.str,
        "largest_token": files.largest_token,
    }


class _Draft:
    """A store being written. Opened anew it holds what it held at the last ``keep``.

    Attributes:
        place: of the last document kept, in its source.
        documents: how many were added.
        tokens: how many they have.
        largest_token: among them; -1 where there is none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place: Place = None
        self.documents, self.tokens, self.largest_token = 0, 0, -1

    def __enter__(self) -> "_Draft":
        self.folder.mkdir(exist_ok=True)
        sizes = self._kept()
        with ExitStack() as opened:
            files = {
                name: opened.enter_context(open(self.folder / name, "ab"))
                for name in ("tokens.bin", "ends.bin", "names.jsonl")
            }
            for name, file in files.items():
                file.truncate(sizes.get(name, 0))
            self._files, self._opened = files, opened.pop_all()
        return self

    def _kept(self) -> dict[str, int]:
        """Take up what was kept last, and return the files' sizes at that time; nothing, where they lost some since."""
        try:
            kept = json.loads((self.folder / "draft.json").read_text(encoding="utf-8"))
            sizes: dict[str, int] = kept["bytes"]
            whole = all((self.folder / name).stat().st_size >= size for name, size in sizes.items())
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        if not whole:
            return {}
        self.place, self.documents = kept["place"], kept["documents"]
        self.tokens, self.largest_token = kept["tokens"], kept["largest_token"]
        return sizes

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def add(self, name: str, ids: np.ndarray, dtype: np.dtype) -> None:
        """Write one document: its tokens, int64 [tokens], as ``dtype``."""
        self.documents += 1
        self.tokens += len(ids)
        self.largest_token = max(self.largest_token, int(ids.max(initial=-1)))
        self._files["tokens.bin"].write(ids.astype(dtype).tobytes())
        self._files["ends.bin"].write(np.int64(self.tokens).tobytes())
        self._files["names.jsonl"].write(json.dumps(name).encode() + b"\n")

    def keep(self, place: Place) -> None:
        """What was added is whole up to here: a build that goes on begins after ``place``."""
        self.place = place
        for file in self._files.values():
            file.flush()
        kept = {
            "place": place,
            "documents": self.documents,
            "tokens": self.tokens,
            "largest_token": self.largest_token,
            "bytes": {name: file.tell() for name, file in self._files.items()},
        }
        written = self.folder / "draft.json.new"
        written.write_text(json.dumps(kept), encoding="utf-8")
        written.replace(self.folder / "draft.json")

    def finish(self) -> None:
        """Bring the store's files to the disk, and remove what only a draft has."""
        for file in self._files.values():
            _flush(file)
        ends = np.fromfile(self.folder / "ends.bin", dtype=np.int64)
        with open(self.folder / "offsets.npy", "wb") as file:
            np.save(file, np.concatenate([np.zeros(1, dtype=np.int64), ends]))
            _flush(file)
        for name in ("ends.bin", "draft.json"):
            (self.folder / name).unlink(missing_ok=True)


def _batches(corpus: Corpus, place: Place) -> Iterator[tuple[list[Document], Place]]:
    """Group the documents after ``place``, in order, so that a batch is worth starting threads for and fits in memory;
    with each the place of its last document."""
    batch: list[Document] = []
    characters = 0
    for document, reached in corpus.read(place):
        batch.append(document)
        characters += len(document.text)
        place = reached
        if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_DOCUMENTS:
            yield batch, place
            batch, characters = [], 0
    if batch:
        yield batch, place


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


def _open(folder: Path) -> TokenStore | None:
    """Open a store, or None where there is none or it is damaged."""
    try:
        return TokenStore(folder)
    except DataError:
        return None


def _sweep(stores: Path) -> None:
    """Remove the drafts of builds that nobody went on with: nothing was written to them for a week."""
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
