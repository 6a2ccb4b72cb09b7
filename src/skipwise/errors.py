"""The exceptions that a user can see; all are a ``SkipwiseError``.

Each message says the value, the rule that it breaks and what to do. The command line prints it without a traceback.
A bug in Skipwise itself is an ``AssertionError``, with a traceback.
"""

import difflib
import errno
import os
import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from numbers import Integral
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_core import ValidationError

_REASON = 300  # characters of another library's message that one of ours repeats
UNSAFE = ("trust_remote_code", "weights_only")  # advised by other libraries, never by us
_SILENCED = ("the above", "see above", "For details")  # what transformers prints before an error is not shown


class SkipwiseError(Exception):
    """A mistake that the user can correct; the message says how."""


class RecipeError(SkipwiseError, ValueError):
    """A setting is unknown, of the wrong type, or contradicts another. A ValueError, which pydantic reports with the key."""


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
    """Training cannot continue; what was written before is intact."""


class PeerError(TrainingError):
    """An error of one process that the first process may not have met; the process that met it prints it."""


class NonFiniteLossError(TrainingError):
    """The loss or a gradient is NaN or infinite; raised before the weights are updated (under DeepSpeed: of the loss alone)."""


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


def at_least(what: str, value: Any, least: int) -> None:
    """Require a whole number of at least ``least``.

    Raises:
        RecipeError: ``value`` is none.
    """
    if not isinstance(value, Integral) or value < least:
        raise RecipeError(f"{what} {value!r} must be at least {least} and a whole number; correct it")


def out_of_room(error: Exception) -> int | None:
    """The code of the system in an error of torch.save or safetensors, which have types of their own: a full disk, a quota or
    a limit of a file's size; None for another error."""
    codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return next((code for code in codes if os.strerror(code) in str(error)), None)


def out_of_memory(error: BaseException) -> bool:
    """Whether memory was too little. torch has a type for that of a GPU, known here by its name, and for a CPU's only words."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    words = ("out of memory", "allocate memory", "not enough memory", "bad_alloc", "can't start new thread")
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return known or (isinstance(error, RuntimeError) and any(some in str(error).lower() for some in words))


def pip_install(*extras: str) -> str:
    """Return the pip command that installs the packages of ``extras``.

    It names the packages, read from the metadata of the installed package, because Skipwise is on no package index.
    """
    from packaging.requirements import Requirement

    try:
        needs = [Requirement(need) for need in requires("skipwise") or ()]
    except PackageNotFoundError:  # its source is on the path, and no more
        return f"pip install -e '.[{','.join(extras)}]'"
    wanted = [
        f"'{need.name}{need.specifier}'"
        for extra in extras
        for need in needs
        if need.marker and need.marker.evaluate({"extra": extra}) and not need.marker.evaluate({"extra": ""})
    ]
    return f"pip install {' '.join(dict.fromkeys(wanted))}"


def first_problem(error: "ValidationError") -> tuple[str, Any, str]:
    """Return key, value and rule of the first field that pydantic refused."""
    first = error.errors()[0]
    return ".".join(map(str, first["loc"])), first["input"], first["msg"].removeprefix("Value error, ")


def reason(error: BaseException) -> str:
    """Return what another library says of an error, in a part of a sentence.

    Its first line is often a heading that ends in a colon, so lines are joined up to one that says something. Left out is
    advice to run a checkpoint's code, and what refers to lines that were not shown. Of fields that pydantic refused the first
    is named, with its rule.
    """
    from pydantic_core import ValidationError  # here, for the algorithm needs only numpy

    if isinstance(error, ValidationError):
        key, _, rule = first_problem(error)
        return ": ".join(filter(None, [key, rule]))
    said = ""
    for line in filter(None, map(str.strip, str(error).splitlines())):
        said = f"{said} {line}".strip()
        if not said.endswith(":"):
            break
    said = re.sub(r"<class '([\w.]+)'>", r"\1", said)
    kept = [
        part for part in re.split(r"(?<=[.!?])\s+", said) if not any(word in part for word in (*UNSAFE, *_SILENCED))
    ]
    said = " ".join(kept).rstrip(".: ")
    return (said if len(said) <= _REASON else f"{said[:_REASON]} ...") or type(error).__name__
