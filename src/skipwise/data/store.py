"""Keep the tokens of all documents on the disk, memory-mapped; build the store of a source, and split its documents.

    CACHE/tokens/FINGERPRINT/           one store for a content and a tokenizer
      tokens.bin     tokens of all documents in order; uint16 or uint32
      ends.bin       int64 [documents]: document i ends before tokens[ends[i]]
      names.jsonl    a name per line
      digests.bin    uint64 [documents]: hash of each document's content
      context.bin    int64 [spans, 2]: spans of tokens.bin that are no answers of an assistant, or that labels leave out; empty for text
      store.json     schema, counts, and the manifest of the other files; written last
    CACHE/tokens/.draft-FINGERPRINT/    a store that is being written; after a kill, the next build continues it
    CACHE/tokens/.locks/FINGERPRINT     held while a store is written

All numbers are little-endian. The threads of the tokenizers library tokenise; memory holds a batch of documents, or of pieces
of a long one: 150 bytes for each character.
"""

import hashlib
import json
import math
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock
from rich.console import Console

from skipwise.data.chat import Conversation, chat_encoder
from skipwise.data.text import Corpus, Document, Tokens, is_held_out, open_corpus
from skipwise.errors import DataError, counted
from skipwise.progress import progress
from skipwise.recipes.schema import Data
from skipwise.results.files import default_cache, is_shared, read_json, require_sealed, seal, sync_folder, write_json

SCHEMA = 7
FILES = ("tokens.bin", "ends.bin", "names.jsonl", "digests.bin", "context.bin")

_BATCH_CHARACTERS = 2**22  # keep every core busy
_BATCH_DOCUMENTS = 2**13
_LONG = 2**22  # characters of a text that is encoded whole: 1 GB of memory
_REMOVE = "remove the folder, and it is built again"

Ids = Sequence[int] | np.ndarray
Flags = Sequence[bool] | np.ndarray
OnProgress = Callable[[int, int, float | None], None]
OnMessage = Callable[[str], None]


class TokenStore:
    """The tokens of a source, memory-mapped and read-only. Pickles as its path.

    Attributes:
        tokens: of all documents in order, uint16 or uint32 [tokens].
        offsets: document i is ``tokens[offsets[i]:offsets[i + 1]]``, int64 [documents + 1].
        fingerprint: SHA-256 in hex of the content and the tokenizer.
        largest_token: -1 without a token.
        bos: id of the token that the tokenizer puts before a text; None: it puts none.
        labelled: the documents are tokenised; ``context`` has the tokens without a label.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        about = read_json(self.path / "store.json")
        self.fingerprint: str = about["fingerprint"]
        self.largest_token: int = about["largest_token"]
        self.labelled: bool = about["labelled"]
        self.bos: int | None = about["bos"]
        self.offsets: np.ndarray = np.concatenate([[0], np.fromfile(self.path / "ends.bin", dtype="<i8")])
        tokens, dtype = self.path / "tokens.bin", np.dtype(about["dtype"])  # an empty file cannot be mapped
        self.tokens: np.ndarray = np.memmap(tokens, dtype, "r") if tokens.stat().st_size else np.empty(0, dtype)

    def __len__(self) -> int:  # documents
        return len(self.offsets) - 1

    def __reduce__(self) -> tuple[type["TokenStore"], tuple[Path]]:
        return TokenStore, (self.path,)

    @cached_property
    def names(self) -> list[str]:
        with open(self.path / "names.jsonl", "rb") as lines:
            return [json.loads(line) for line in lines]

    @cached_property
    def digests(self) -> np.ndarray:
        """Hashes of the documents' contents: uint64 [documents]."""
        return np.fromfile(self.path / "digests.bin", dtype="<u8")

    @cached_property
    def context(self) -> np.ndarray:
        """Spans of ``tokens`` that are no assistant's, or that labels leave out: int64 [spans, 2], rising."""
        return np.fromfile(self.path / "context.bin", dtype="<i8").reshape(-1, 2)

    @property
    def holds_conversations(self) -> bool:
        """Whether any document is a chat; then all short documents are packed."""
        return bool(len(self.context)) and not self.labelled

    def is_context(self, places: np.ndarray) -> np.ndarray:
        """Return which places in ``tokens`` lie in ``context``: bool, of the shape of ``places``."""
        if not len(self.context):
            return np.zeros(places.shape, dtype=bool)
        span = np.searchsorted(self.context[:, 0], places, side="right") - 1
        return (span >= 0) & (places < self.context[span, 1])

    @cached_property
    def lengths(self) -> np.ndarray:
        """The documents' lengths in tokens: int64 [documents]."""
        return np.diff(self.offsets)

    def document(self, index: int) -> np.ndarray:
        """Return the tokens of a document: uint16 or uint32 [tokens], a view of the map."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def span(self, index: int, begin: int, end: int | None = None) -> np.ndarray:
        """Return a part of a document, int64 [tokens]; its first token is the BOS, if the document begins with one."""
        document = self.document(index)
        tokens = document[begin:end].astype(np.int64)
        if document[0] == self.bos:
            tokens[:1] = document[0]
        return tokens


class StoreWriter(ExitStack):
    """Write a store document by document; a build that was killed continues after its last ``keep``.

    ``build.json`` has the counts and file sizes of the last ``keep``. What was written after it is cut off.
    """

    def __init__(self, folder: Path, vocabulary: int) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.vocabulary = folder, vocabulary  # every token id is below
        self.dtype = np.dtype("<u2" if vocabulary <= 2**16 else "<u4")
        self.counts = {"documents": 0, "tokens": 0, "largest_token": -1}
        sizes = dict.fromkeys(FILES, 0)
        if (folder / "build.json").exists():
            kept = read_json(folder / "build.json")
            found = {name: (folder / name).stat().st_size for name in FILES}
            if all(found[name] >= kept["bytes"][name] for name in FILES):  # smaller after a power cut
                sizes, self.counts = kept["bytes"], kept["counts"]
        self._sizes, self._files = sizes, dict[str, BinaryIO]()

    def __enter__(self) -> "StoreWriter":
        for name, size in self._sizes.items():
            self._files[name] = self.enter_context(open(self.folder / name, "ab"))
            self._files[name].truncate(size)
            self._files[name].seek(size)
        return self

    def add(self, document: Document, ids: Iterable[int], context: Sequence[bool] | np.ndarray) -> None:
        """Write a document; ``context`` has a flag for each id, or none if all are false."""
        tokens = np.asarray(ids, dtype=np.int64)
        assert tokens.max(initial=-1) < self.vocabulary, f"token {tokens.max()} of a tokenizer of {self.vocabulary}"
        edges = np.flatnonzero(np.diff(np.concatenate([[False], np.asarray(context, dtype=bool), [False]])))
        self._files["context.bin"].write((edges + self.counts["tokens"]).astype("<i8").tobytes())
        self._files["tokens.bin"].write(tokens.astype(self.dtype).tobytes())
        self.counts["documents"] += 1
        self.counts["tokens"] += len(tokens)
        self.counts["largest_token"] = int(tokens.max(initial=self.counts["largest_token"]))
        self._files["ends.bin"].write(np.array(self.counts["tokens"], dtype="<i8").tobytes())
        self._files["names.jsonl"].write(json.dumps(document.name).encode() + b"\n")
        self._files["digests.bin"].write(document.digest)

    def keep(self) -> None:
        """Record that all documents up to here are complete."""
        for file in self._files.values():
            file.flush()
        sizes = {name: file.tell() for name, file in self._files.items()}
        write_json(self.folder / "build.json", {"counts": self.counts, "bytes": sizes})

    def finish(self, **about: Any) -> None:
        """Write ``store.json``, with the manifest."""
        for file in self._files.values():
            file.flush()
        manifest = seal(self.folder, FILES)
        about |= {"schema": SCHEMA, **self.counts, "dtype": self.dtype.str, "seal": manifest}
        write_json(self.folder / "store.json", about)
        (self.folder / "build.json").unlink(missing_ok=True)


def open_store(path: Path) -> TokenStore:
    """Check the manifest of a store, and open it."""
    try:
        manifest = {name: read_json(path / "store.json")["seal"][name] for name in FILES}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path / 'store.json'} is damaged ({error}); {_REMOVE}") from error
    require_sealed(path, manifest, _REMOVE)
    return TokenStore(path)


# --- building a store ---


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
            [first_id, *_] = next(text_encoder(tokenizer)(["a"]))
            bos = first_id if first_id == tokenizer.bos_token_id else None
            labelled = isinstance(first.text, Tokens)
            files.finish(fingerprint=folder.name, source=corpus.source, labelled=labelled, bos=bos)
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
    """Return a function from texts to the ids of ``tokenizer(text)``, special tokens included.

    A text beyond ``_LONG`` characters is encoded in pieces that end with a line, so ids at their ends may differ.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda texts: iter(tokenizer(list(texts), truncation=False, verbose=False)["input_ids"])
    # The Rust side, without truncation and padding: the ids of ``tokenizer(text)`` in two thirds of the time.
    backend = type(backend).from_str(backend.to_str())
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    sample = backend.encode("a").special_tokens_mask  # the special tokens around every text
    first, last = sample.index(0), len(sample) - sample[::-1].index(0)

    def encode(texts: Sequence[str]) -> Iterator[Ids]:
        whole = backend.encode_batch_fast([text if len(text) <= _LONG else "a" for text in texts])
        for text, ids in zip(texts, (encoding.ids for encoding in whole), strict=True):
            yield (
                ids if len(text) <= _LONG else np.concatenate([ids[:first], *pieces(text), ids[last:]]).astype(np.int64)
            )

    def pieces(text: str) -> Iterator[Ids]:
        cuts = [0]
        while (begin := cuts[-1]) < len(text):
            stop = begin + _LONG // 16
            cuts.append(len(text) if stop >= len(text) else text.rfind("\n", begin, stop) + 1 or stop)
        parts = [text[begin:end] for begin, end in pairwise(cuts)]
        for first_part in range(0, len(parts), 16):  # a batch keeps every core busy
            batch = backend.encode_batch_fast(parts[first_part : first_part + 16], add_special_tokens=False)
            yield from (encoding.ids for encoding in batch)

    return encode


# --- the use of its documents ---


def check_vocabulary(store: TokenStore, vocabulary: int) -> None:
    """Check that every token id is below the model's vocabulary size."""
    if store.largest_token >= vocabulary:
        raise DataError(
            f"token {store.largest_token} of the text is not below the model's vocabulary size {vocabulary}; tokenise it with "
            "this model's own tokenizer"
        )


def split_by_name(store: TokenStore, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Split the documents by a hash of their names: (training, held out), rising int64 indices."""
    held_out = np.fromiter((is_held_out(name, share) for name in store.names), dtype=bool, count=len(store))
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


@dataclass(frozen=True)
class Split:
    """The documents of a store by their use; indices are int64 and rise."""

    train: np.ndarray
    held_out: np.ndarray  # by name, of any length
    shortest: int  # tokens of the shortest document to train on
    setting: str  # that decides ``shortest``
    dropped: int  # documents that are neither held out nor long enough

    @property
    def summary(self) -> str:
        """Return the number of documents that are kept, as a sentence."""
        kept, all_long = len(self.train), len(self.train) + self.dropped
        if not self.dropped:
            return f"kept {kept:,} of {counted(all_long, 'document')}; none has fewer than {self.shortest:,} tokens"
        return (
            f"kept {kept:,} of {all_long:,} documents, and left out {self.dropped:,} of fewer than {self.shortest:,} tokens. "
            f"To keep more, lower `{self.setting}` or join documents"
        )


def split_documents(store: TokenStore, data: Data, window: int, *, whole: bool) -> Split:
    """Choose the documents to train on: not held out, with ``data.min_tokens`` and a ``window`` of tokens at least.

    Chats may be shorter, because they are packed, but not where a window is the ``whole`` target.
    """
    train, held_out = split_by_name(store, data.held_out)
    packed = store.holds_conversations and not whole
    shortest = data.min_tokens or 2 if packed else max(data.min_tokens or 0, window)
    setting = "data.min_tokens" if shortest != window else "target" if whole else "train_length"
    long = train[store.lengths[train] >= shortest]
    if len(long):
        return Split(long, held_out, shortest, setting, len(train) - len(long))
    longest = int(store.lengths[train].max(initial=0))
    lower = [setting, *(["data.held_out"] if (store.lengths[held_out] >= shortest).any() else [])]
    raise DataError(
        f"no document of {shortest:,} tokens to train on: of {counted(len(store), 'document')} {len(held_out):,} are held out for "
        f"measuring, and the longest other has {longest:,} tokens. Give longer or more texts, or lower {' or '.join(lower)}"
    )
