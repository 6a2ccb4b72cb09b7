"""``results.jsonl``: one record a line, appended whole, and checked as it is read.

An appended record is flushed, so that a killed run keeps what it had measured. A last line that was cut off is dropped on
reading, with a warning. What is read is validated against the types of ``skipwise.results.records``, and a file that holds
something else is never changed.
"""

import json
import os
import warnings
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter

from skipwise.errors import CutOffWarning, RunError, out_of_room, reason
from skipwise.results.files import content_hash
from skipwise.results.records import Measured, Record

SCHEMA = 2
_ADAPTERS: dict[str, TypeAdapter[Record]] = {kind.kind: TypeAdapter(kind) for kind in get_args(Record)}
_LOOKED_AT = 2**16  # bytes at a file's end
_BEGINNING = f'{{"schema": {SCHEMA}, "kind": "'.encode()  # every record begins so


def append_record(path: Path, *records: Any) -> None:
    """Append a record, or several that belong together, to the JSON Lines file ``path``, and flush it to the disk."""
    if not _looks_whole(path):
        drop_cut_off_record(path)
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(f"{json.dumps(_as_dict(record))}\n" for record in records))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _unusable(path, error) from None


def _as_dict(record: Any) -> dict[str, Any]:
    key = {"key": record.key} if isinstance(record, Measured) else {}
    values = {"schema": SCHEMA, "kind": record.kind, **key, **asdict(record)}
    return values | {"check": _check(values)}


def _check(values: dict[str, Any]) -> str:
    """8 hex digits of a line's content: a changed digit would still be a number."""
    return content_hash(values)[:8]


def read_records(path: Path) -> list[Record]:
    """Read every record of ``path``, in order; a missing file gives no records."""
    *lines, cut_off = _read(path).decode(errors="replace").split("\n")
    if cut_off:
        warnings.warn(f"{path}: the last line was cut off by a kill and is left out", CutOffWarning, stacklevel=2)
    return [_parse(path, number, line) for number, line in enumerate(lines, 1) if line]


def require_results(path: Path) -> None:
    """Require, before any work, that records can be appended to ``path``; make its folder if it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch()
            path.unlink()  # a measurement that fails leaves no empty file
        else:
            _require_records(path, _read(path).splitlines(keepends=True))
            open(path, "ab").close()
    except OSError as error:
        raise _unusable(path, error) from None


def drop_cut_off_record(path: Path) -> bool:
    """Cut off an unfinished last line, so that the next record starts a line of its own; say whether there was one.

    A file that does not end in a record of this schema is refused and left as it is.
    """
    data = _read(path)
    whole, lines = data.rfind(b"\n") + 1, data.splitlines(keepends=True)
    _require_records(path, lines, max(0, len(lines) - 2))
    if whole < len(data):
        try:
            os.truncate(path, whole)
        except OSError as error:
            raise _unusable(path, error) from None
    return whole < len(data)


def _looks_whole(path: Path) -> bool:
    """Whether the first and the last line begin as records do, and the last one ends.

    All of the file would take long to read before each record. Of a last line longer than ``_LOOKED_AT`` this is not known.
    """
    with suppress(OSError), open(path, "rb") as file:
        begins = file.read(len(_BEGINNING)) == _BEGINNING
        file.seek(-min(_LOOKED_AT, os.path.getsize(path)), os.SEEK_END)
        *_, last, rest = [b"", *file.read().split(b"\n")]
        return begins and last.startswith(_BEGINNING) and not rest
    return False


def _read(path: Path) -> bytes:
    """The bytes of a file; none where there is no file."""
    if path.exists() and not path.is_file():
        raise RunError(f"{path} is no file; results are one file of JSON Lines, as results.jsonl")
    try:
        return path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error}; change its permissions") from None


def _require_records(path: Path, lines: list[bytes], begin: int = 0) -> None:
    """Require lines from number ``begin`` on to be records of this schema; an unfinished last one must begin as one.

    What begins as a record and is none was one of ours, and is named by its number.
    """
    for number, line in enumerate(lines[begin:], begin + 1):
        whole, ours = line.endswith(b"\n"), _BEGINNING.startswith(line[: len(_BEGINNING)])
        if not line.strip() or (ours and not whole):
            continue
        if not ours:
            raise RunError(
                f"{path} holds no results of skipwise (schema {SCHEMA}); give another --out; nothing was changed"
            )
        _parse(path, number, line.decode(errors="replace"))


def _unusable(path: Path, error: OSError) -> Exception:
    """The message for results that cannot be written; of a full disk the command line says that what was written is kept."""
    if out_of_room(error):
        return error
    return RunError(f"results cannot be written to {path}: {error}; give another --out")


def _parse(path: Path, number: int, line: str) -> Record:
    """The record of a line."""
    try:
        raw: dict[str, Any] = json.loads(line)
        if not isinstance(raw, dict):
            raise ValueError("it has no fields")
        unchanged = raw.pop("check", None) in (None, _check(raw))
        if (schema := raw.pop("schema")) != SCHEMA:
            raise RunError(
                f"{path}, line {number}: schema {schema!r}, and this skipwise reads schema {SCHEMA}; read it with the "
                "version that run.json names, or give another --out"
            )
        record = _validated(raw)
        if not unchanged:
            raise ValueError("its content is not what was written: the check differs")
        return record
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else reason(error)
        raise RunError(
            f"{path}, line {number}: not a result record ({why}); restore the file, or delete that line: the command "
            "that wrote it measures it again, unless it is a step of training"
        ) from error


def _validated(raw: dict[str, Any]) -> Record:
    """Build a record from JSON, without fields that it does not know.

    Raises:
        ValueError: a field is of another type or range, or the stored key is another record's.
    """
    kind, key = raw.pop("kind"), raw.get("key")
    if kind not in _ADAPTERS:
        raise ValueError(f"its kind {kind!r} is unknown")
    record = _ADAPTERS[kind].validate_python(raw)
    if problem := getattr(record, "problem", str)():
        raise ValueError(problem)
    if key is not None and isinstance(record, Measured) and key != record.key:
        raise ValueError(f"its key {key!r} does not belong to what it says it measured")
    return record
