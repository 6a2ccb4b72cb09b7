"""The exceptions that a user can see; all are a ``SkipwiseError``.

    SkipwiseError
      RecipeError (a ValueError too)   DataError > TooShortError   ModelError   EvaluationError   EngineError   RunError
      TrainingError > PeerError, NonFiniteLossError

A message has the value, its rule and the fix; the command line prints it without a traceback. A bug in Skipwise is an
``AssertionError``.
"""

import difflib
import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

_UNSAFE = ("trust_remote_code", "weights_only")  # other libraries advise these; we never do
_LONGEST = 300  # characters of another library's message


class SkipwiseError(Exception):
    """A mistake that the user can correct."""


class RecipeError(SkipwiseError, ValueError):
    """A setting is unknown, of the wrong type, or contradicts another; pydantic reports it with its key."""


class DataError(SkipwiseError):
    """A document, file or field cannot be used."""


class TooShortError(DataError):
    """A length is too short for the shortest retrieval prompt, which has ``shortest`` tokens with its answer."""

    def __init__(self, message: str, shortest: int = 0) -> None:
        super().__init__(message)
        self.shortest = shortest


class ModelError(SkipwiseError):
    """A checkpoint cannot be extended, or its chunks would not attend to each other."""


class TrainingError(SkipwiseError):
    """Training cannot continue; earlier checkpoints are intact."""


class PeerError(TrainingError):
    """An error of one process that rank 0 may not have met; the process that met it prints it."""


class NonFiniteLossError(TrainingError):
    """The loss or a gradient is NaN or infinite; raised before the update (under DeepSpeed: only for the loss)."""


class EvaluationError(SkipwiseError):
    """A model cannot be measured; earlier measurements are kept."""


class EngineError(SkipwiseError):
    """An inference engine is not installed, cannot read a checkpoint, or reads it wrongly."""


class RunError(SkipwiseError):
    """The run folder is in use, incomplete, damaged or belongs to another run."""


def counted(number: int, noun: str) -> str:
    """Return ``1 trial`` or ``2,000 trials``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return `` (did you mean x?)`` with the closest valid name, or nothing if none is close."""
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.65)
    return f" (did you mean {close[0]}?)" if close else ""


def one_of(what: str, value: str, valid: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``valid``, else raise a RecipeError."""
    valid = list(valid)
    if value not in valid:
        raise RecipeError(f"{what} {value!r} is unknown{nearest(value, valid)}; choose one of {', '.join(valid)}")
    return value


def at_least(what: str, value: Any, least: int) -> None:
    """Require a whole number of at least ``least``, else raise a RecipeError."""
    if not isinstance(value, Integral) or value < least:
        raise RecipeError(f"{what} {value!r} must be at least {least} and a whole number; correct it")


def out_of_room(error: Exception) -> bool:
    """Return True for a full disk, a quota or a file size limit.

    Found by message: torch.save and safetensors have types of their own. torch.save may raise an error of its stream.
    """
    words = [os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]
    words += ["unexpected pos", "iostream error"] if isinstance(error, RuntimeError) else []
    return any(word in str(error) for word in words)


def out_of_memory(error: BaseException) -> bool:
    """Return True for an out-of-memory error. CPU errors are matched by message."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    words = ("out of memory", "allocate memory", "not enough memory", "bad_alloc", "can't start new thread")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)


@contextmanager
def library_errors(kind: type[SkipwiseError], problem: str, fix: str) -> Iterator[None]:
    """Raise any error of another library in this context as ``kind``; lack of memory and disk space stay as they are."""
    try:
        yield
    except SkipwiseError:
        raise
    except Exception as error:
        if out_of_memory(error) or out_of_room(error):
            raise
        raise kind(f"{problem} ({reason(error)}). {fix}") from error


def pip_install(*extras: str) -> str:
    """Return the pip command that installs the packages of ``extras``; Skipwise itself is on no package index."""
    from importlib.metadata import requires

    needs = [need.partition(";") for need in requires("skipwise") or ()]
    wanted = [f"'{need}'" for extra in extras for need, _, marker in needs if re.search(rf"\b{extra}\b", marker)]
    return f"pip install {' '.join(dict.fromkeys(wanted))}"


def reason(error: BaseException) -> str:
    """Return another library's message as part of a sentence, without advice to run a checkpoint's code.

    Lines are joined until one does not end in a colon. Of a ``ValidationError``: the first field with its rule.
    """
    from pydantic_core import ValidationError  # imported here because the algorithm needs only numpy

    if isinstance(error, ValidationError):
        first = error.errors()[0]
        rule = first["msg"].removeprefix("Value error, ")
        return f"{'.'.join(map(str, first['loc']))}: {rule}" if first["loc"] else rule
    text = ""
    for line in filter(None, map(str.strip, str(error).splitlines())):
        text = f"{text} {line}".strip()
        if not text.endswith(":"):
            break
    sentences = re.split(r"(?<=[.!?])\s+", re.sub(r"<class '([\w.]+)'>", r"\1", text))
    text = " ".join(part for part in sentences if not any(word in part for word in _UNSAFE)).rstrip(".: ")
    return (text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ...") or type(error).__name__
