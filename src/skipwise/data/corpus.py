"""What every source of text has in common: documents under names, a fingerprint, and a place to go on from."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skipwise.data.formats import unreadable
from skipwise.errors import DataError


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


Place = Any  # of the last document read, as JSON holds it; None at the beginning


class Corpus(ABC):
    """A source that was found and looked into; iterate it, as often as wanted, for its documents."""

    def __init__(self, source: str, text_field: str) -> None:
        self.source = source
        self.text_field = text_field

    def __iter__(self) -> Iterator[Document]:
        return (document for document, _ in self.read())

    def read(self, place: Place = None) -> Iterator[tuple[Document, Place]]:
        """Read on from ``place``, without what lies before it where the source allows that.

        Args:
            place: what came with a document of an earlier reading: the next one is the first here.

        Yields:
            A document and its place.

        Raises:
            DataError: as ``skipwise.data.documents.read_documents``.
        """
        empty = place is None
        for found in self._documents(place):
            empty = False
            yield found
        if empty:
            raise DataError(
                f"{self.source} holds no document, only empty lines or nothing; choose another data.source"
            )

    @abstractmethod
    def _documents(self, place: Place) -> Iterator[tuple[Document, Place]]: ...

    @abstractmethod
    def fingerprint(self) -> str:
        """Hash what decides the documents: SHA-256 in hex of names, contents and the text field."""


def hash_files(files: Iterable[tuple[str, Path]]) -> Iterator[str]:
    """Of each ``(name, path)`` the name and the SHA-256 of its bytes, for ``hash_parts``.

    Raises:
        DataError: a file cannot be read.
    """
    for name, path in files:
        try:
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise unreadable(path, error) from error
        yield name
        yield digest


def hash_parts(parts: Iterable[str]) -> str:
    """SHA-256 over the parts, each closed by a NUL, which no part holds."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def printable(name: str) -> str:
    """Escape what a file name holds beside UTF-8, so that it can be hashed and written."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
