"""One file -> its texts, by the file's ending.

A reader yields ``(suffix, text)``. The suffix is ``:`` and the line or row from 1 for a file of records, and empty
for a file that is one document.
"""

import codecs
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from skipwise.errors import DataError, first_line

_TEXT_ENDINGS = (".txt", ".md", ".rst", ".py", ".tex")
_NAME_THE_FIELD = "name the field that holds the text: data.text_field of a recipe, --text-field of evaluate"
_PARQUET_ROWS = 64
_ZSTD_BYTES = 2**16  # a malicious frame expands at most about 10,000 times: 600 MB

Reader = Callable[[Path, str], Iterator[tuple[str, str]]]


class NotUtf8Error(DataError):
    """A text is not UTF-8; a class of its own because such files in the standard library are skipped."""


def reader_of(path: Path) -> Reader | None:
    """Return the reader for the ending of ``path``, or None if there is none."""
    readers = {_TEXT_ENDINGS: _read_text, tuple(_LINES): _read_json_lines, (".parquet",): _read_parquet}
    return next((reader for endings, reader in readers.items() if path.name.lower().endswith(endings)), None)


def _read_text(path: Path, text_field: str) -> Iterator[tuple[str, str]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    yield "", _decode(data, str(path)).replace("\r\n", "\n").replace("\r", "\n")


def _read_json_lines(path: Path, text_field: str) -> Iterator[tuple[str, str]]:
    begin = 0
    for number, line in enumerate(_lines(path), 1):
        where = f"{path}, line {number:,}"
        if line.strip():
            text = _decode(line, where, begin)
            try:
                record = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise DataError(f'{where}: not JSON ({error}); write one object per line: {{"text": "..."}}') from error
            yield f":{number}", text_of(record, text_field, where)
        begin += len(line)


def _read_parquet(path: Path, text_field: str) -> Iterator[tuple[str, str]]:
    import pyarrow
    from pyarrow import parquet

    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            require_field(file.schema_arrow.names, text_field, str(path))
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=[text_field]):
                for value in batch.column(text_field):
                    row += 1
                    yield f":{row}", text_of({text_field: value.as_py()}, text_field, f"{path}, row {row:,}")
    except UnicodeDecodeError as error:
        raise _not_utf8(f"{path}, row {row:,}", error) from error
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path}, after row {row:,}: not Parquet, cut short or damaged ({first_line(error)}); download it again"
        ) from error


def _decode(data: bytes, where: str, begin: int = 0) -> str:
    """Decode UTF-8; the message needs ``begin``, the place of ``data`` in its file in bytes."""
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise _not_utf8(where, error, begin) from error


def text_of(record: Any, field: str, where: str) -> str:
    """Return the text of a record, or raise a DataError that says what the record holds instead."""
    if not isinstance(record, Mapping):
        raise DataError(f"{where}: holds a {type(record).__name__}, not an object with the field {field!r}")
    require_field(list(record), field, where)
    text = record[field]
    if not isinstance(text, str):
        kind = "empty (null)" if text is None else f"of type {type(text).__name__}"
        raise DataError(f"{where}: field {field!r} is {kind}, not text; {_NAME_THE_FIELD}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: field {field!r}, character {error.start:,} is half of a surrogate pair, "
            "which UTF-8 cannot encode; correct or remove the record"
        ) from error
    return text


def require_field(fields: Sequence[str], field: str, where: str) -> None:
    """Raise a DataError that names the existing ``fields`` if ``field`` is not one of them."""
    if field not in fields:
        there = ", ".join(repr(name) for name in fields) or "none"
        raise DataError(f"{where}: no field {field!r} among {there}; {_NAME_THE_FIELD}")


def _not_utf8(where: str, error: UnicodeDecodeError, begin: int = 0) -> DataError:
    bad = error.object[error.start]
    marked = begin == error.start == 0 and error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return NotUtf8Error(
        f"{where}: byte {begin + error.start:,} (0x{bad:02x}) is not UTF-8; convert the file, "
        f"for example with `iconv -f {'utf-16' if marked else 'latin1'} -t utf-8`"
    )


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error for a path that the operating system cannot read."""
    return DataError(f"{path}: cannot be read ({error.strerror or error}); make it readable, or move it elsewhere")


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the decompressed lines of ``path`` with their line ends."""
    open_lines = next(opener for ending, opener in _LINES.items() if path.name.lower().endswith(ending))
    try:
        yield from open_lines(path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the compressed file is cut short or damaged ({error}); download it again") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _lines_by(opener: Callable[..., Any]) -> Callable[[Path], Iterator[bytes]]:
    def lines(path: Path) -> Iterator[bytes]:
        with opener(path, "rb") as file:
            yield from file

    return lines


def _zstd_lines(path: Path) -> Iterator[bytes]:
    tail = b""
    for chunk in _zstd_chunks(path):
        *lines, tail = (tail + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if tail:
        yield tail


def _zstd_chunks(path: Path) -> Iterator[bytes]:
    """Decompress every frame; zstandard's own reader does not notice a frame that is cut short."""
    import zstandard

    # Large corpora are often compressed with --long=31; the default refuses such windows.
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**31)
    frame = None
    try:
        with open(path, "rb") as file:
            while data := file.read(_ZSTD_BYTES):
                while data:
                    frame = frame or decompressor.decompressobj()
                    yield frame.decompress(data)
                    data, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    except zstandard.ZstdError as error:
        raise EOFError(str(error)) from error
    if frame is not None:
        raise EOFError("the last frame does not end")


_LINES: dict[str, Callable[[Path], Iterator[bytes]]] = {
    ".jsonl": _lines_by(open),
    ".jsonl.gz": _lines_by(gzip.open),
    ".jsonl.zst": _zstd_lines,
}


ENDINGS = (*_TEXT_ENDINGS, *_LINES, ".parquet")
