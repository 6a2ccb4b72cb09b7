"""Any source of text -> its documents, one at a time, under names that are the same on every machine.

A source is a text file (.txt, .md, .rst, .py, .tex: one document), a file of records (.jsonl, .jsonl.gz, .jsonl.zst,
.parquet: one document per line or row), a folder of all these, recursively, sorted by name, a Hugging Face data set (a
folder written by ``save_to_disk``, or a name on the hub, streamed or downloaded), ``stdlib`` (Python's own standard
library, available everywhere), or ``pydoc`` (Python's language reference, prose, as its ``help()`` shows it). A
document is in memory as a whole, so its size has a limit (``formats.LARGEST``); a source is not.
"""

import hashlib
import os
import stat
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from skipwise.data.corpus import Corpus, Document, Place, hash_files, hash_parts
from skipwise.data.formats import ENDINGS, NotUtf8Error, holds_records, reader_of, unreadable
from skipwise.data.hugging_face import open_hub, open_saved
from skipwise.data.names import document_name, printable
from skipwise.errors import DataError
from skipwise.recipes.schema import Data

_READABLE = "readable files end in " + ", ".join(ENDINGS)

# Left out of ``stdlib``: installed packages, tests, and generated tables.
_STDLIB_SKIPPED = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
_STDLIB_TABLES = {"encodings", "pydoc_data"}

_NO_FILES = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def is_held_out(name: str, share: float) -> bool:
    """Return whether the document ``name`` belongs to the held-out share, ``0 <= share <= 1``.

    A hash of the name decides, so training and evaluation on any machine agree on the split without a list of it:
    the first 64 bits of SHA-256, big-endian, are below ``share * 2**64``.
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") < share * 2**64


def open_corpus(source: str | Path | Data) -> Corpus:
    """Return the documents of a source, or of the one that a recipe's data section describes; nothing is read yet."""
    data = Data.of(source)
    if data.source in ("stdlib", "pydoc"):
        _refuse_parts(data, "split", "subset", "stream")
    if data.source == "stdlib":
        return FileCorpus("stdlib", data.text_field, _stdlib_files(), skip_undecodable=True)
    if data.source == "pydoc":
        return TopicsCorpus("pydoc", data.text_field)
    if not data.source.strip():
        raise DataError("data.source is empty; give a file, a folder, a Hugging Face data set, or stdlib")
    path = _path(data.source)
    if path is None:
        return open_hub(data)
    if _is_saved(path):
        _refuse_parts(data, "subset", "stream")
        return open_saved(path, data)
    if path.is_dir():
        _refuse_parts(data, "split", "subset", "stream")
        files, unread = _folder_files(path)
        return FileCorpus(printable(data.source), data.text_field, files, unread=unread)
    _refuse_parts(data, "split", "subset", "stream")
    _require_file(path)
    if reader_of(path) is None:
        raise DataError(f"{printable(path)}: cannot read files ending in {path.suffix!r}; {_READABLE}")
    return FileCorpus(printable(data.source), data.text_field, [(document_name(path.name), path)])


def other_source(data: Data, source: str) -> Data:
    """Return the settings for a text beside that of ``data``: of files and folders without those of a Hugging Face data set, and
    without the limit of its tokens."""
    path = Path(source) if source in ("stdlib", "pydoc") else _path(source)
    if path is None or source == data.source:
        return data.model_copy(update={"source": source})
    parts = {name: Data.model_fields[name].default for name in ("split", "subset", "stream", "max_tokens")}
    kept = {"split": data.split} if _is_saved(path) else {}
    return data.model_copy(update={**parts, **kept, "source": source})


def _is_saved(folder: Path) -> bool:
    """Return whether ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote a folder."""
    parts = ("dataset_dict.json",), ("state.json", "dataset_info.json")
    return folder.is_dir() and any(all((folder / name).exists() for name in names) for names in parts)


def _refuse_parts(data: Data, *names: str) -> None:
    """Refuse settings of a data set on the hub that this source would ignore."""
    for name in names:
        if (value := getattr(data, name)) != Data.model_fields[name].default:
            raise DataError(
                f"data.{name} = {value!r} is of a Hugging Face data set, and {printable(data.source)} is read whole; leave it out: "
                f"data.{name} of a recipe, --split and --subset of other commands"
            )


def _path(source: str) -> Path | None:
    """Return the path that ``source`` names, or None if there is nothing under that path."""
    path = Path(source)
    try:
        return path if path.is_symlink() or path.exists() else None
    except OSError as error:  # a folder that may not be entered
        raise unreadable(path, error) from error


@dataclass(frozen=True)
class FileCorpus(Corpus):
    """Files on this machine: ``(name, path)`` each, in order."""

    files: Sequence[tuple[str, Path]]
    skip_undecodable: bool = False
    unread: Sequence[str] = ()  # names of files beside them whose ending is none of a text's

    def _documents(self, place: Place) -> Iterator[tuple[Document, Place]]:
        begin, done = place or (0, 0)
        for index, (name, path) in enumerate(self.files[begin:], begin):
            reader = reader_of(path)
            assert reader is not None, f"{path} should have been left out"
            try:
                for record, (suffix, text) in enumerate(reader(path, self.text_field), 1):
                    if index > begin or record > done:
                        yield Document(name + suffix, text), (index, record)
            except NotUtf8Error:
                if not self.skip_undecodable:
                    raise

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(path.stat().st_size for _, path in self.files))

    def share(self, place: Place) -> float | None:
        """Bytes of the files that are read to their ends; what has been read of a file of records is not known."""
        whole = place[0] if holds_records(self.files[place[0]][1]) else place[0] + 1
        return self._ends[whole - 1] / self._ends[-1] if whole and self._ends[-1] else None

    def kind(self) -> type[str]:
        return super().kind() if holds_records(self.files[0][1]) else str

    def fingerprint(self) -> str:
        return hash_parts(["files", self.text_field, *hash_files(self.files)])


class TopicsCorpus(Corpus):
    """The chapters of the language reference that Python has for ``help()``: 79 of them, up to 60 kB."""

    def _documents(self, place: Place) -> Iterator[tuple[Document, Place]]:
        for done, (name, text) in enumerate(sorted(_topics().items()), 1):
            if done > (place or 0):
                yield Document(name, text), done

    def fingerprint(self) -> str:
        return hash_parts(["topics", *(part for pair in sorted(_topics().items()) for part in pair)])


def _topics() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise DataError(
            "this Python has no pydoc_data, the text of its help(); choose another text, for example stdlib"
        ) from None
    return dict(topics)


def _folder_files(folder: Path) -> tuple[list[tuple[str, Path]], list[str]]:
    """List the readable files under ``folder`` by name, except hidden ones, and the names of those that are not readable."""
    found = dict(_walk(folder))
    files = {name: path for name, path in found.items() if reader_of(path) is not None}
    for path in files.values():
        _require_file(path)
    if not files:
        raise DataError(f"{printable(folder)} holds no document; {_READABLE}")
    return sorted(files.items()), sorted(found.keys() - files.keys())


def _walk(folder: Path, skipped: frozenset[str] = frozenset()) -> Iterator[tuple[str, Path]]:
    """Yield name and path of every file, except hidden ones and those in a ``skipped`` folder, or in one that Skipwise wrote
    (``run.json`` and ``.lock``): with its records and cards the text would change under a run that lies in it."""
    walked = set()
    for parent, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        if os.path.realpath(parent) in walked:  # a link to a folder above it, or to one seen already
            folders.clear()
            continue
        if parent != os.fspath(folder) and {"run.json", ".lock"} <= set(names):
            folders.clear()
            continue
        walked.add(os.path.realpath(parent))
        folders[:] = [name for name in sorted(folders) if not name.startswith(".") and name not in skipped]
        for path in (Path(parent, name) for name in names if not name.startswith(".")):
            yield document_name(path.relative_to(folder).as_posix()), path


def _require_file(path: Path) -> None:
    """Raise a DataError for what is no file: a link to nothing, or a pipe, for which reading would wait for ever."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except OSError as error:
        if path.is_symlink():
            raise DataError(
                f"{printable(path)}: is a link that leads to no file ({error.strerror}); "
                "remove the link, or restore what it leads to"
            ) from error
        raise unreadable(path, error) from error
    if kind in _NO_FILES:
        raise DataError(
            f"{printable(path)}: is {_NO_FILES[kind]}, not a file; texts are read more than once, so write its content "
            "to a file and give that"
        )


def _refuse(error: OSError) -> None:
    raise unreadable(Path(error.filename), error) from error


def _stdlib_files() -> list[tuple[str, Path]]:
    found = sorted(_walk(Path(sysconfig.get_paths()["stdlib"]), _STDLIB_SKIPPED))
    files = [(name, path) for name, path in found if name.endswith(".py") and path.is_file()]
    return [(name, path) for name, path in files if name.split("/")[0] not in _STDLIB_TABLES]
