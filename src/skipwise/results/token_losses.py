"""The losses of single tokens, beside the records of readings: ``token_losses/KEY.losses`` for the reading with that key.

A record holds sums over ranges of positions. What is asked of single tokens, as LongPPL asks, needs each of them: 8 bytes a
token, kept of the shortest and of the longest window. A file is there before its record is: a SHA-256, and the arrays as npz.
"""

import hashlib
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from skipwise.errors import RunError
from skipwise.results.files import replacing

FOLDER, ENDING = "token_losses", ".losses"
_DIGEST = 32  # bytes


@dataclass(frozen=True)
class TokenLosses:
    """What one reading made of each target of a document."""

    # int32 [targets], the targets themselves: losses of two models are compared where these are equal.
    tokens: np.ndarray
    nll: np.ndarray  # float32 [targets], in nats


@contextmanager
def beside(results: Path | None) -> Iterator[Path]:
    """The folder of the losses beside a file of records, or where no records are kept one that is gone afterwards."""
    if results is not None:
        yield results.parent / FOLDER
        return
    with TemporaryDirectory(prefix="skipwise-losses-") as folder:
        yield Path(folder)


def save_losses(folder: Path, key: str, document: np.ndarray, nll: np.ndarray) -> None:
    """Write the losses ``nll`` [tokens - 1] of a document [tokens], whole."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = io.BytesIO()
    np.savez(arrays, key=np.array(key), tokens=np.asarray(document[1:], dtype=np.int32), nll=nll.astype(np.float32))
    with replacing(folder / f"{key}{ENDING}") as file:
        file.write(hashlib.sha256(arrays.getvalue()).digest() + arrays.getvalue())


def read_losses(folder: Path, key: str) -> TokenLosses | None:
    """Read the losses of a reading; None where they were not kept.

    Raises:
        RunError: the file is not what was written for this reading.
    """
    path = folder / f"{key}{ENDING}"
    try:
        written = path.read_bytes()
        if hashlib.sha256(written[_DIGEST:]).digest() != written[:_DIGEST]:
            raise ValueError("its hash is another")
        with np.load(io.BytesIO(written[_DIGEST:]), allow_pickle=False) as kept:
            losses, whose = TokenLosses(kept["tokens"], kept["nll"]), str(kept["key"])
        if whose != key or losses.tokens.shape != losses.nll.shape or losses.nll.ndim != 1:
            raise ValueError(f"it is of the reading {whose}")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(
            f"{path} is damaged ({error}); restore it, or remove it: then LongPPL leaves out this document, if the key "
            "tokens were chosen by this model, or else this model"
        ) from error
    return losses
