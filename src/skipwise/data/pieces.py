"""Texts -> their token ids; a long text in pieces, with exactly the ids of the whole text.

The tokenizers library needs about 180 bytes of memory for each character of a text while it encodes it, so a text of
25 MB would take 4.4 GB. A long text is therefore cut, and three things are required of every cut:

1. The model makes no token across it. Either the tokenizer's own pre-tokenizer splits there; what it splits, every
   model encodes by itself. Or the model is a BPE, and no entry of its vocabulary holds the two characters on either
   side of the cut next to each other; a merge across the cut would make such an entry. A vocabulary like Llama 2's,
   without a pre-tokenizer, is cut before spaces in this way. Unigram is not: equal scores would be rounded differently.
2. What follows does not depend on what went before. The piece on the right repeats the character before the cut, so
   that it begins in the middle of a text too: no prefix is put in front of its first word. The ids of that character
   are found at its beginning and dropped.
3. What went before does not depend on what follows. The piece on the left goes on for 512 characters after the cut.
   Their ids must be the same as those of the piece on the right, and are dropped.

With 1 to 3 the ids are exact for every tokenizer whose normaliser and pre-tokenizer read from left to right, forget
what lies before a place where they split, and look at most 512 characters ahead. The expressions of known language
models do: they look one character beyond a run of spaces. What depends on text further back, such as groups of a fixed
length counted from the start, is noticed, because 2 and 3 are checked on every whole piece; such a long text is
refused. An expression that looks further ahead, for a closing bracket anywhere in the text, would not be noticed.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby, islice
from typing import Any

from skipwise.data.corpus import Document
from skipwise.errors import DataError

PIECE = 2**18  # characters; 50 MB of memory in each thread that encodes one
UNCUT = 2**22  # characters of the longest text or piece that is encoded at once; 800 MB of memory
AROUND = 512  # characters on each side of a cut by which it is judged
_TRIED = 16  # places of each kind and size of piece
_BLOCK = 2**14  # characters that are searched for places at a time

# Places where tokenizers often split; the cut is at the end of the match.
_SPACES = re.compile(r"\S(?= \S)|\S\n(?=\S)")
_PUNCTUATION = re.compile(r"\w(?=[^\w\s])|[^\w\s](?=\w)")

Ids = Sequence[int]
Encode = Callable[[list[Document]], Iterator[tuple[Document, Iterable[Ids]]]]


def encoder(tokenizer: Any) -> Encode:
    """Return a function from documents to each one's token ids, piece by piece, special tokens included.

    The ids are those of ``tokenizer(text)``. Memory is bounded if the documents given at once are: 100 MB for four
    million characters of short ones, and a few pieces of a long one.

    Raises:
        DataError: by the function, where a document of more than ``UNCUT`` characters cannot be cut.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda documents: _slow(tokenizer, documents)
    # The Rust side without truncation and padding: the same ids as ``tokenizer(text)`` in two thirds of the time, with
    # half the memory and without a warning about long texts.
    copy = type(backend).from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = splits_special(tokenizer)
    return _Encoder(copy).encode


def splits_special(tokenizer: Any) -> bool:
    """Return whether ``<s>`` in a text is read as three characters instead of the special token."""
    return bool(getattr(tokenizer, "split_special_tokens", False))


def _slow(tokenizer: Any, documents: list[Document]) -> Iterator[tuple[Document, Iterable[Ids]]]:
    for document in documents:
        if len(document.text) > UNCUT:
            raise _refused(document, "this tokenizer has no fast (Rust) form, so its texts cannot be cut")
    rows = tokenizer([document.text for document in documents], truncation=False, verbose=False)["input_ids"]
    yield from ((document, [row]) for document, row in zip(documents, rows, strict=True))


@dataclass(frozen=True)
class _Cut:
    """A place in a text, and the ids on both sides of it that two pieces share."""

    place: int  # the cut is before this character
    lead: Ids  # of the character before the cut, which the right piece repeats
    tail: Ids  # of the characters after the cut, with which the left piece ends


@dataclass(frozen=True)
class _Piece:
    """A part of a document, and the ids at its ends that belong to its neighbours."""

    document: Document
    text: str
    lead: Ids
    tail: Ids

    def own(self, ids: Ids) -> Ids:
        """Of the ids of this text, those that no neighbour has; the neighbours' must be where they are expected."""
        end = len(ids) - len(self.tail)
        if ids[: len(self.lead)] != self.lead or ids[end:] != self.tail:
            raise _refused(self.document, "this tokenizer splits by what stands far away, so it cannot be cut")
        return ids[len(self.lead) : end]


class _Encoder:
    """Encodes by a ``tokenizers.Tokenizer``."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def encode(self, documents: list[Document]) -> Iterator[tuple[Document, Iterable[Ids]]]:
        """Yield each document with its ids, piece by piece; pieces of several documents are encoded together."""
        whole = PIECE if self._template else UNCUT
        short = [document.text for document in documents if len(document.text) <= whole]
        long = (piece for document in documents if len(document.text) > whole for piece in self._pieces(document))
        rows = (encoding.ids for encoding in self.backend.encode_batch_fast(short))
        parts = groupby(self._encode_pieces(long), key=lambda part: id(part[0]))
        for document in documents:
            if len(document.text) <= whole:
                yield document, [next(rows)]
            else:
                before, after = self._template or ([], [])
                yield document, chain([before], (ids for _, ids in next(parts)[1]), [after])

    def _encode_pieces(self, pieces: Iterable[_Piece]) -> Iterator[tuple[Document, Ids]]:
        for batch in _batches(pieces):
            texts = [piece.text for piece in batch]
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
            for piece, encoding in zip(batch, encodings, strict=True):
                yield piece.document, piece.own(encoding.ids)

    @cached_property
    def _template(self) -> tuple[Ids, Ids] | None:
        """The special tokens before and after a text; None if the tokenizer does something else with a text."""
        encoding, plain = self.backend.encode("a"), self._ids("a")
        begin = [*encoding.special_tokens_mask, 0].index(0)
        end = begin + len(plain)
        known = encoding.ids[begin:end] == plain and all(encoding.special_tokens_mask[end:])
        return (encoding.ids[:begin], encoding.ids[end:]) if known else None

    def _pieces(self, document: Document) -> Iterator[_Piece]:
        if self._template is None:
            raise _refused(document, "this tokenizer does not put it between special tokens, so it cannot be cut")
        text, begin = document.text, 0
        lead: Ids = []
        while cut := self._next_cut(document, begin):
            yield _Piece(document, text[max(begin - 1, 0) : cut.place + AROUND], lead, cut.tail)
            begin, lead = cut.place, cut.lead
        yield _Piece(document, text[max(begin - 1, 0) :], lead, [])

    def _next_cut(self, document: Document, begin: int) -> _Cut | None:
        """The next cut after ``begin``, near a piece's length if there is one; None if the rest is one piece."""
        text, size = document.text, PIECE
        if len(text) - begin <= PIECE:
            return None
        while size <= UNCUT:
            for place in _places(text, begin + size // 2, min(begin + size, len(text))):
                if cut := self._cut(text, place):
                    return cut
            size *= 2
        if len(text) - begin <= UNCUT:
            return None
        raise _refused(
            document,
            f"from character {begin:,} on, this tokenizer cannot be cut at any space, line end or punctuation mark "
            "with the same tokens",
        )

    def _cut(self, text: str, place: int) -> _Cut | None:
        """Judge a cut by the characters around it; None if it might change a token."""
        lead, right = self._ids(text[place - 1]), self._ids(text[place - 1 : place + AROUND])
        tail = right[len(lead) :]
        near = self.backend.encode(text[max(place - AROUND, 0) : place + AROUND], add_special_tokens=False)
        split = len(near.ids) - len(tail)
        exact = tail and split > 0 and right[: len(lead)] == lead and near.ids[split:] == tail
        return _Cut(place, lead, tail) if exact and self._no_token_across(near, split) else None

    def _no_token_across(self, encoding: Any, split: int) -> bool:
        """Whether the model can make no token across the place between the tokens ``split - 1`` and ``split``."""
        if encoding.word_ids[split - 1] != encoding.word_ids[split]:
            return True
        left, right = encoding.tokens[split - 1], encoding.tokens[split]
        return type(self.backend.model).__name__ == "BPE" and left[-1:] + right[:1] not in self._neighbours

    @cached_property
    def _neighbours(self) -> frozenset[str]:
        """All pairs of characters that stand next to each other in an entry of the vocabulary."""
        entries = self.backend.get_vocab(with_added_tokens=False)
        return frozenset(entry[i : i + 2] for entry in entries for i in range(len(entry) - 1))

    def _ids(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids


def _batches(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Yield pieces in batches of at most ``UNCUT`` characters, or of one piece."""
    batch: list[_Piece] = []
    for piece in pieces:
        if batch and sum(len(one.text) for one in [*batch, piece]) > UNCUT:
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def _places(text: str, begin: int, end: int) -> Iterator[int]:
    """The places to try from ``end`` down to ``begin``: a few between words and lines, then a few at punctuation."""
    for pattern in (_SPACES, _PUNCTUATION):
        yield from islice(_backwards(pattern, text, begin, end), _TRIED)


def _backwards(pattern: re.Pattern[str], text: str, begin: int, end: int) -> Iterator[int]:
    for stop in range(end, begin, -_BLOCK):
        found = [match.end() for match in pattern.finditer(text, max(begin, stop - _BLOCK), stop)]
        yield from reversed(found)


def _refused(document: Document, why: str) -> DataError:
    return DataError(
        f"{document.name} has {len(document.text):,} characters, and at most {UNCUT:,} are tokenised at once: {why}. "
        "Split it into smaller documents"
    )
