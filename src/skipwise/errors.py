"""The exceptions that a user can see; all are a ``SkipwiseError``.

Each message says the value, the rule that it breaks and what to do. The command line prints it without a traceback.
A bug in Skipwise itself is an ``AssertionError``, with a traceback.
"""

import difflib
from collections.abc import Iterable


class SkipwiseError(Exception):
    """A mistake that the user can correct; the message says how."""


class RecipeError(SkipwiseError):
    """A setting is unknown, of the wrong type, or contradicts another."""


class DataError(SkipwiseError):
    """A document, file or field cannot be used."""


class TooShortError(DataError):
    """A length is too short for the shortest retrieval prompt."""


class ModelError(SkipwiseError):
    """A checkpoint cannot be extended, or its chunks would not attend to each other."""


class TrainingError(SkipwiseError):
    """Training cannot continue; what was written before is intact."""


class NonFiniteLossError(TrainingError):
    """The loss or a gradient is NaN or infinite; raised before the weights are updated."""


class EvaluationError(SkipwiseError):
    """A model cannot be measured; what was measured before is kept."""


class EngineError(SkipwiseError):
    """An inference engine is not installed, cannot read a checkpoint, or reads it otherwise."""


class RunError(SkipwiseError):
    """The run folder is in use, incomplete or belongs to another run."""


class CutOffWarning(UserWarning):
    """The last record of a file was cut off by a kill, and is left out."""


def counted(number: int, noun: str) -> str:
    """Return ``1 trial`` or ``2,000 trials``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return `` (did you mean x?)`` with the valid name closest to ``name``, or nothing if none is close."""
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def one_of(what: str, value: str, valid: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``valid``.

    Raises:
        RecipeError: it is not; the message suggests the closest valid name and lists all.
    """
    valid = list(valid)
    if value not in valid:
        raise RecipeError(f"{what} {value!r} is unknown{nearest(value, valid)}; choose one of {', '.join(valid)}")
    return value


def first_line(error: BaseException) -> str:
    """Return the first line of another library's message, or the error's class if there is no message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
