"""Records that are tokenised already: ``input_ids``, and ``labels`` if not every token is to be trained.

They are documents like others: their ids go to the token store as they are. A tokenizer's own ids, decoded and encoded again,
are the same nearly everywhere, and those of another tokenizer nearly nowhere; this is tested before they are stored.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from skipwise.data.spans import IGNORED, Spans, runs
from skipwise.errors import DataError

FORM = ("input_ids",)
LABELS = "labels"

_PIECE, _PIECES = 64, 32  # tokens that are decoded and encoded again, and pieces of a document
_MARGIN = 8  # tokens at either end of a piece that may be encoded otherwise, because its text was cut there
_TESTED = 64  # documents
_OWN = 0.5  # the share of pieces that come back in a document of this tokenizer


class Tokenised(str):
    """A tokenised document where others have a text: each character stands for the token whose id is its code point.

    ``untrained`` are the spans of tokens that its labels leave out.
    """

    untrained: Spans

    @classmethod
    def of(cls, ids: np.ndarray, untrained: Spans) -> "Tokenised":
        """Return the document of ``ids``, int [tokens], each in 0..1,114,111, the largest code point."""
        made = cls(ids.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass"))
        made.untrained = untrained
        return made

    def ids(self) -> np.ndarray:
        """Return the token ids, uint32 [tokens]."""
        return np.frombuffer(self.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def tokenised_of(record: Mapping[str, Any], where: str) -> Tokenised:
    """Return the document of a record with ``input_ids``, and perhaps ``labels``.

    Raises:
        DataError: one of them is no list of ids, or a label is neither -100 nor the id at its place.
    """
    ids = token_ids(record["input_ids"], f"{where}: field 'input_ids'")
    if len(ids) and not 0 <= ids.min() <= ids.max() <= 0x10FFFF:
        raise DataError(f"{where}: input_ids holds {ids.min()} to {ids.max()}, which are no ids of tokens")
    if record.get(LABELS) is None:
        return Tokenised.of(ids, [])
    labels = token_ids(record[LABELS], f"{where}: field {LABELS!r}")
    if len(labels) != len(ids):
        raise DataError(f"{where}: {len(labels):,} labels of {len(ids):,} input_ids; give one for each")
    if len(wrong := np.flatnonzero((labels != ids) & (labels != IGNORED))):
        at = wrong[0]
        raise DataError(
            f"{where}: label {at:,} is {labels[at]}, and input_ids has {ids[at]} there; a label is the id at its own place, not "
            f"the next one, or {IGNORED} where it is not trained"
        )
    return Tokenised.of(ids, runs(labels == IGNORED))


def tokenised_encoder(tokenizer: Any, vocabulary: int) -> Callable[[Tokenised, str], tuple[np.ndarray, Spans]]:
    """Return a function from a tokenised document and its name to its ids, uint32 [tokens], and the spans that its labels
    leave out. A data set has one tokenizer, so the first documents are tested for it.

    Raises:
        DataError: by the function, where an id is not below ``vocabulary``, or the ids are another tokenizer's.
    """

    tested = 0

    def encode(document: Tokenised, name: str) -> tuple[np.ndarray, Spans]:
        nonlocal tested
        ids = document.ids()
        if ids.max(initial=0) >= vocabulary:
            raise DataError(
                f"{name}: token {ids.max()} is not below {vocabulary:,}, the number of tokens of this model's tokenizer; "
                "tokenise the text with the model's own tokenizer, or give text"
            )
        tested += 1
        if tested <= _TESTED and (share := _come_back(ids, tokenizer)) < _OWN:
            raise DataError(
                f"{name}: decoded and encoded again, {share:.0%} of its pieces of {_PIECE} tokens are the same, so another "
                "tokenizer made input_ids; tokenise the text with the model's own, or give text"
            )
        return ids, document.untrained

    return encode


def _come_back(ids: np.ndarray, tokenizer: Any) -> float:
    """The share of pieces of ``ids`` whose inner tokens are there again, in one run, when their text is encoded."""
    last = len(ids) - _PIECE
    if last < 0:
        return 1.0
    pieces = [ids[at : at + _PIECE].tolist() for at in np.linspace(0, last, min(_PIECES, last + 1)).astype(int)]
    texts = [tokenizer.decode(piece, clean_up_tokenization_spaces=False) for piece in pieces]
    again = [tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"] for text in texts]
    return float(np.mean([_holds(found, piece[_MARGIN:-_MARGIN]) for found, piece in zip(again, pieces, strict=True)]))


def _holds(ids: list[int], run: list[int]) -> bool:
    """Whether ``run`` stands somewhere in ``ids``."""
    return any(ids[at : at + len(run)] == run for at in range(len(ids) - len(run) + 1))


def token_ids(values: Any, what: str) -> np.ndarray:
    """Return a list, array or tensor of token ids as int64 [tokens]; an error calls it ``what``.

    Raises:
        DataError: it is no single row of whole numbers.
    """
    try:
        array = np.asarray(values.cpu() if hasattr(values, "cpu") else values)  # a tensor; torch is slow to import
    except (ValueError, TypeError, RuntimeError):  # lists of several lengths, or a tensor of floats that numpy has not
        array = np.asarray(None)
    if array.ndim != 1 or not (len(array) == 0 or np.issubdtype(array.dtype, np.integer)):
        kind = "several rows" if array.ndim > 1 else f"{values!r:.40}"
        raise DataError(
            f"{what} holds {kind}, not a list of token ids; give one list of whole numbers for each document"
        )
    return array.astype(np.int64)
