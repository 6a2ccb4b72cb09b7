"""Read the documents of a source: files, folders, data sets, Python's standard library.

    source                                              document          name
    .txt .md .rst .py .tex, or a folder                 file              path below the folder
    .jsonl .jsonl.gz .jsonl.zst .parquet                line or row       path:number, from 1
    a folder by ``Dataset.save_to_disk``                row               folder:number
    a data set on the Hugging Face hub                  row               owner/name:number
    stdlib, pydoc                                       module, topic     path, topic

Names are the same on every machine, because a hash of the name decides what is held out. ``datasets`` reads Parquet, saved
data sets and the hub. Files are read here: the names are those of files and lines, and so is the place of an error.
"""

import glob
import gzip
import hashlib
import io
import json
import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from itertools import chain, islice
from pathlib import Path
from typing import Any

from skipwise.data import chat, tokenised
from skipwise.data.chat import Conversation, conversation_of
from skipwise.data.tokenised import Tokens, tokens_of
from skipwise.errors import DataError, nearest, reason
from skipwise.recipes.schema import Data

_TEXT = (".txt", ".md", ".rst", ".py", ".tex")
ENDINGS = (*_TEXT, ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
_READABLE = f"readable files end in {', '.join(ENDINGS)}"
_FORMS = (*chat.FORMS, tokenised.FORM)  # fields of a document that is no text

# Left out of ``stdlib``: installed packages, tests, generated tables.
_STDLIB_SKIPPED = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
_STDLIB_TABLES = ("encodings/", "pydoc_data/")
KINDS = {"prose": "prose.txt", "mathematics": "mathematics.tex", "code": "code.c"}


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
    documents: Callable[[int], Iterator[Document]]  # without the first n
    content: Callable[[], Iterable[str]]  # for ``fingerprint``
    size: int | None = None  # documents; None: unknown
    unread: Sequence[str] = ()  # files with other endings

    def __iter__(self) -> Iterator[Document]:
        return self.read()

    def read(self, done: int = 0) -> Iterator[Document]:
        """Yield all documents after the first ``done``."""
        empty = not done
        for document in self.documents(done):
            empty = False
            yield document
        if empty:
            raise DataError(f"{self.source} holds no document; choose another data.source")

    def fingerprint(self) -> str:
        """Return the SHA-256 in hex of names, content and text field."""
        return hashlib.sha256("\0".join(self.content()).encode()).hexdigest()


def is_held_out(name: str, share: float) -> bool:
    """Return True if a document belongs to the held-out share, 0 to 1.

    The first 64 bits of the name's SHA-256, big-endian, are below ``share * 2**64``.
    """
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def open_corpus(source: str | Path | Data) -> Corpus:
    """Open a source, or the one of a recipe's data section.

    Raises:
        DataError: there is no such source, or no document in it.
    """
    data = Data.of(source)
    path = Path(data.source)
    if data.source in ("stdlib", "pydoc"):
        _refuse_settings(data, "split", "subset", "streaming")
        return _pydoc() if data.source == "pydoc" else _files(data, _stdlib_files(), skip_undecodable=True)
    if not path.exists():
        return _hub(data)
    if _is_saved(path):
        _refuse_settings(data, "subset", "streaming")
        return _saved(path, data)
    _refuse_settings(data, "split", "subset", "streaming")
    if not path.is_dir():
        if not path.name.lower().endswith(ENDINGS):
            raise DataError(f"{path}: files ending in {path.suffix!r} cannot be read; {_READABLE}")
        return _files(data, [(path.name, path)])
    found = sorted(_walk(path))
    files = [(name, file) for name, file in found if name.lower().endswith(ENDINGS)]
    if not files:
        raise DataError(f"{path} holds no document; {_READABLE}")
    return _files(data, files, unread=[name for name, _ in found if not name.lower().endswith(ENDINGS)])


def other_source(data: Data, source: str) -> Data:
    """Return the data section with another source; settings of a hub data set are dropped for files and folders."""
    path = Path(source)
    if source == data.source or not (source in ("stdlib", "pydoc") or path.exists()):
        return data.model_copy(update={"source": source})
    names = ("split", "subset", "streaming", "max_train_tokens")
    kept = {"split": data.split} if _is_saved(path) else {}
    return data.model_copy(update={name: Data.model_fields[name].default for name in names} | kept | {"source": source})


def _refuse_settings(data: Data, *names: str) -> None:
    """Raise a DataError for settings of a hub data set."""
    for name in names:
        if (value := getattr(data, name)) != Data.model_fields[name].default:
            raise DataError(f"data.{name} = {value!r} is for hub data sets, not for {data.source}; leave it out")


# --- files ---


def _files(
    data: Data, files: Sequence[tuple[str, Path]], *, skip_undecodable: bool = False, unread: Sequence[str] = ()
) -> Corpus:
    """Return the corpus of files, each with its name."""

    def documents(done: int) -> Iterator[Document]:
        read = (_read(name, path, data.text_field, skip_undecodable) for name, path in files)
        return islice(chain.from_iterable(read), done, None)

    def content() -> Iterator[str]:
        yield from ("files", data.text_field)
        for name, path in files:
            with _opened(path) as file:
                yield from (name, hashlib.file_digest(file, "sha256").hexdigest())

    texts = all(name.lower().endswith(_TEXT) for name, _ in files)
    return Corpus(data.source, documents, content, len(files) if texts else None, unread)


def _read(name: str, path: Path, field: str, skip_undecodable: bool) -> Iterator[Document]:
    """Yield the documents of a file."""
    if path.name.lower().endswith(_TEXT):
        with _opened(path) as file:
            try:
                yield Document(name, io.TextIOWrapper(io.BufferedReader(file), encoding="utf-8-sig").read())
            except UnicodeDecodeError as error:
                if not skip_undecodable:
                    raise DataError(
                        f"{path}: byte {error.start:,} is not UTF-8; convert the file, e.g. `iconv -f latin1 -t utf-8`"
                    ) from error
        return
    if path.name.lower().endswith(".parquet"):
        import datasets

        open_rows = partial(datasets.load_dataset, "parquet", split="train", streaming=True)
        yield from _rows(lambda: open_rows(data_files=glob.escape(str(path))), name, path, field)
        return
    for number, record in _json_lines(path):
        yield Document(f"{name}:{number}", content_of(record, field, f"{path}, line {number:,}"))


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield line numbers, from 1, and records.

    ``datasets`` gives no line numbers, which names and errors need.
    """
    unpack = _PACKED.get(path.suffix.lower(), io.BufferedReader)
    number = 0
    try:
        with _opened(path) as packed:
            for number, line in enumerate(unpack(packed), 1):
                if not line.isspace():
                    yield number, _parse(line, f"{path}, line {number:,}")
    except DataError:
        raise
    except Exception as error:  # gzip, zlib and zstandard have their own
        raise DataError(
            f"{path}: the file is damaged after line {number:,} ({reason(error)}); download it again"
        ) from error


def _unpack_zstd(packed: io.FileIO) -> io.BufferedReader:
    import zstandard

    # A file may have several frames, and windows of ``zstd --long=31``; both are off by default.
    unpack = zstandard.ZstdDecompressor(max_window_size=2**31)
    return io.BufferedReader(unpack.stream_reader(packed, read_across_frames=True))


_PACKED: dict[str, Callable[[Any], Iterable[bytes]]] = {
    ".gz": lambda packed: gzip.GzipFile(fileobj=packed),
    ".zst": _unpack_zstd,
}


def _parse(line: bytes, where: str) -> Any:
    try:
        record = json.loads(line)
        if b"\\ud" in line.lower():  # perhaps half of a surrogate pair, which cannot be tokenised
            json.dumps(record, ensure_ascii=False).encode()
        return record
    except (ValueError, RecursionError) as error:
        raise DataError(f'{where}: not JSON ({error}); write one object per line, e.g. {{"text": "..."}}') from error


def _opened(path: Path) -> io.FileIO:
    try:
        return io.FileIO(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); correct the path or its permissions") from error


def _walk(folder: Path, skipped: frozenset[str] = frozenset()) -> Iterator[tuple[str, Path]]:
    """Yield name and path of every file below a folder.

    Hidden files are left out, and folders that Skipwise wrote (``run.json`` and ``.lock``): they change during a run.
    """
    walked = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        ours = {"run.json", ".lock"} <= set(names) and parent != os.fspath(folder)
        if ours or os.path.realpath(parent) in walked:  # links may form a circle
            folders.clear()
            continue
        walked.add(os.path.realpath(parent))
        folders[:] = [name for name in sorted(folders) if not name.startswith(".") and name not in skipped]
        for path in (Path(parent, name) for name in names if not name.startswith(".")):
            yield path.relative_to(folder).as_posix(), path


def _stdlib_files() -> list[tuple[str, Path]]:
    found = sorted(_walk(Path(sysconfig.get_paths()["stdlib"]), _STDLIB_SKIPPED))
    return [(n, path) for n, path in found if n.endswith(".py") and not n.startswith(_STDLIB_TABLES) and path.is_file()]


def _pydoc() -> Corpus:
    """Return the chapters of Python's language reference, which ``help()`` shows."""
    from pydoc_data.topics import topics

    texts = [Document(name, text) for name, text in sorted(topics.items())]
    content = [part for document in texts for part in (document.name, document.text)]
    return Corpus("pydoc", lambda done: iter(texts[done:]), lambda: content, len(texts))


# --- data sets, read by ``datasets`` ---


def _rows(open_rows: Callable[[], Any], name: str, where: str | Path, field: str, done: int = 0) -> Iterator[Document]:
    """Yield the rows of a ``Dataset`` or ``IterableDataset`` after the first ``done``."""
    row = done
    try:
        rows = open_rows()
        if rows.column_names is not None:
            form_of(rows.column_names, field, str(where))
            known = {field, chat.TOOLS, tokenised.LABELS, *chain.from_iterable(_FORMS)}
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


def _data_set(data: Data, name: str, dataset: Any, identity: str, size: int | None) -> Corpus:
    """Return the corpus of a ``Dataset`` or ``IterableDataset``."""
    content = ("rows", data.text_field, name, identity)
    rows = partial(_rows, lambda: dataset, name, data.source, data.text_field)
    return Corpus(data.source, rows, lambda: content, size)


def _is_saved(folder: Path) -> bool:
    """Return True for a folder by ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk``."""
    one = (folder / "state.json").exists() and (folder / "dataset_info.json").exists()
    return one or (folder / "dataset_dict.json").exists()


def _saved(folder: Path, data: Data) -> Corpus:
    import datasets

    try:
        dataset = datasets.load_from_disk(str(folder))
    except Exception as error:  # datasets, pyarrow and json have their own
        raise DataError(f"{folder}: the saved data set cannot be loaded ({reason(error)}); save it again") from error
    if isinstance(dataset, datasets.DatasetDict):
        if data.split not in dataset:
            near = nearest(data.split, dataset)
            raise DataError(f"{folder} has no split {data.split!r}{near}; choose data.split from {', '.join(dataset)}")
        dataset = dataset[data.split]
    else:
        _refuse_settings(data, "split")
    return _data_set(data, folder.resolve().name, dataset, str(dataset._fingerprint), len(dataset))


def _hub(data: Data) -> Corpus:
    source, path = data.source, Path(data.source)
    siblings = os.listdir(path.parent) if path.parent.is_dir() else []
    missing = f"{source!r} is no file or folder{nearest(path.name, siblings)}"
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", source) or source.lower().endswith(ENDINGS):
        raise DataError(f"{missing}; give a file, a folder, a Hugging Face data set, or stdlib")
    import datasets

    try:
        if data.streaming:
            builder = datasets.load_dataset_builder(source, data.subset)
            identity = f"{builder.hash} {builder.config.name} {data.split}"
            return _data_set(data, source, builder.as_streaming_dataset(split=data.split), identity, None)
        dataset = datasets.load_dataset(source, data.subset, split=data.split)
        return _data_set(data, source, dataset, str(dataset._fingerprint), len(dataset))
    except Exception as error:  # the network, the hub, a split or a subset
        subset = f", subset {data.subset!r}" if data.subset else ""
        raise DataError(
            f"{missing}, and not on the hub with split {data.split!r}{subset} ({type(error).__name__}: {reason(error)}). Check "
            "name, split and network, or give a folder by `Dataset.save_to_disk`"
        ) from error


# --- records ---


def content_of(record: Any, field: str, where: str) -> str | Conversation | Tokens:
    """Return the text, chat or tokens of a record.

    Raises:
        DataError: no field has one.
    """
    if not isinstance(record, dict):
        raise DataError(f"{where}: a {type(record).__name__}, not an object; write one object per line")
    form = form_of([name for name, value in record.items() if value is not None], field, where)
    if form == tokenised.FORM:
        return tokens_of(record, where)
    if form in chat.FORMS:
        return conversation_of(record, form, where)
    if not isinstance(text := record[field], str):
        raise DataError(f"{where}: field {field!r} is of type {type(text).__name__}, not text; set data.text_field")
    return text


def form_of(fields: Sequence[str], field: str, where: str) -> tuple[str, ...]:
    """Return the fields that hold a document: ``field``, or under the default ``text`` those of chats and tokens.

    Raises:
        DataError: none does.
    """
    for form in ((field,), *(_FORMS if field == "text" else ())):
        if set(form) <= set(fields):
            return form
    known = ", ".join(" and ".join(form) for form in _FORMS)
    raise DataError(
        f"{where}: no field {field!r} or {known}, only {', '.join(map(repr, fields)) or 'nulls'}; set data.text_field"
    )


def shipped_text(kind: str) -> str:
    """Return the document of one kind: ``prose``, ``mathematics`` or ``code``."""
    return resources.files("skipwise").joinpath("assets", "other", KINDS[kind]).read_text(encoding="utf-8")
