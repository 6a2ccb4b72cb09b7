"""A token store being written, which an interrupted build continues.

CACHE/tokens/.draft-FINGERPRINT/    the files of the store, ends.bin, and draft.json, which after each batch says how
                                    much of them is complete, with which hash, and from which place in the source
                                    to continue
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from skipwise.data.corpus import Document, Place
from skipwise.errors import DataError
from skipwise.results.files import keep_private, private_folder, private_mode, read_json, write_json

_APPENDED = ("tokens.bin", "ends.bin", "names.jsonl", "digests.bin", "context.bin")  # the files that grow by document
_BLOCK = 2**20  # bytes or characters that are hashed at a time


class Draft(ExitStack):
    """A store being written; an existing draft is continued from its last ``keep``. Leaving it closes the files.

    ``say`` gets a sentence if an existing draft is not what was written: it is begun again.
    """

    def __init__(self, folder: Path, vocabulary: int, say: Callable[[str], None]) -> None:
        super().__init__()
        self.folder, self.say = folder, say
        self.vocabulary = vocabulary  # every token id is below
        self.dtype = np.dtype("<u2" if vocabulary <= 2**16 else "<u4")
        self._begin_again()

    def _begin_again(self) -> None:
        self.place: Place = None  # of the last document kept
        self.counts = {"documents": 0, "tokens": 0, "largest_token": -1}
        self._sizes = dict.fromkeys(_APPENDED, 0)  # bytes written
        self._hashes = {name: hashlib.sha256() for name in _APPENDED}  # of the bytes written

    def __enter__(self) -> "Draft":
        odd = [path for path in self.folder.glob("*") if path.is_symlink() or not path.is_file()]
        if odd:  # a pipe would be waited for, and a link written through
            self.say(f"{odd[0]} is no file, so its documents are tokenised again")
            shutil.rmtree(self.folder)
        private_folder(self.folder)
        try:
            if (self.folder / "draft.json").exists():
                self._restore()
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._begin_again()
            self.say(f"{self.folder} is not what was written ({error}); its documents are tokenised again")
        self._files: dict[str, IO[bytes]] = {}
        for name, size in self._sizes.items():
            self._files[name] = self.enter_context(open(self.folder / name, "ab", opener=_open_private))
            self._files[name].truncate(size)
        return self

    def _restore(self) -> None:
        """Take up what ``draft.json`` says, if the files begin with what was written."""
        kept = read_json(self.folder / "draft.json")
        self.place, self.counts = kept["place"], {name: kept[name] for name in self.counts}
        self._sizes, self._hashes = dict(kept["bytes"]), {}
        for name in _APPENDED:
            self._hashes[name] = _hash(self.folder / name, self._sizes[name])
            if self._hashes[name].hexdigest() != kept["sha256"][name]:
                raise ValueError(f"the hash of {name} differs")

    def add(self, document: Document, rows: Iterable[Sequence[int]], context: Sequence[tuple[int, int]] = ()) -> None:
        """Write one document, whose token ids come in ``rows``; ``context`` are the spans of ids that are not trained."""
        self._write("context.bin", (np.array(context, dtype="<i8") + self.counts["tokens"]).tobytes())
        for row in rows:
            ids = np.asarray(row, dtype=np.int64)
            assert ids.max(initial=-1) < self.vocabulary, f"token {ids.max()} of a tokenizer of {self.vocabulary}"
            self.counts["tokens"] += len(ids)
            self.counts["largest_token"] = int(ids.max(initial=self.counts["largest_token"]))
            self._write("tokens.bin", ids.astype(self.dtype).tobytes())
        self.counts["documents"] += 1
        self._write("ends.bin", np.int64(self.counts["tokens"]).tobytes())
        self._write("names.jsonl", json.dumps(document.name).encode() + b"\n")
        self._write("digests.bin", document.digest)

    def _write(self, name: str, data: bytes) -> None:
        self._files[name].write(data)
        self._hashes[name].update(data)
        self._sizes[name] += len(data)

    def keep(self, place: Place) -> None:
        """Record that everything added is complete: a build that continues starts after ``place``."""
        self.place = place
        for file in self._files.values():
            file.flush()
        hashes = {name: digest.hexdigest() for name, digest in self._hashes.items()}
        write_json(self.folder / "draft.json", {"place": place, **self.counts, "bytes": self._sizes, "sha256": hashes})
        keep_private(self.folder / "draft.json")

    def finish(self) -> None:
        """Check that the disk gives back what was written, write the offsets, and remove what only a draft has.

        Raises:
            DataError: a file is not what was written to it.
        """
        for name, file in self._files.items():
            file.flush()
            if _hash(self.folder / name, self._sizes[name]).digest() != self._hashes[name].digest():
                raise DataError(
                    f"{self.folder / name} is not what was written to it a moment ago, so this disk or memory is "
                    "failing; set data.cache or $SKIPWISE_CACHE to a folder on another disk"
                )
        ends = np.fromfile(self.folder / "ends.bin", dtype=np.int64)
        with open(self.folder / "offsets.npy", "wb", opener=_open_private) as file:
            np.save(file, np.concatenate([np.zeros(1, dtype=np.int64), ends]))
        for name in ("ends.bin", "draft.json"):
            (self.folder / name).unlink(missing_ok=True)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, private_mode())


def _hash(path: Path, size: int) -> Any:
    """SHA-256 of the first ``size`` bytes of a file, or of all that it has."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(min(size, _BLOCK)):
            digest.update(block)
            size -= len(block)
    return digest
