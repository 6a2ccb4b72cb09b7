"""Any source of text -> documents, one at a time, under names that are the same on every machine.

A source is one of

    a text file                 notes.txt (.md, .rst, .py, .tex)      one document
    records                     corpus.jsonl (.jsonl.gz, .jsonl.zst), corpus.parquet     one a line or row
    a folder                    all of the above in it, recursively, sorted by name
    a Hugging Face data set     a folder written by ``save_to_disk``, or a name on the hub, streamed or fetched whole
    ``stdlib``                  Python's own standard library, which is always there
    ``pydoc``                   Python's language reference, prose, as its ``help()`` shows it

A document is held in memory whole, a source never is.
"""

import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from skipwise.data.corpus import Corpus, Document, Place, hash_files, hash_parts, printable
from skipwise.data.formats import ENDINGS, NotUtf8Error, reader_of, unreadable
from skipwise.data.hugging_face import open_hub, open_saved
from skipwise.errors import DataError

_READABLE = "readable are " + ", ".join(ENDINGS)

# Kept out of ``stdlib``: what is installed beside it, its tests, and its generated tables.
_STDLIB_SKIPPED = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
_STDLIB_TABLES = {"encodings", "pydoc_data"}


def is_held_out(name: str, share: float) -> bool:
    """Whether the document ``name`` belongs to the validation share, ``0 <= share <= 1``.

    A hash of the name decides, so training and evaluation, here and elsewhere, agree on the split without
    writing it down: the first 64 bits of SHA-256, big-endian, lie below ``share * 2**64``.
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") < share * 2**64


def read_documents(
    source: str | Path,
    *,
    text_field: str = "text",
    split: str = "train",
    subset: str | None = None,
    stream: bool = False,
) -> Iterator[Document]:
    """Read the documents of ``source``, lazily, in the same order everywhere.

    Args:
        source: see the module's table.
        text_field: the field of JSON Lines, Parquet or a data set that holds the text.
        split: the split of a Hugging Face data set.
        subset: its subset (configuration) on the hub; None takes the default one.
        stream: read a data set of the hub as it comes, without fetching it whole.

    Raises:
        DataError: the source is missing, of an unknown kind, empty or damaged; a text is not UTF-8; a record
            is broken or has no such field. At the call where it shows at once, else while iterating.
    """
    return iter(open_corpus(source, text_field=text_field, split=split, subset=subset, stream=stream))


def open_corpus(
    source: str | Path,
    *,
    text_field: str = "text",
    split: str = "train",
    subset: str | None = None,
    stream: bool = False,
) -> Corpus:
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
            return open_saved(path, text_field, split)
        return FileCorpus(str(source), _folder_files(path), text_field)
    if path.exists():
        if reader_of(path) is None:
            raise DataError(f"{source}: cannot read files ending in {path.suffix!r}; {_READABLE}")
        return FileCorpus(str(source), [(printable(path.name), path)], text_field)
    return open_hub(str(source), text_field, split, subset, stream)


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

    def fingerprint(self) -> str:
        """Hash every name and every byte, a file at a time."""
        return hash_parts(["files", self.text_field, *hash_files(self.files)])


class TopicsCorpus(Corpus):
    """The chapters of the language reference that come with Python for ``help()``: 79 of them, up to 60 kB."""

    def _documents(self, place: Place) -> Iterator[tuple[Document, Place]]:
        for done, (name, text) in enumerate(sorted(_topics().items()), 1):
            if done > (place or 0):
                yield Document(name, text), done

    def fingerprint(self) -> str:
        """Hash every name and every text."""
        return hash_parts(["topics", *(part for pair in sorted(_topics().items()) for part in pair)])


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
                files[printable(path.relative_to(folder).as_posix())] = path
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
