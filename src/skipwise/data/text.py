"""Read the documents of a source: files, folders, data sets, Python's standard library.

    source                                              document          name
    .txt .md .rst .py .tex, or a folder                 file              path below the folder
    .jsonl .jsonl.gz .jsonl.zst .parquet                line or row       path:number, from 1
    a folder by ``Dataset.save_to_disk``                row               folder:number
    a data set on the Hugging Face hub                  row               owner/name:number
    stdlib, pydoc                                       module, topic     path, topic

Names are the same on every machine, because a hash of the name decides what is held out. ``datasets`` reads Parquet, saved
data sets and the hub. JSON Lines are read here: ``datasets`` gives no line numbers, and fills fields that a tool call lacks
with null, which a chat template would write.

A record holds a text, a chat (``data.chat``), or tokens: ``input_ids``, and ``labels`` with -100 at tokens that are not trained.
"""

import glob
import hashlib
import io
import json
import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import resources
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from skipwise.data import chat
from skipwise.data.chat import Conversation, conversation_of
from skipwise.errors import DataError, nearest, reason
from skipwise.recipes.schema import Data

_TEXT = (".txt", ".md", ".rst", ".py", ".tex")
ENDINGS = (*_TEXT, ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
_READABLE = f"readable files end in {', '.join(ENDINGS)}"
_PYTHON = ("stdlib", "pydoc")  # sources that Python brings
_TOKENS = ("input_ids",)
_FORMS = (*chat.FORMS, _TOKENS)  # fields of a document that is no text
IGNORED = -100  # labels with this value do not count in the loss of transformers and torch

# Left out of ``stdlib``: installed packages, tests, generated tables.
_STDLIB_SKIPPED = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
_STDLIB_TABLES = ("encodings/", "pydoc_data/")
KINDS = {"prose": "prose.txt", "mathematics": "mathematics.tex", "code": "code.c"}


@dataclass(frozen=True)
class Tokens:
    """A tokenised document: ``ids`` int64 [tokens], and which are not trained, bool [tokens]."""

    ids: np.ndarray
    untrained: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def identity(self) -> bytes:
        return self.ids.tobytes()


@dataclass(frozen=True)
class Document:
    """A text, a chat or token ids, and the name."""

    name: str
    text: Any  # str, Conversation or Tokens

    @property
    def digest(self) -> bytes:
        """Hash the content to 8 bytes, which are the same under every name."""
        content = self.text.encode() if isinstance(self.text, str) else self.text.identity
        return hashlib.blake2b(content, digest_size=8).digest()


@dataclass(frozen=True)
class Corpus:
    """The documents of a source, in the same order on every machine."""

    source: str
    read: Callable[[int], Iterator[Document]]  # all documents after the first n
    content: Callable[[], Iterable[str]]  # for ``fingerprint``
    size: int | None = None  # documents; None: unknown
    unread: Sequence[str] = ()  # files with other endings

    def __iter__(self) -> Iterator[Document]:
        return self.read(0)

    def fingerprint(self) -> str:
        """Return the SHA-256 in hex of names, content and text field."""
        return hashlib.sha256("\0".join(self.content()).encode()).hexdigest()


def is_held_out(name: str, share: float) -> bool:
    """Return whether the first 64 bits of a name's SHA-256 fall below ``share``."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def require_source(source: str) -> None:
    """Require a source to exist, or to have the form of a hub name."""
    of_hub = re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", source) and not source.lower().endswith(ENDINGS)
    if source not in _PYTHON and not Path(source).exists() and not of_hub:
        raise DataError(f"{_missing(source)}; give a file, a folder, a Hugging Face data set, or stdlib")


def open_corpus(source: str | Path | Data) -> Corpus:
    """Open a source, or the one of a recipe's data section."""
    data = Data.of(source)
    require_source(data.source)
    path = Path(data.source)
    if data.source not in _PYTHON and not path.exists():
        return _data_set(data)
    for name in ("subset", "streaming", *([] if _has_splits(path) else ["split"])):
        if (value := getattr(data, name)) != Data.model_fields[name].default:
            raise DataError(f"data.{name} = {value!r} is for hub data sets, not for {data.source}; leave it out")
    if data.source == "pydoc":
        return _pydoc()
    if data.source == "stdlib":
        return _files(data, _stdlib_files())
    if _has_splits(path) or (path / "dataset_info.json").exists():
        return _data_set(data)
    listed = sorted(_walk(path)) if path.is_dir() else [(path.name, path)]
    files = [(name, file) for name, file in listed if name.lower().endswith(ENDINGS)]
    if not files:
        raise DataError(f"{path}: no file can be read; {_READABLE}")
    return _files(data, files, unread=[name for name, _ in listed if not name.lower().endswith(ENDINGS)])


def _missing(source: str) -> str:
    path = Path(source)
    siblings = os.listdir(path.parent) if path.parent.is_dir() else []
    return f"{source!r} is no file or folder{nearest(path.name, siblings)}"


def other_source(data: Data, source: str) -> Data:
    """Return the data section with another source; settings of a hub data set are dropped for files and folders."""
    path = Path(source)
    if source == data.source or not (source in _PYTHON or path.exists()):
        return data.model_copy(update={"source": source})
    names = {"split", "subset", "streaming", "max_train_tokens"} - ({"split"} if _has_splits(path) else set())
    return data.model_copy(update={name: Data.model_fields[name].default for name in names} | {"source": source})


# --- files ---


def _files(data: Data, files: Sequence[tuple[str, Path]], unread: Sequence[str] = ()) -> Corpus:
    """Return the corpus of files, each with its name."""

    def documents(done: int) -> Iterator[Document]:
        return islice(chain.from_iterable(_read(name, path, data.text_field) for name, path in files), done, None)

    def content() -> Iterator[str]:
        yield from ("files", data.text_field)
        for name, path in files:
            with open(path, "rb") as file:
                yield from (name, hashlib.file_digest(file, "sha256").hexdigest())

    texts = all(name.lower().endswith(_TEXT) for name, _ in files)
    return Corpus(data.source, documents, content, len(files) if texts else None, unread)


def _read(name: str, path: Path, field: str) -> Iterator[Document]:
    """Yield the documents of a file."""
    if name.lower().endswith(_TEXT):
        try:
            yield Document(name, path.read_text(encoding="utf-8-sig"))
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}: byte {error.start:,} is not UTF-8; convert the file, e.g. `iconv -f latin1 -t utf-8`"
            ) from error
    elif name.lower().endswith(".parquet"):
        import datasets

        options = {"data_files": glob.escape(str(path)), "split": "train", "streaming": True}
        yield from _rows(lambda: datasets.load_dataset("parquet", **options), name, path, field)
    else:
        for number, record in _json_lines(path):
            yield Document(f"{name}:{number}", content_of(record, field, f"{path}, line {number:,}"))


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line numbers, from 1, and records."""
    import pyarrow  # which ``datasets`` needs too; it unpacks .gz and .zst

    number = 0
    try:
        with pyarrow.input_stream(str(path)) as stream:
            for number, line in enumerate(io.BufferedReader(stream), 1):
                if not line.isspace():
                    yield number, dict(json.loads(line))
    except (OSError, ValueError, TypeError) as error:
        place = "" if isinstance(error, OSError) else f", line {number:,}"
        raise DataError(
            f'{path}{place}: cannot be read ({error}); write one object per line, e.g. {{"text": "..."}}, or download it again'
        ) from error


def _walk(folder: Path, skipped: frozenset[str] = frozenset()) -> Iterator[tuple[str, Path]]:
    """Yield name and path of every file below a folder that is not hidden."""
    walked = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        # A folder that Skipwise wrote changes during a run.
        ours = {"run.json", ".lock"} <= set(names) and parent != os.fspath(folder)
        if ours or os.path.realpath(parent) in walked:  # links may form a circle
            folders.clear()
            continue
        walked.add(os.path.realpath(parent))
        folders[:] = [name for name in sorted(folders) if not name.startswith(".") and name not in skipped]
        for path in (Path(parent, name) for name in names if not name.startswith(".")):
            yield path.relative_to(folder).as_posix(), path


def _stdlib_files() -> list[tuple[str, Path]]:
    files = sorted(_walk(Path(sysconfig.get_paths()["stdlib"]), _STDLIB_SKIPPED))
    return [(n, path) for n, path in files if n.endswith(".py") and not n.startswith(_STDLIB_TABLES) and path.is_file()]


def _pydoc() -> Corpus:
    """Return the chapters of Python's language reference, which ``help()`` shows."""
    from pydoc_data.topics import topics

    texts = [Document(name, text) for name, text in sorted(topics.items())]
    content = [part for document in texts for part in (document.name, document.text)]
    return Corpus("pydoc", lambda done: iter(texts[done:]), lambda: content, len(texts))


def shipped_text(kind: str) -> str:
    """Return the document of one kind: ``prose``, ``mathematics`` or ``code``."""
    return resources.files("skipwise").joinpath("assets", "other", KINDS[kind]).read_text(encoding="utf-8")


# --- data sets, read by ``datasets`` ---


def _rows(open_rows: Callable[[], Any], name: str, where: str | Path, field: str, done: int = 0) -> Iterator[Document]:
    """Yield the rows of a ``Dataset`` or ``IterableDataset`` after the first ``done``."""
    row = done
    try:
        rows = open_rows()
        if rows.column_names is not None:
            form_of(rows.column_names, field, str(where))
            known = {field, chat.TOOLS, "labels", *chain.from_iterable(_FORMS)}
            rows = rows.select_columns([column for column in rows.column_names if column in known])
        for row, record in enumerate(rows.skip(done), done + 1):
            yield Document(f"{name}:{row}", content_of(record, field, f"{where}, row {row:,}"))
    except DataError:
        raise
    except Exception as error:  # datasets, pyarrow, the network and the hub have a dozen classes
        raise DataError(
            f"{where}: cannot be read after row {row:,} ({type(error).__name__}: {reason(error)}). Download the file again, or "
            "run the command again to continue a stream"
        ) from error


def _has_splits(folder: Path) -> bool:
    """Return True for a folder by ``DatasetDict.save_to_disk``."""
    return (folder / "dataset_dict.json").exists()


def _data_set(data: Data) -> Corpus:
    """Return the corpus of a folder by ``save_to_disk``, or of a data set on the hub."""
    import datasets

    source, path, streams = data.source, Path(data.source), data.streaming
    try:
        if path.exists():
            dataset: Any = datasets.load_from_disk(source)
            dataset = dataset[data.split] if _has_splits(path) else dataset
        elif streams:
            builder = datasets.load_dataset_builder(source, data.subset)
            dataset = builder.as_streaming_dataset(split=data.split)
        else:
            dataset = datasets.load_dataset(source, data.subset, split=data.split)
    except Exception as error:  # the network, the hub, a split or a subset
        subset = f", subset {data.subset!r}" if data.subset else ""
        raise DataError(
            f"{source if path.exists() else _missing(data.source)}: no data set with split {data.split!r}{subset} "
            f"({type(error).__name__}: {reason(error)}). Give a folder of texts, or check name, split and network"
        ) from error
    name = path.resolve().name if path.exists() else source
    identity = f"{builder.hash} {builder.config.name} {data.split}" if streams else str(dataset._fingerprint)
    rows = partial(_rows, lambda: dataset, name, source, data.text_field)
    return Corpus(source, rows, lambda: ("rows", data.text_field, name, identity), None if streams else len(dataset))


# --- records ---


def content_of(record: dict[str, Any], field: str, where: str) -> str | Conversation | Tokens:
    """Return the text, chat or tokens of a record."""
    form = form_of([name for name, value in record.items() if value is not None], field, where)
    if form == _TOKENS:
        return _tokens_of(record, where)
    if form in chat.FORMS:
        return conversation_of(record, form, where)
    if not isinstance(text := record[field], str):
        raise DataError(f"{where}: field {field!r} is of type {type(text).__name__}, not text; set data.text_field")
    return text


def form_of(fields: Sequence[str], field: str, where: str) -> tuple[str, ...]:
    """Return the fields that hold a document: ``field``, or under the default ``text`` those of chats and tokens."""
    for form in ((field,), *(_FORMS if field == "text" else ())):
        if set(form) <= set(fields):
            return form
    known = ", ".join(" and ".join(form) for form in _FORMS)
    raise DataError(
        f"{where}: no field {field!r} or {known}, only {', '.join(map(repr, fields)) or 'nulls'}; set data.text_field"
    )


def _tokens_of(record: Mapping[str, Any], where: str) -> Tokens:
    ids = token_ids(record["input_ids"], f"{where}: input_ids")
    if record.get("labels") is None:
        return Tokens(ids, np.zeros(len(ids), dtype=bool))
    labels = token_ids(record["labels"], f"{where}: labels")
    if labels.shape != ids.shape or ((labels != ids) & (labels != IGNORED)).any():
        raise DataError(
            f"{where}: labels must repeat input_ids, or be {IGNORED} at tokens that are not trained; correct them"
        )
    return Tokens(ids, labels == IGNORED)


def token_ids(values: Any, what: str) -> np.ndarray:
    """Return a list, array or tensor of token ids as int64 [tokens]; errors begin with ``what``."""
    with suppress(ValueError, TypeError):  # rows of several lengths; a tensor of bfloat16
        array = np.asarray(values)
        if array.ndim == 1 and (not len(array) or np.issubdtype(array.dtype, np.integer)):
            return array.astype(np.int64)
    raise DataError(
        f"{what} holds {values!r:.40}, not a list of token ids; give one list of whole numbers for each document"
    )
