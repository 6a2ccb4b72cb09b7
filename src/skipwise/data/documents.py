"""Any source of text -> documents, one at a time, under names that are the same on every machine.

A source is one of

    a text file                 notes.txt (.md, .rst, .py, .tex)      one document
    records                     corpus.jsonl (.jsonl.gz, .jsonl.zst), corpus.parquet     one a line or row
    a folder                    all of the above in it, recursively, sorted by name
    a Hugging Face data set     a folder written by ``save_to_disk``, or a name on the hub
    ``stdlib``                  Python's own standard library, which is always there
    ``pydoc``                   Python's language reference, prose, as its ``help()`` shows it

A document is held in memory whole, a source never is.
"""

import hashlib
import os
import re
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skipwise.data.formats import (
    ENDINGS,
    NotUtf8Error,
    first_line,
    reader_of,
    require_field,
    text_of,
    unreadable,
)
from skipwise.errors import DataError
from skipwise.recipe import nearest

_READABLE = "readable are " + ", ".join(ENDINGS)

# Kept out of ``stdlib``: what is installed beside it, its tests, and its generated tables.
_STDLIB_SKIPPED = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
_STDLIB_TABLES = {"encodings", "pydoc_data"}


@dataclass(frozen=True)
class Document:
    """One text and its name, by which ``is_held_out`` decides.

    Attributes:
        name: the POSIX path relative to the folder (a file's own name where it is the source); records add
            ``:`` and their line or row, from 1.
        text: line ends are ``\\n`` where it comes from a text file; a byte order mark is dropped.
    """

    name: str
    text: str


def is_held_out(name: str, share: float) -> bool:
    """Whether the document ``name`` belongs to the validation share, ``0 <= share <= 1``.

    A hash of the name decides, so training and evaluation, here and elsewhere, agree on the split without
    writing it down: the first 64 bits of SHA-256, big-endian, lie below ``share * 2**64``.
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") < share * 2**64


def read_documents(
    source: str | Path, *, text_field: str = "text", split: str = "train"
) -> Iterator[Document]:
    """Read the documents of ``source``, lazily, in the same order everywhere.

    Args:
        source: see the module's table.
        text_field: the field of JSON Lines, Parquet or a data set that holds the text.
        split: the split of a Hugging Face data set.

    Raises:
        DataError: the source is missing, of an unknown kind, empty or damaged; a text is not UTF-8; a record
            is broken or has no such field. At the call where it shows at once, else while iterating.
    """
    return iter(open_corpus(source, text_field=text_field, split=split))


class Corpus(ABC):
    """A source that was found and looked into; iterate it, as often as wanted, for its documents."""

    def __init__(self, source: str, text_field: str) -> None:
        self.source = source
        self.text_field = text_field

    def __iter__(self) -> Iterator[Document]:
        empty = True
        for document in self._documents():
            empty = False
            yield document
        if empty:
            raise DataError(
                f"{self.source} holds no document, only empty lines or nothing; choose another data.source"
            )

    @abstractmethod
    def _documents(self) -> Iterator[Document]: ...

    @abstractmethod
    def fingerprint(self) -> str:
        """Hash what decides the documents: SHA-256 in hex of names, contents and the text field."""


def open_corpus(source: str | Path, *, text_field: str = "text", split: str = "train") -> Corpus:
    """Find out what ``source`` is; ``read_documents`` says the arguments and the errors."""
    if source == "stdlib":
        return FileCorpus("stdlib", _stdlib_files(), text_field, skip_undecodable=True)
    if source == "pydoc":
        return TopicsCorpus(source, text_field)
    if not str(source).strip():
        raise DataError("data.source is empty; give a file, a folder, a Hugging Face data set, or stdlib")
    path = Path(source).expanduser()
    if path.is_dir():
        if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
            return _saved_corpus(path, text_field, split)
        return FileCorpus(str(source), _folder_files(path), text_field)
    if path.exists():
        if reader_of(path) is None:
            raise DataError(f"{source}: cannot read files ending in {path.suffix!r}; {_READABLE}")
        return FileCorpus(str(source), [(_printable(path.name), path)], text_field)
    return _hub_corpus(str(source), text_field, split)


class FileCorpus(Corpus):
    """Files of this machine: ``(name, path)`` each, in order."""

    def __init__(
        self,
        source: str,
        files: Sequence[tuple[str, Path]],
        text_field: str,
        skip_undecodable: bool = False,
    ) -> None:
        super().__init__(source, text_field)
        self.files = files
        self.skip_undecodable = skip_undecodable

    def _documents(self) -> Iterator[Document]:
        for name, path in self.files:
            reader = reader_of(path)
            assert reader is not None, f"{path} should have been left out"
            try:
                for suffix, text in reader(path, self.text_field):
                    yield Document(name + suffix, text)
            except NotUtf8Error:
                if not self.skip_undecodable:
                    raise

    def fingerprint(self) -> str:
        """Hash every name and every byte, a file at a time."""
        return _hash_parts(["files", self.text_field, *_hashed_files(self.files)])


class TopicsCorpus(Corpus):
    """The chapters of the language reference that come with Python for ``help()``: 79 of them, up to 60 kB."""

    def _documents(self) -> Iterator[Document]:
        for name, text in sorted(_topics().items()):
            yield Document(name, text)

    def fingerprint(self) -> str:
        """Hash every name and every text."""
        return _hash_parts(["topics", *(part for pair in sorted(_topics().items()) for part in pair)])


def _topics() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise DataError(
            "this Python comes without pydoc_data, the text of its help(); give another text, as stdlib"
        ) from None
    return dict(topics)


def _folder_files(folder: Path, skipped: frozenset[str] = frozenset()) -> list[tuple[str, Path]]:
    """List the readable files under ``folder`` by name, without what is hidden or in a ``skipped`` folder."""
    files, walked = {}, set()
    for parent, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        if os.path.realpath(parent) in walked:  # a link to a folder above it, or to one met already
            folders.clear()
            continue
        walked.add(os.path.realpath(parent))
        folders[:] = [name for name in sorted(folders) if not name.startswith(".") and name not in skipped]
        for path in (Path(parent, name) for name in names if not name.startswith(".")):
            if reader_of(path) is not None and path.is_file():
                files[_printable(path.relative_to(folder).as_posix())] = path
    if not files:
        raise DataError(f"{folder} holds no document; {_READABLE}")
    return sorted(files.items())


def _refuse(error: OSError) -> None:
    raise unreadable(Path(error.filename), error) from error


def _stdlib_files() -> list[tuple[str, Path]]:
    files = _folder_files(Path(sysconfig.get_paths()["stdlib"]), _STDLIB_SKIPPED)
    return [
        (name, path)
        for name, path in files
        if name.endswith(".py") and name.split("/")[0] not in _STDLIB_TABLES
    ]


def _printable(name: str) -> str:
    """Escape what a file name holds beside UTF-8, so that it can be hashed and written."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _hashed_files(files: Iterable[tuple[str, Path]]) -> Iterator[str]:
    for name, path in files:
        try:
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise unreadable(path, error) from error
        yield name
        yield digest


def _hash_parts(parts: Iterable[str]) -> str:
    """SHA-256 over the parts, each closed by a NUL, which no part holds."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


class RowCorpus(Corpus):
    """The rows of a ``datasets.Dataset``, named ``NAME:row`` from 1."""

    def __init__(
        self, source: str, name: str, dataset: Any, identity: Callable[[], str], text_field: str
    ) -> None:
        super().__init__(source, text_field)
        self.name = name
        self.dataset = dataset
        self._identity = identity
        require_field(dataset.column_names, text_field, source)

    def _documents(self) -> Iterator[Document]:
        rows = self.dataset.select_columns([self.text_field]).with_format(None)
        for row, record in enumerate(rows, 1):
            text = text_of(record, self.text_field, f"{self.source}, row {row:,}")
            yield Document(f"{self.name}:{row}", text)

    def fingerprint(self) -> str:
        """Hash the name and the data set's identity: its files here, its own fingerprint on the hub."""
        return _hash_parts(["rows", self.text_field, self.name, self._identity()])


def _saved_corpus(folder: Path, text_field: str, split: str) -> Corpus:
    """Open what ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote."""
    import datasets

    try:
        dataset = datasets.load_from_disk(str(folder))
    except Exception as error:  # datasets, pyarrow and json each raise their own
        raise DataError(
            f"{folder}: this saved Hugging Face data set cannot be loaded "
            f"({first_line(error)}); save it again"
        ) from error
    if isinstance(dataset, datasets.DatasetDict):
        if split not in dataset:
            raise DataError(
                f"{folder}: no split {split!r}{nearest(split, dataset)}; "
                f"set data.split to one of {', '.join(dataset)}"
            )
        dataset = dataset[split]
    files = [Path(entry["filename"]) for entry in dataset.cache_files]

    def identity() -> str:
        return _hash_parts(_hashed_files((file.name, file) for file in files))

    return RowCorpus(str(folder), _printable(folder.resolve().name), dataset, identity, text_field)


def _hub_corpus(source: str, text_field: str, split: str) -> Corpus:
    """Load a data set by its name on the hub; what cannot be such a name is a path that is missing."""
    path = Path(source).expanduser()
    siblings = os.listdir(path.parent) if path.parent.is_dir() else []
    missing = f"{source!r} is neither a file nor a folder here{nearest(path.name, siblings)}"
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", source) or reader_of(path) is not None:
        raise DataError(f"{missing}; data.source must be one, a Hugging Face data set, or stdlib")
    import datasets

    try:
        dataset = datasets.load_dataset(source, split=split)
    except Exception as error:  # the network, the hub, a split, a configuration: any of a dozen classes
        raise DataError(
            f"{missing}, and the Hugging Face hub gave no data set of that name with split {split!r} "
            f"({type(error).__name__}: {first_line(error)}). Check name, data.split and network; "
            "or save it where there is one by `Dataset.save_to_disk` and give its folder"
        ) from error
    return RowCorpus(source, source, dataset, lambda: str(dataset._fingerprint), text_field)
