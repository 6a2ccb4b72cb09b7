"""The token store: the tokens of all documents on the disk, memory-mapped.

    CACHE/tokens/FINGERPRINT/
      tokens.bin     the tokens of all documents in order; uint16 or uint32, little-endian
      offsets.npy    int64 [documents + 1]: document i is tokens[offsets[i]:offsets[i + 1]]
      names.jsonl    one name per line
      digests.bin    uint64 [documents], little-endian: a hash of each document's text
      context.bin    int64 [spans, 2], little-endian: begins and ends in tokens.bin of what the assistant of a conversation
                     does not say, or of what the labels of tokenised data leave out; empty for text
      store.json     schema, counts and the seal, which holds the size and hash of each other file; written last, so a
                     store without it is incomplete

``skipwise.data.tokenising`` writes it, and checks the seal when it opens a store.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from skipwise.data.documents import is_held_out
from skipwise.errors import DataError
from skipwise.results.files import Seal, read_json

SCHEMA = 5  # up to 4, a store of texts alone could have the name that counts the chat template
FILES = ("tokens.bin", "offsets.npy", "names.jsonl", "digests.bin", "context.bin")


class TokenStore:
    """The tokens of a source, memory-mapped and read-only. Pickles as its path.

    Opening it checks sizes and counts. Hashes are checked by ``skipwise.data.tokenising``, once for all processes.

    ``tokens`` are uint16 or uint32 [tokens], all documents in order; ``offsets`` int64 [documents + 1]; ``fingerprint``
    the SHA-256 in hex of the documents' content and the tokenizer; ``largest_token`` -1 if the store has no token;
    ``labelled`` says whether ``context`` is what the data's own labels leave out, which is never trained.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        try:
            about = read_json(self.path / "store.json")
            if about["schema"] != SCHEMA:
                raise ValueError(f"schema {about['schema']}")
            self.seal: Seal = {name: about["seal"][name] for name in FILES}
            for name, entry in self.seal.items():
                if (size := (self.path / name).stat().st_size) != entry["bytes"]:
                    raise ValueError(f"{name} has {size:,} bytes, not {entry['bytes']:,}")
            self.fingerprint: str = about["fingerprint"]
            self.largest_token: int = about["largest_token"]
            self.labelled: bool = about["labelled"]
            self.offsets: np.ndarray = np.load(self.path / "offsets.npy", mmap_mode="r", allow_pickle=False)
            # An empty file cannot be mapped.
            self.tokens: np.ndarray = (
                np.memmap(self.path / "tokens.bin", dtype=about["dtype"], mode="r")
                if self.seal["tokens.bin"]["bytes"]
                else np.empty(0, dtype=about["dtype"])
            )
            if len(self) != about["documents"] or self.offsets[-1] != len(self.tokens):
                raise ValueError(f"{len(self)} documents, {len(self.tokens)} tokens")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self.path} is not a complete token store ({error}); remove it, and it is built again"
            ) from error

    def __len__(self) -> int:  # documents
        return len(self.offsets) - 1

    def __reduce__(self) -> tuple[type["TokenStore"], tuple[Path]]:
        return TokenStore, (self.path,)

    @cached_property
    def names(self) -> "Names":
        names = Names(self.path / "names.jsonl")
        if len(names) != len(self):
            raise DataError(
                f"{self.path} has {len(names)} names of {len(self)} documents; remove it, and it is built again"
            )
        return names

    @cached_property
    def digests(self) -> np.ndarray:
        """Hashes of the documents' texts, whatever their names and the tokenizer: uint64 [documents]."""
        return np.fromfile(self.path / "digests.bin", dtype="<u8")

    @cached_property
    def context(self) -> np.ndarray:
        """Spans of ``tokens`` that the assistant of a conversation does not say, or labels leave out: int64 [spans, 2],
        ascending."""
        return np.fromfile(self.path / "context.bin", dtype="<i8").reshape(-1, 2)

    @property
    def holds_conversations(self) -> bool:
        """Whether any document is a conversation; then all documents that are short are packed."""
        return bool(len(self.context)) and not self.labelled

    def is_context(self, places: np.ndarray) -> np.ndarray:
        """Return which places in ``tokens`` lie in a span of ``context``: bool, of the shape of ``places``."""
        if not len(self.context):
            return np.zeros(places.shape, dtype=bool)
        span = np.searchsorted(self.context[:, 0], places, side="right") - 1
        return (span >= 0) & (places < self.context[span, 1])

    @cached_property
    def lengths(self) -> np.ndarray:
        """The documents' lengths in tokens: int64 [documents]."""
        return np.diff(self.offsets)

    def document(self, index: int) -> np.ndarray:
        """Return the tokens of document ``index``: uint16 or uint32 [its tokens], a view of the map."""
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}")
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


class Names(Sequence[str]):
    """The lines of ``names.jsonl``, memory-mapped, because the names of a large corpus may not fit in memory."""

    def __init__(self, path: Path) -> None:
        self._bytes = np.memmap(path, mode="r") if path.stat().st_size else np.empty(0, dtype=np.uint8)
        ends = np.flatnonzero(self._bytes == ord("\n")) + 1
        self._offsets = np.concatenate([[0], ends])

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        begin, end = self._offsets[range(len(self))[index] :][:2]
        return json.loads(self._bytes[begin:end].tobytes())


def check_vocabulary(store: TokenStore, vocabulary: int) -> None:
    """Check that every token id of a store is below the model's vocabulary size."""
    if store.largest_token < vocabulary:
        return
    for index in range(len(store)):
        beyond = store.document(index)[store.document(index) >= vocabulary]
        if len(beyond):
            raise DataError(
                f"document {index:,} ({store.names[index]}): token {beyond[0]} is not below the model's vocabulary size "
                f"{vocabulary}; tokenise the text with this model's own tokenizer"
            )


def split_by_name(store: TokenStore, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Split the documents by a hash of their names: (training, held out), ascending int64 indices."""
    held_out = np.fromiter((is_held_out(name, share) for name in store.names), dtype=bool, count=len(store))
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)
