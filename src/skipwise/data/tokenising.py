"""Documents -> a token store, built once per content and tokenizer; an interrupted build is continued.

    CACHE/tokens/.draft-FINGERPRINT/    a store being written: its files, and draft.json, which after each batch says
                                        how much of them is complete and from which place in the source to continue
    CACHE/tokens/.locks/FINGERPRINT     held while a store is written

Memory is limited by one batch of documents, or by the longest document. The threads of the tokenizers library
tokenise (its Rust side releases Python's lock). Processes would each have to import the libraries and send their
tokens back, and would need a guarded ``__main__`` in every script of a user.
"""

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from skipwise.data.corpus import Corpus, Document, Place
from skipwise.data.documents import open_corpus
from skipwise.data.hugging_face import StreamError
from skipwise.data.tokens import FILES, SCHEMA, TokenStore
from skipwise.errors import DataError, counted
from skipwise.recipes.schema import Data
from skipwise.results.files import default_cache

_BATCH_CHARACTERS = 2**22  # enough to keep every core busy; the encodings take about 100 MB
_BATCH_DOCUMENTS = 2**13
_ABANDONED_SECONDS = 7 * 86_400
_APPENDED = ("tokens.bin", "ends.bin", "names.jsonl", "digests.bin")  # the files of a draft that grow by document

OnProgress = Callable[[int, int], None]


def build_token_store(
    source: str | Path | Data, tokenizer: Any, *, on_progress: OnProgress | None = None
) -> TokenStore:
    """Tokenise a source, or open the store if it exists: the same content and tokenizer give the same store.

    A document gets the special tokens that the tokenizer gives a single sequence. If two processes need the same store
    at once, one waits for the other. An interrupted build continues after its last complete batch.

    Of a recipe's data section ``max_tokens``, ``cache`` and ``workers`` apply too. The threads start when a process
    tokenises for the first time; a later change of ``workers`` has no effect. ``on_progress`` gets the number of
    documents and of tokens so far after each batch.
    """
    data = Data.of(source)
    corpus = open_corpus(data)
    limit = "" if data.max_tokens is None else f" {data.max_tokens}"
    fingerprint = _sha256(f"{SCHEMA} {corpus.fingerprint()} {tokenizer_fingerprint(tokenizer)}{limit}")
    cache = Path(data.cache).expanduser() if data.cache else default_cache()
    store = _open(cache / "tokens" / fingerprint)
    if store is None:
        if data.workers is not None:
            os.environ["RAYON_NUM_THREADS"] = str(min(data.workers, os.cpu_count() or 1))
        try:
            store = _build(cache / "tokens", fingerprint, corpus, tokenizer, data.max_tokens, on_progress)
        except OSError as error:  # an unreadable source is a DataError already
            raise DataError(
                f"{cache}: the token store cannot be written ({error.strerror or error}); "
                "set data.cache or $SKIPWISE_CACHE to a folder with room"
            ) from error
    elif on_progress is not None:
        on_progress(len(store), len(store.tokens))
    return store


def tokenise(source: str | Path | Data, tokenizer: Any, console: Console) -> TokenStore:
    """Return ``build_token_store`` of a source, and show the progress on the console."""
    doing = f"tokenising {Data.of(source).source}"
    columns = TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        line = bar.add_task(doing, total=None)

        def show(documents: int, tokens: int) -> None:
            bar.update(line, description=f"{doing}: {counted(documents, 'document')}, {tokens:,} tokens")

        return build_token_store(source, tokenizer, on_progress=show)


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
    about = [type(tokenizer).__name__, tokenizer.special_tokens_map, _splits_special(tokenizer), rules]
    return _sha256(json.dumps(about, sort_keys=True, default=str))


def _build(
    stores: Path, fingerprint: str, corpus: Corpus, tokenizer: Any, limit: int | None, on_progress: OnProgress | None
) -> TokenStore:
    folder, draft = stores / fingerprint, stores / f".draft-{fingerprint}"
    (stores / ".locks").mkdir(parents=True, exist_ok=True)
    with FileLock(stores / ".locks" / fingerprint):
        if store := _open(folder):  # another process built it meanwhile
            return store
        _sweep(stores)
        try:
            about = _write(draft, corpus, tokenizer, limit, on_progress)
            about |= {"schema": SCHEMA, "fingerprint": fingerprint, "source": corpus.source}
            about["bytes"] = {name: (draft / name).stat().st_size for name in FILES}
            with open(draft / "store.json", "w", encoding="utf-8") as file:
                json.dump(about, file, indent=2)
                _flush(file)
            shutil.rmtree(folder, ignore_errors=True)  # a damaged store
            draft.rename(folder)
        except StreamError:
            raise
        except (DataError, OSError):  # the next build would fail in the same way, or need the disk space
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return TokenStore(folder)


def _write(
    draft: Path, corpus: Corpus, tokenizer: Any, max_tokens: int | None, on_progress: OnProgress | None
) -> dict[str, Any]:
    """Write all files of the store but ``store.json``, and return their counts for it."""
    vocabulary = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=0))
    dtype = np.dtype("<u2" if vocabulary <= 2**16 else "<u4")
    encode, limit = _encoder(tokenizer), math.inf if max_tokens is None else max_tokens
    with _Draft(draft) as files:
        counts = files.counts
        for batch, place in _batches(corpus, files.place):
            for document, row in zip(batch, encode([document.text for document in batch]), strict=True):
                if counts["tokens"] >= limit:
                    break
                ids = np.asarray(row, dtype=np.int64)
                assert ids.max(initial=-1) < vocabulary, f"token {ids.max()} of a tokenizer of {vocabulary}"
                files.add(document, ids, dtype)
            files.keep(place)
            if on_progress is not None:
                on_progress(counts["documents"], counts["tokens"])
            if counts["tokens"] >= limit:
                break
        files.finish()
    largest = counts.pop("largest_token")
    return {**counts, "dtype": dtype.str, "largest_token": largest}


class _Draft(ExitStack):
    """A store being written; an existing draft is continued from its last ``keep``. Leaving it closes the files."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.place: Place = None  # of the last document kept
        self.counts = {"documents": 0, "tokens": 0, "largest_token": -1}

    def __enter__(self) -> "_Draft":
        self.folder.mkdir(exist_ok=True)
        sizes = self._kept()
        self._files = {name: self.enter_context((self.folder / name).open("ab")) for name in _APPENDED}
        for name, file in self._files.items():
            file.truncate(sizes.get(name, 0))
        return self

    def _kept(self) -> dict[str, int]:
        """Restore what was kept last and return the sizes of the files then; nothing if a file is shorter now."""
        try:
            kept = json.loads((self.folder / "draft.json").read_text(encoding="utf-8"))
            sizes: dict[str, int] = kept["bytes"]
            if any((self.folder / name).stat().st_size < sizes[name] for name in _APPENDED):
                return {}
            self.place, self.counts = kept["place"], {name: int(kept[name]) for name in self.counts}
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return sizes

    def add(self, document: Document, ids: np.ndarray, dtype: np.dtype) -> None:
        """Write one document: its tokens, int64 [tokens], as ``dtype``."""
        self.counts["documents"] += 1
        self.counts["tokens"] += len(ids)
        self.counts["largest_token"] = int(ids.max(initial=self.counts["largest_token"]))
        self._files["tokens.bin"].write(ids.astype(dtype).tobytes())
        self._files["ends.bin"].write(np.int64(self.counts["tokens"]).tobytes())
        self._files["names.jsonl"].write(json.dumps(document.name).encode() + b"\n")
        text = document.text.encode("utf-8", "surrogatepass")
        self._files["digests.bin"].write(hashlib.blake2b(text, digest_size=8).digest())

    def keep(self, place: Place) -> None:
        """Record that everything added is complete: a build that continues starts after ``place``."""
        self.place = place
        for file in self._files.values():
            file.flush()
        sizes = {name: file.tell() for name, file in self._files.items()}
        written = self.folder / "draft.json.new"
        written.write_text(json.dumps({"place": place, **self.counts, "bytes": sizes}), encoding="utf-8")
        written.replace(self.folder / "draft.json")

    def finish(self) -> None:
        """Flush the store's files to the disk, and remove those that only a draft has."""
        for file in self._files.values():
            _flush(file)
        ends = np.fromfile(self.folder / "ends.bin", dtype=np.int64)
        with open(self.folder / "offsets.npy", "wb") as file:
            np.save(file, np.concatenate([np.zeros(1, dtype=np.int64), ends]))
            _flush(file)
        for name in ("ends.bin", "draft.json"):
            (self.folder / name).unlink(missing_ok=True)


def _batches(corpus: Corpus, place: Place) -> Iterator[tuple[list[Document], Place]]:
    """Yield the documents after ``place`` in batches worth starting threads for, and the place of each one's last."""
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
    """Return a function from texts to their token ids.

    For a fast tokenizer it calls a copy of the Rust side without truncation and padding: the same ids as
    ``tokenizer(text)`` in two thirds of the time, with half the memory and without a warning about long texts.
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
    """Return whether ``<s>`` in a text is read as three characters instead of the special token."""
    return bool(getattr(tokenizer, "split_special_tokens", False))


def _open(folder: Path) -> TokenStore | None:
    """Return the store in ``folder``, or None if there is none or it is damaged."""
    try:
        return TokenStore(folder)
    except DataError:
        return None


def _sweep(stores: Path) -> None:
    """Remove drafts to which nothing was written for a week."""
    for draft in stores.glob(".draft-*"):
        try:
            newest = max(path.stat().st_mtime for path in (draft, *draft.iterdir()))
        except FileNotFoundError:  # another process has just finished it
            continue
        if newest < time.time() - _ABANDONED_SECONDS:
            shutil.rmtree(draft, ignore_errors=True)


def _flush(file: Any) -> None:
    """Flush a file to the disk; if it were renamed first, it could be empty after a power cut."""
    file.flush()
    os.fsync(file.fileno())


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
