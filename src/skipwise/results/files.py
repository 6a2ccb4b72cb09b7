"""Files that Skipwise writes and believes later: written whole, and read only if nobody changed them.

A kill, a full disk or a bit that flips on the disk must not change a result unseen. So a file of ours replaces the
older one in one step, after it has reached the disk; JSON of ours carries a hash of its own content; and a finished
folder is sealed: the sizes and hashes of its files stand in a file that is written last.
"""

import csv
import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

from filelock import FileLock, Timeout

from skipwise.errors import RunError
from skipwise.results.privacy import private_folder

_CHECK = "check"  # the field of a JSON file with the hash of its other fields
_BLOCK = 2**23  # bytes that one thread hashes at a time
_SETTLED = 2.0  # seconds; a file changed later than this may change again within the same time stamp
_REMEMBERED = 4000  # files
_ABANDONED = 3600.0  # seconds after which a file that a killed process was writing is removed
_known: dict[str, str] = {}  # file and its time stamps -> hash
_kept: dict[Path, FileLock] = {}  # of the files that this process alone writes

Seal = dict[str, dict[str, Any]]  # file: its bytes and digest


def default_cache() -> Path:
    """``$SKIPWISE_CACHE``, else skipwise in the user's cache folder.

    Raises:
        RunError: it lies in the home of a user who has none.
    """
    chosen = os.environ.get("SKIPWISE_CACHE")
    folder = chosen or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/skipwise"
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        raise RunError(
            f"the cache {folder} lies in a home folder that is not there; give $SKIPWISE_CACHE a whole path"
        ) from None


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write ``path`` anew: the file opened here takes its place at the end of this context, flushed to the disk."""
    for left in path.parent.glob(f".{path.name}.*.partial"):
        with suppress(OSError):  # another process may have removed it
            if time.time() - left.lstat().st_mtime > _ABANDONED:
                left.unlink()
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    try:
        with open(partial, "xb") as file:  # x: if a link was put there, it is not followed
            with suppress(OSError):  # there is none yet, or the disk has no rights
                partial.chmod(path.stat().st_mode)
            yield file
            flush(file)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


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
    """Write an object as JSON, whole, with the hash of its content."""
    write_text(path, json.dumps(values | {_CHECK: content_hash(values)}, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read what ``write_json`` wrote; of a file without a hash whatever it says.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON object, or not the one that was written.
    """
    if not path.is_file():
        raise ValueError("it is missing, or no file")  # a pipe or a device could be read without end
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("its brackets are nested too deep") from None
    if not isinstance(values, dict):
        raise ValueError(f"it holds a {type(values).__name__}, not facts by name")
    check = values.pop(_CHECK, None)
    if check not in (None, content_hash(values)):
        raise ValueError("its content is not what was written: the hash differs")
    return values


def content_hash(value: Any) -> str:
    """Return 16 hex digits of a value as JSON, whatever the order of its keys."""
    return short_digest(json.dumps(value, sort_keys=True).encode())


def short_digest(content: bytes) -> str:
    """Return the first 16 hex digits of the SHA-256 digest."""
    return hashlib.sha256(content).hexdigest()[:16]


def flush(file: IO[Any]) -> None:
    """Flush a file to the disk; if it were renamed first, it could be empty after a power cut."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Write renames and removals in ``folder`` through to the disk, if the system can (Windows cannot)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def seal(folder: Path, names: Iterable[str]) -> Seal:
    """The size and the hash of each of ``names`` in ``folder``, after they are on the disk."""
    entries = {}
    for name in names:
        with open(folder / name, "rb+") as file:  # + : some systems flush no file that is open for reading
            os.fsync(file.fileno())
        entries[name] = {"bytes": (folder / name).stat().st_size, "digest": file_digest(folder / name)}
    return entries


def require_sealed(folder: Path, entries: Seal, way_out: str) -> None:
    """Require every file that a seal names, unchanged.

    Raises:
        RunError: one is lost or changed; the message ends in ``way_out``.
    """
    for name, entry in entries.items():
        path = folder / name
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise RunError(f"the seal of {folder} names a file outside of it, {name!r}; {way_out}")
        if not path.is_file():
            raise RunError(f"{folder} has lost {name}; {way_out}")
        if path.stat().st_size != entry.get("bytes") or file_digest(path) != entry.get("digest"):
            raise RunError(f"{path} is not the file that was written (its size or hash differs); {way_out}")


def file_digest(path: Path) -> str:
    """Return the hash of a file in hex: SHA-256 of the SHA-256 of its blocks of 8 MiB, so that all cores work.

    It is remembered in this process and in the user's cache folder, by path, size, time stamps and inode.
    """
    stat = path.stat()
    key = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"
    small = stat.st_size <= _BLOCK  # read again faster than it is looked up
    if key not in _known and not small:
        _known.update(_read_cache())
    if key in _known:
        return _known[key]
    begun = time.time()
    starts = range(0, stat.st_size, _BLOCK)
    with nullcontext() if small else ThreadPoolExecutor() as pool:  # a thread takes memory that may be wanting
        blocks = (pool.map if pool else map)(lambda start: _block_digest(path, start), starts)
        digest = hashlib.sha256(b"".join(blocks)).hexdigest()
    if begun - max(stat.st_mtime, stat.st_ctime) > _SETTLED:
        _known[key] = digest
        if not small:
            _write_cache(_read_cache() | {key: digest})
    return digest


def write_checksum(file: Path, name: str) -> Path:
    """Write ``NAME.sha256`` beside a file that will be called ``name``, as ``sha256sum`` writes and checks it."""
    path = file.with_name(f"{name}.sha256")
    write_text(path, f"{_sha256(file)}  {name}\n")
    return path


def require_checksum(file: Path) -> None:
    """Require a file to be the one that ``NAME.sha256`` beside it names; nothing where there is none.

    Raises:
        RunError: it is another, or the checksum is damaged.
    """
    path = file.with_name(f"{file.name}.sha256")
    if path.is_file() and path.read_bytes()[:64].decode(errors="replace") != _sha256(file):
        raise RunError(
            f"{file} is not the file that {path.name} names: one of the two is damaged. Fetch or write both again, or delete "
            f"{path.name} to take the file as it is"
        )


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _block_digest(path: Path, start: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(_BLOCK)).digest()


def _digests() -> Path:
    return default_cache() / "digests.json"


def _read_cache() -> dict[str, str]:
    try:
        return {str(key): str(value) for key, value in read_json(_digests()).items()}
    except (OSError, ValueError):
        return {}


def _write_cache(digests: dict[str, str]) -> None:
    """Write the newest digests. Without a writable cache folder, the next process hashes the files again."""
    with suppress(OSError):
        private_folder(default_cache())
        write_json(_digests(), dict(list(digests.items())[-_REMEMBERED:]))


def keep_for_this_process(path: Path) -> None:
    """Let no other process that asks for it write ``path`` until this one ends.

    Raises:
        RunError: another process has it.
    """
    at = path.resolve()  # a link and its file are one
    if at in _kept:
        return
    lock = FileLock(at.with_name(f".{at.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(f"another process is writing {path}; wait for it, or give another --out") from None
    _kept[at] = lock


def fresh_folder(path: Path) -> None:
    """Make an empty folder that is written before it takes its name; what a killed process left there is removed.

    Raises:
        RunError: a link or a file lies there; a link would be written through.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise RunError(f"{path} is a link or a file, and a folder is to be written there; remove it")
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)


def require_free(path: Path) -> None:
    """Require that nothing lies at ``path``.

    Raises:
        RunError: something does.
    """
    if os.path.lexists(path):
        raise RunError(f"{path} exists and is not overwritten; give another folder")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Write a folder that does not exist yet: the one given here takes its name at the end of this context.

    That is the last change of the disk: a command that was killed before is repeated, and one killed after has its result.

    Raises:
        RunError: it exists, or another process is writing it.
    """
    require_free(path)
    partial = path.with_name(f".{path.name}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f".{path.name}.lock"))  # not inside, where it would have to go before the rename
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(f"another process is writing {path}; wait for it, or give another folder") from None
    try:
        require_free(path)
        fresh_folder(partial)
        yield partial
        try:
            partial.rename(path)
        except OSError:
            require_free(path)  # a program without the lock may have written it meanwhile
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()
