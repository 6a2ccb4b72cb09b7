"""What all sources of text have in common: named documents, a fingerprint, and a place to continue reading from."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skipwise.data.conversations import Conversation
from skipwise.data.formats import unreadable
from skipwise.errors import DataError

_BLOCK = 2**20  # characters


@dataclass(frozen=True)
class Document:
    """One text and its name, by which ``is_held_out`` decides.

    The name is the POSIX path relative to the folder, or that of a single file, safe to print
    (``names.document_name``); records add ``:`` and their line or row, from 1. In text files every line end becomes
    ``\\n`` and a byte order mark is dropped.
    """

    name: str
    text: str

    @property
    def digest(self) -> bytes:
        """The first 8 bytes of the hash of the text: equal texts have equal ones, and so have conversations of equal turns."""
        text = self.text.identity() if isinstance(self.text, Conversation) else self.text
        digest = hashlib.blake2b(digest_size=8)
        for begin in range(0, len(text), _BLOCK):  # not encoded as a whole: it may be long
            digest.update(text[begin : begin + _BLOCK].encode("utf-8", "surrogatepass"))
        return digest.digest()


Place = Any  # where the last document read lies in its source, in a form that JSON holds; None at the start
Mark = Any  # what ``Corpus.place`` makes a place of


@dataclass(frozen=True)
class Corpus(ABC):
    """A source of text; iterate over it, any number of times, to get its documents in the same order everywhere."""

    source: str  # as the user named it
    text_field: str  # the field of records that holds the text

    def __iter__(self) -> Iterator[Document]:
        return (document for document, _ in self.read())

    def read(self, place: Place = None) -> Iterator[tuple[Document, Mark]]:
        """Yield the documents after ``place``, each with the mark of its own; skips what lies before it if it can."""
        empty = place is None
        for found in self._documents(place):
            empty = False
            yield found
        if empty:
            raise DataError(f"{self.source} holds no document; choose another data.source")

    def place(self, mark: Mark) -> Place:
        """Return the place of the document read last, by its mark."""
        return mark

    def kind(self) -> type[str]:
        """Return what its documents are, by the first: str, or its subclass Conversation or Tokenised."""
        return type(next(iter(self)).text)

    def share(self, place: Place) -> float | None:
        """Return how much of the source lies before ``place``, 0..1, or None where nobody knows."""
        return None

    @abstractmethod
    def _documents(self, place: Place) -> Iterator[tuple[Document, Mark]]: ...

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a SHA-256 in hex of what decides the documents: names, contents and the text field."""


def hash_files(files: Iterable[tuple[str, Path]]) -> Iterator[str]:
    """Yield the name, then the SHA-256 of the bytes, of each ``(name, path)``, for ``hash_parts``."""
    for name, path in files:
        try:
            with open(path, "rb") as file:
                yield from (name, hashlib.file_digest(file, "sha256").hexdigest())
        except OSError as error:
            raise unreadable(path, error) from error


def hash_parts(parts: Iterable[str]) -> str:
    """Return the SHA-256 of the parts, each followed by a NUL, which no part holds."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()
