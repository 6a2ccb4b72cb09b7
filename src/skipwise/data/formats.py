"""One file -> its texts, by the file's ending.

A reader yields ``(suffix, text)``. The suffix is ``:`` and the line or row from 1 for a file of records, and empty
for a file that is one document.
"""

import codecs
import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from skipwise.data import conversations, tokenised
from skipwise.data.conversations import Conversation, conversation_of, half_of_pair
from skipwise.data.names import printable
from skipwise.data.tokenised import Tokenised, tokenised_of
from skipwise.errors import DataError, reason

_TEXT_ENDINGS = (".txt", ".md", ".rst", ".py", ".tex")
_NAME_THE_FIELD = "name the field that holds the text: data.text_field of a recipe, --text-field of evaluate"
LARGEST = 2**28  # bytes of one document in its file
_IN_PARQUET = 2**27  # bytes of one document in Parquet, which has three copies of it while it is decoded
_IN_MEMORY = 2**29  # bytes of its text in memory, where Python gives every character as many as the widest needs
_LIMITS = {
    LARGEST: "in its file",
    _IN_PARQUET: "in Parquet",
    _IN_MEMORY: "in memory, where every character takes as many as the widest",
}
_PART = 2**22  # bytes that are decoded at a time
_PARQUET_ROWS = 64
_ZSTD_BYTES = 2**11  # a malicious frame expands at most about 33,000 times: 67 MB

# The columns of a document that is no text; with input_ids labels may come.
_FORMS: dict[tuple[str, ...], type[str]] = {
    **dict.fromkeys(conversations.FORMS, Conversation),
    tokenised.FORM: Tokenised,
}

Reader = Callable[[Path, str], Iterator[tuple[str, str]]]


class NotUtf8Error(DataError):
    """A text is not UTF-8; a class of its own because such files in the standard library are skipped."""


def reader_of(path: Path) -> Reader | None:
    """Return the reader for the ending of ``path``, or None if there is none."""
    readers = {_TEXT_ENDINGS: _read_text, tuple(_LINES): _read_json_lines, (".parquet",): _read_parquet}
    return next((reader for endings, reader in readers.items() if path.name.lower().endswith(endings)), None)


def holds_records(path: Path) -> bool:
    """Return whether a file of this ending holds records, and is not one text."""
    return not path.name.lower().endswith(_TEXT_ENDINGS)


def _read_text(path: Path, text_field: str) -> Iterator[tuple[str, str]]:
    shown = printable(path)
    text = _file_text(path, shown)
    if "\0" in text:
        raise DataError(
            f"{shown}: character {text.index(chr(0)):,} is NUL, so this is UTF-16 or no text; convert the file, for "
            "example with `iconv -f utf-16le -t utf-8`, or remove the NULs with `tr -d '\\000'`"
        )
    yield "", text


def _file_text(path: Path, shown: str) -> str:
    try:
        with open(path, "rb") as file:
            _require_bearable(os.fstat(file.fileno()).st_size, shown)
            parts = list(_decoded(file))
    except UnicodeDecodeError:
        return _decode(path.read_bytes(), shown)  # raises, with the place in the whole file
    except OSError as error:
        raise unreadable(path, error) from error
    # The widest character of a long part, in bytes: Python adds less than a hundred for the string itself.
    width = max((sys.getsizeof(part) // len(part) for part in parts if len(part) > _PART // 4), default=1)
    _require_bearable(width * sum(map(len, parts)), shown, _IN_MEMORY)
    return "".join([parts[0].removeprefix("\ufeff"), *parts[1:]])


def _decoded(file: IO[bytes]) -> Iterator[str]:
    """Decode UTF-8 part by part, each line end as ``\\n``."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")(), translate=True)
    while data := file.read(_PART):
        yield decoder.decode(data)
    yield decoder.decode(b"", final=True)


def _read_json_lines(path: Path, text_field: str) -> Iterator[tuple[str, str]]:
    number = begin = 0
    for line in _lines(path):
        number, size = number + 1, len(line)
        where = f"{printable(path)}, line {number:,}"
        _require_bearable(size, where)
        if not line.isspace():
            record = _decode(line, where, begin)
            del line  # a long line or record is not held while its text is read and tokenised
            text = text_of(_parse(record, where), text_field, where)
            del record
            yield f":{number}", text
        begin += size


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f'{where}: not JSON ({error}); write one object per line: {{"text": "..."}}') from error


def _read_parquet(path: Path, text_field: str) -> Iterator[tuple[str, str]]:
    import pyarrow
    from pyarrow import parquet

    row, shown = 0, printable(path)
    try:
        with parquet.ParquetFile(path, buffer_size=_PART) as file:
            names = file.schema_arrow.names
            columns = require_columns(names, text_field, shown)
            for name in columns:
                if names.count(name) > 1:
                    raise DataError(f"{shown}: has {names.count(name)} columns {name!r}; rename all but one")
            for batch in file.iter_batches(batch_size=_rows_at_once(file.metadata), columns=list(columns)):
                for values in zip(*(batch.column(name) for name in columns), strict=True):
                    row += 1
                    where = f"{shown}, row {row:,}"
                    record = {name: _of_arrow(value, where) for name, value in zip(columns, values, strict=True)}
                    yield f":{row}", text_of(record, text_field, where)
    except UnicodeDecodeError as error:
        raise _not_utf8(f"{shown}, row {row:,}", error) from error
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{shown}, after row {row:,}: not Parquet, cut short or damaged ({reason(error)}); download it again"
        ) from error


def _of_arrow(value: Any, where: str) -> Any:
    """The Python value of an Arrow scalar; ``as_py`` would copy a text once more, and make an object of each token."""
    import pyarrow

    lists = pyarrow.ListScalar | pyarrow.LargeListScalar
    if isinstance(value, lists) and value.is_valid and pyarrow.types.is_integer(value.type.value_type):
        return value.values.to_numpy(zero_copy_only=False)
    if isinstance(value, pyarrow.StringScalar | pyarrow.LargeStringScalar) and value.is_valid:
        _require_bearable(value.as_buffer().size, where, _IN_PARQUET)
        return str(value.as_buffer(), "utf-8")
    return value.as_py()


def _rows_at_once(metadata: Any) -> int:
    """So many rows of a Parquet file that they take about ``_PART`` bytes, at most ``_PARQUET_ROWS``."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    widest = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    return max(1, min(_PARQUET_ROWS, _PART // max(widest, 1)))


def _decode(data: bytes, where: str, begin: int = 0) -> str:
    """Decode UTF-8; the message needs ``begin``, the place of ``data`` in its file in bytes."""
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise _not_utf8(where, error, begin) from error


def text_of(record: Any, field: str, where: str) -> str:
    """Return the text of a record, its conversation or its tokens; or raise a DataError that says what it holds instead."""
    if not isinstance(record, Mapping):
        raise DataError(
            f"{where}: holds a {type(record).__name__}, not an object with the field {field!r}; write one object per line"
        )
    form = _form_of(record, field, where)
    kind = _FORMS.get(form, str)
    if kind is Tokenised:
        return tokenised_of(record, where)
    text = conversation_of(record, form, where) if kind is Conversation else record[field]
    if not isinstance(text, str):
        raise DataError(f"{where}: field {field!r} is of type {type(text).__name__}, not text; {_NAME_THE_FIELD}")
    for begin in range(0, len(text), _PART):  # not encoded as a whole: it may be long
        try:
            text[begin : begin + _PART].encode()
        except UnicodeEncodeError as error:
            at = begin + error.start
            place = half_of_pair(text) if isinstance(text, Conversation) else f"field {field!r}, character {at:,}"
            raise DataError(
                f"{where}: {place} is half of a surrogate pair, which UTF-8 cannot encode; correct or remove the record"
            ) from error
    _require_bearable(sys.getsizeof(text), where, _IN_MEMORY)
    return text


def _require_bearable(size: int, where: str, limit: int = LARGEST) -> None:
    """Raise a DataError for a document of more bytes than ``limit``, one of ``_LIMITS``."""
    if size > limit:
        raise DataError(
            f"{where}: takes {size:,} bytes or more {_LIMITS[limit]}; one document may take {limit:,} there. "
            "Split it into several files or records"
        )


def _form_of(record: Mapping[str, Any], field: str, where: str) -> tuple[str, ...]:
    """The fields that hold the document of a record; a field that is null is absent, as in a table of several forms."""
    if given := _forms([name for name, value in record.items() if value is not None], field):
        return given[0]
    empty = next(name for name in require_columns(list(record), field, where) if record[name] is None)
    way_out = f"not text; {_NAME_THE_FIELD}" if empty == field else "and no other holds a document; remove the record"
    raise DataError(f"{where}: field {empty!r} is empty (null), {way_out}")


def require_columns(fields: Sequence[str], field: str, where: str) -> tuple[str, ...]:
    """Return the columns of a table that may hold documents: ``field`` and those of conversations, first what a record is
    if it has several, and their tools; or token ids and perhaps labels.

    Others than ``field`` are looked for if it is the default, ``text``, or names one of them.

    Raises:
        DataError: there are neither; it names the existing ``fields``.
    """
    forms = _forms(fields, field)
    if not forms:
        there = ", ".join(repr(name) for name in fields) or "none"
        known = ", ".join(" and ".join(form) for form in _FORMS)
        raise DataError(f"{where}: no field {field!r} among {there}, nor one of {known}; {_NAME_THE_FIELD}")
    if forms[0] == tokenised.FORM:
        return (*tokenised.FORM, tokenised.LABELS) if tokenised.LABELS in fields else tokenised.FORM
    columns = [name for form in forms if form != tokenised.FORM for name in form]
    chats = any(form in conversations.FORMS for form in forms)
    return (*columns, conversations.TOOLS) if chats and conversations.TOOLS in fields else tuple(columns)


def _forms(fields: Sequence[str], field: str) -> list[tuple[str, ...]]:
    """The forms of a document that ``fields`` are enough for, first the one that is preferred."""
    known = dict.fromkeys([(field,), *(_FORMS if field == "text" else ())])
    return [form for form in known if set(form) <= set(fields)]


def kind_of(columns: tuple[str, ...]) -> type[str]:
    """Return the class of the documents that are preferred of ``require_columns``: str, Conversation or Tokenised."""
    return next((kind for form, kind in _FORMS.items() if columns[: len(form)] == form), str)


def _not_utf8(where: str, error: UnicodeDecodeError, begin: int = 0) -> DataError:
    bad = error.object[error.start]
    marked = begin == error.start == 0 and error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return NotUtf8Error(
        f"{where}: byte {begin + error.start:,} (0x{bad:02x}) is not UTF-8; convert the file, "
        f"for example with `iconv -f {'utf-16' if marked else 'latin1'} -t utf-8`"
    )


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error for a path that the operating system cannot read."""
    return DataError(
        f"{printable(path)}: cannot be read ({error.strerror or error}); make it readable, or move it elsewhere"
    )


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the decompressed lines of ``path`` with their line ends, a longer one than ``LARGEST`` only so far."""
    unpacked = next(opener for ending, opener in _LINES.items() if path.name.lower().endswith(ending))
    try:
        with unpacked(path) as file:
            yield from iter(lambda: file.readline(LARGEST + 1), b"")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{printable(path)}: the compressed file is cut short or damaged ({error}); download it again"
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


class _Unpacked(io.RawIOBase):
    """Chunks of bytes as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            if (chunk := next(self._chunks, None)) is None:
                return 0
            self._rest = memoryview(chunk)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


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


_LINES: dict[str, Callable[[Path], Any]] = {
    ".jsonl": partial(open, mode="rb"),
    ".jsonl.gz": partial(gzip.open, mode="rb"),
    ".jsonl.zst": lambda path: io.BufferedReader(_Unpacked(_zstd_chunks(path)), _PART),
}


ENDINGS = (*_TEXT_ENDINGS, *_LINES, ".parquet")
