"""The exceptions that a user can meet.

    SkipwiseError
    ├── RecipeError      a setting is unknown, of the wrong type, or contradicts another
    ├── DataError        a document, file or field cannot be used
    │   └── TooShortError
    ├── ModelError       a checkpoint cannot be extended, or would not attend across chunks
    ├── TrainingError    training cannot go on; what was written before is intact
    │   └── NonFiniteLossError
    ├── EvaluationError  a model cannot be measured; what was measured before is kept
    └── RunError         the run folder is taken, incomplete or of another run

Each message states the value met, the rule it breaks and the way out. The command line prints it without
a traceback. A broken invariant of our own is an ``AssertionError`` and does show one.
"""

import difflib
from collections.abc import Iterable


class SkipwiseError(Exception):
    """A mistake that a user can mend; its message says how."""


class RecipeError(SkipwiseError):
    """A setting is unknown, of the wrong type, or contradicts another."""


class DataError(SkipwiseError):
    """A document, file or field cannot be used."""


class TooShortError(DataError):
    """A length leaves no room for the shortest prompt of its kind."""


class ModelError(SkipwiseError):
    """A checkpoint cannot be extended, or its chunks would not attend to each other."""


class TrainingError(SkipwiseError):
    """Training cannot go on; what was written before is intact."""


class NonFiniteLossError(TrainingError):
    """The loss or a gradient is NaN or infinite; raised before the weights are updated."""


class EvaluationError(SkipwiseError):
    """A model cannot be measured; what was measured before is kept."""


class RunError(SkipwiseError):
    """The run folder is taken, incomplete or belongs to another run."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """`` (did you mean x?)`` for the valid name closest to ``name``, or nothing."""
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def one_of(what: str, value: str, valid: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``valid``.

    Raises:
        RecipeError: it is not; the message names the closest valid name and lists all.
    """
    valid = list(valid)
    if value not in valid:
        raise RecipeError(
            f"{what} {value!r} is unknown{nearest(value, valid)}; choose one of {', '.join(valid)}"
        )
    return value


def first_line(error: BaseException) -> str:
    """Return the first line of another library's message, or the error's class where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
