"""Names of documents, and paths in messages, as a terminal and a page may show them."""

import re
from typing import Any

# Control characters, which command a terminal (C0, DEL, C1); separators of lines; marks that reorder text; and the
# bytes of a file name that are not UTF-8, which Python keeps as lone surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: Any, keep: str = "") -> str:
    r"""Return a text or path with each character that must not reach a terminal as an escape: ``\x1b``, ``\u202e``.

    Those in ``keep``, as line ends, stay as they are.
    """
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else _escape(found), str(text))


def document_name(name: str) -> str:
    """Return the name under which a document of the file or folder ``name`` is known: ``printable``.

    A backslash of the name itself is doubled, so that two names that differ stay different.
    """
    return printable(name.replace("\\", "\\\\"))


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte, which is no character: \x9b is the byte, \u009b the character
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"
