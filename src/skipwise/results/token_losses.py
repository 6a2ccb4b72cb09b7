"""Losses of single tokens, and LongPPL: perplexity of the tokens that need far context.

``token_losses/KEY.npz`` has the losses of the reading with that key: 8 bytes per token, kept for the shortest and the longest
window, and written before the reading's record.

Fang et al., "What is Wrong with Perplexity for Long-context Language Modeling?", ICLR 2025, equations 4 to 7. With the loss of
token i after all of the text before it, L_i, and after a short context alone, S_i, both in nats by one model, the evaluator:

    key tokens:  S_i - L_i > gain  and  L_i < most            (gain = 2 and most = 2, as published)
    LongPPL = exp(mean over the key tokens of a model's loss after all of the text)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile

import numpy as np

from skipwise.errors import RunError
from skipwise.results.files import replacing
from skipwise.results.records import ReadingRecord
from skipwise.results.statistics import Interval, mean_interval

FOLDER, ENDING = "token_losses", ".npz"
GAIN = 2.0  # nats, published as alpha
MOST = 2.0  # nats, published as -beta


@dataclass(frozen=True)
class TokenLosses:
    """The loss of each target of one reading."""

    tokens: np.ndarray  # int32 [targets]; losses of two models are compared if these are equal
    nll: np.ndarray  # float32 [targets], nats


@contextmanager
def losses_folder(results: Path | None) -> Iterator[Path]:
    """Give the folder of losses next to ``results``, or a temporary one without results."""
    if results is not None:
        yield results.parent / FOLDER
        return
    with TemporaryDirectory(prefix="skipwise-losses-") as folder:
        yield Path(folder)


def save_losses(folder: Path, key: str, document: np.ndarray, nll: np.ndarray) -> None:
    """Write the losses ``nll`` [tokens - 1] of a document [tokens], whole."""
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / f"{key}{ENDING}") as file:
        np.savez(file, tokens=np.asarray(document[1:], dtype=np.int32), nll=nll.astype(np.float32))


def read_losses(folder: Path, key: str) -> TokenLosses | None:
    """Read the losses of a reading; None if they were not kept.

    Raises:
        RunError: the file is damaged (npz has a checksum).
    """
    path = folder / f"{key}{ENDING}"
    try:
        with np.load(path, allow_pickle=False) as kept:
            return TokenLosses(kept["tokens"], kept["nll"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise RunError(
            f"{path} is damaged ({error}); restore it, or remove it: LongPPL is then computed without it"
        ) from error


Read = Callable[[ReadingRecord], TokenLosses | None]


@dataclass(frozen=True)
class KeyTokens:
    """The key tokens of one document, among its targets."""

    tokens: np.ndarray  # int32 [targets], all of them
    key: np.ndarray  # bool [targets]
    candidates: int  # targets with more text before them in the long window than in the short one


@dataclass(frozen=True)
class LongPerplexity:
    """LongPPL of one model, with its 95% interval over documents, and the perplexity of all candidates."""

    key: Interval
    every: Interval


def is_key(short: np.ndarray, full: np.ndarray, gain: float = GAIN, most: float = MOST) -> np.ndarray:
    """Return which tokens are key, bool [tokens], by their losses in nats after short and full context."""
    return (short - full > gain) & (full < most)


def key_tokens(
    short: Sequence[ReadingRecord], full: Sequence[ReadingRecord], read: Read, gain: float = GAIN, most: float = MOST
) -> dict[str, KeyTokens]:
    """Choose the key tokens of each document by one model's readings in short and in long windows.

    The targets of the first short window have equal context in both and are never key. Documents without both losses are
    left out.
    """
    before = {reading.document: reading for reading in short}
    chosen = {}
    for reading in full:
        other = before.get(reading.document)
        near, far = read(other) if other else None, read(reading)
        if other is None or near is None or far is None or not np.array_equal(near.tokens, far.tokens):
            continue
        key = is_key(near.nll, far.nll, gain, most)
        key[: other.window - 1] = False
        chosen[reading.document] = KeyTokens(far.tokens, key, len(key[other.window - 1 :]))
    return chosen


def long_perplexity(
    readings: Sequence[ReadingRecord], key: Mapping[str, KeyTokens], read: Read
) -> LongPerplexity | None:
    """Return LongPPL of a model; None without key tokens, or if the model read other tokens."""
    parts, documents = [], []
    for reading in (reading for reading in readings if reading.document in key):
        losses, chosen = read(reading), key[reading.document]
        if losses is None or not np.array_equal(losses.tokens, chosen.tokens):
            return None
        nll = losses.nll.astype(np.float64)
        candidates = nll[len(nll) - chosen.candidates :]
        parts.append((nll[chosen.key].sum(), chosen.key.sum(), candidates.sum(), len(candidates)))
        documents.append(reading.document)
    if not sum(keys for _, keys, _, _ in parts):
        return None
    totals, keys, all_totals, candidates_of = zip(*parts, strict=True)
    return LongPerplexity(
        mean_interval(totals, keys, documents).exp(), mean_interval(all_totals, candidates_of, documents).exp()
    )
