"""Write files whole, list them in a manifest, and check them where they are opened.

A file is written under a temporary name, flushed and renamed: a kill or a full disk leaves the old file or the new one.
A finished folder (model, checkpoint, token store) has a manifest, written last: the size and SHA-256 of each of its files.
"""

import csv
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from skipwise.errors import RunError

Seal = dict[str, dict[str, Any]]  # manifest: the "bytes" and the "digest" (SHA-256 in hex) of each file


def default_cache() -> Path:
    """Return ``$SKIPWISE_CACHE``, or skipwise in the user's cache folder."""
    folder = os.environ.get("SKIPWISE_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/skipwise"
    return Path(folder).expanduser()


def is_shared() -> bool:
    """Return whether other users of the machine may read what is written."""
    return bool(os.environ.get("SKIPWISE_SHARED"))


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write ``path`` whole: the file opened here takes its name at the end of the context."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # without it the renamed file may be empty after a power cut
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush renames and removals in ``folder`` to the disk; Windows cannot."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole."""
    with replacing(path) as file:
        file.write(text.encode())


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Write a table whole."""
    table = io.StringIO(newline="")
    csv.writer(table).writerows(rows)
    write_text(path, table.getvalue())


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write an object as JSON, whole."""
    write_text(path, json.dumps(values, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; another content is a ValueError or TypeError."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def content_hash(value: Any) -> str:
    """Return 16 hex digits of a value's JSON; the order of keys does not count."""
    return short_digest(json.dumps(value, sort_keys=True).encode())


def short_digest(content: bytes) -> str:
    """Return the first 16 hex digits of the SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(folder: Path, names: Iterable[str]) -> Seal:
    """Flush the files ``names`` of ``folder`` to the disk, and return their manifest."""
    entries = {}
    for name in names:
        with open(folder / name, "rb+") as file:  # "+": some systems flush only files open for writing
            os.fsync(file.fileno())
        entries[name] = {"bytes": (folder / name).stat().st_size, "digest": file_digest(folder / name)}
    return entries


def require_sealed(folder: Path, entries: Seal, way_out: str) -> None:
    """Check every file of a manifest: its presence, size and SHA-256. A refusal ends in ``way_out``."""
    for name, entry in entries.items():
        path = folder / name
        if not path.is_file():
            raise RunError(f"{folder} has lost {name}; {way_out}")
        if path.stat().st_size != entry.get("bytes") or file_digest(path) != entry.get("digest"):
            raise RunError(f"{path} is not the file that was written (its size or hash differs); {way_out}")


def acquire(lock: FileLock, path: Path) -> None:
    """Take the lock of ``path`` without waiting."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(f"another process is writing {path}; wait for it, or give another --out") from None


def fresh_folder(path: Path) -> None:
    """Make an empty folder; whatever a killed process left there is removed."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Write a new folder whole; it takes its name at the context's end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, lock = path.with_name(f".{path.name}.partial"), FileLock(path.with_name(f".{path.name}.lock"))
    acquire(lock, path)
    try:
        if os.path.lexists(path):
            raise RunError(f"{path} exists and is not overwritten; give another folder")
        fresh_folder(partial)
        yield partial
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()
