"""Read records that are tokenised: ``input_ids``, and ``labels`` with -100 at tokens that are not trained.

The ids go to the token store unchanged. A tokenizer's own ids, decoded and encoded again, are nearly equal; those of
another tokenizer are not. The first documents are tested for it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from skipwise.data.spans import IGNORED, Spans, runs
from skipwise.errors import DataError

FORM = ("input_ids",)
LABELS = "labels"

_PIECE, _PIECES = 64, 32  # tokens that are decoded and encoded again, and pieces of a document
_MARGIN = 8  # tokens at either end of a piece, where the cut may change the encoding
_TESTED = 64  # documents
_OWN = 0.5  # share of equal pieces in a document of this tokenizer


@dataclass(frozen=True)
class Tokens:
    """A tokenised document: ``ids`` int64 [tokens], and the spans that are not trained."""

    ids: np.ndarray
    untrained: Spans

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def identity(self) -> bytes:
        return self.ids.tobytes()


def tokens_of(record: Mapping[str, Any], where: str) -> Tokens:
    """Return the tokens of a record.

    Raises:
        DataError: a field is no list of ids, or a label is neither -100 nor the id at its place.
    """
    ids = token_ids(record["input_ids"], f"{where}: input_ids")
    if record.get(LABELS) is None:
        return Tokens(ids, [])
    labels = token_ids(record[LABELS], f"{where}: {LABELS}")
    if len(labels) != len(ids):
        raise DataError(f"{where}: {len(labels):,} labels of {len(ids):,} input_ids; give one for each")
    if len(wrong := np.flatnonzero((labels != ids) & (labels != IGNORED))):
        at = wrong[0]
        raise DataError(
            f"{where}: label {at:,} is {labels[at]}, and input_ids has {ids[at]} there; give the id at the same place, or {IGNORED}"
        )
    return Tokens(ids, runs(labels == IGNORED))


def tokens_encoder(tokenizer: Any, vocabulary: int) -> Callable[[Tokens, str], tuple[np.ndarray, Spans]]:
    """Return a function from a tokenised document and its name to ids, int64 [tokens], and spans that are not trained.

    Raises:
        DataError: by the function, for an id outside 0..``vocabulary``, or ids of another tokenizer.
    """
    tested = 0

    def encode(document: Tokens, name: str) -> tuple[np.ndarray, Spans]:
        nonlocal tested
        ids = document.ids
        if len(outside := ids[(ids < 0) | (ids >= vocabulary)]):
            raise DataError(
                f"{name}: token {outside[0]} is not in 0..{vocabulary - 1}; tokenise with the model's own tokenizer, or give text"
            )
        tested += 1
        if tested <= _TESTED and (share := _same(ids.tolist(), tokenizer)) < _OWN:
            raise DataError(
                f"{name}: {share:.0%} of the tokens are the same when decoded and encoded again, so another tokenizer made them; "
                "use the model's own, or give text"
            )
        return ids, document.untrained

    return encode


def _same(ids: list[int], tokenizer: Any) -> float:
    """Return the share of pieces of ``ids`` that come back when decoded and encoded."""
    last = len(ids) - _PIECE
    if last < 0:
        return 1.0
    found = []
    for begin in np.linspace(0, last, min(_PIECES, last + 1)).astype(int):
        piece = ids[begin : begin + _PIECE]
        text = tokenizer.decode(piece, clean_up_tokenization_spaces=False)
        again = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        inner = piece[_MARGIN:-_MARGIN]
        found.append(any(again[at : at + len(inner)] == inner for at in range(len(again) - len(inner) + 1)))
    return float(np.mean(found))


def token_ids(values: Any, what: str) -> np.ndarray:
    """Return a list, array or tensor of token ids as int64 [tokens]; errors begin with ``what``.

    Raises:
        DataError: it is no single row of whole numbers.
    """
    try:
        array = np.asarray(values.cpu() if hasattr(values, "cpu") else values)  # a tensor; torch is slow to import
    except (ValueError, TypeError, RuntimeError):  # rows of several lengths, or a tensor of bfloat16
        array = np.asarray(None)
    if array.ndim != 1 or not (len(array) == 0 or np.issubdtype(array.dtype, np.integer)):
        kind = "several rows" if array.ndim > 1 else f"{values!r:.40}"
        raise DataError(
            f"{what} holds {kind}, not a list of token ids; give one list of whole numbers for each document"
        )
    return array.astype(np.int64)
