"""Skipwise as a user has it, by its command line: nothing here knows a module inside the package."""

import gc
import io
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from matplotlib.figure import Figure

_PACKAGE = "skipwise"  # the one point by which the commands are reached


def skipwise(*words: object) -> str:
    """Do what ``python -m skipwise WORDS`` does, in this process, which has torch loaded; return what it prints.

    Raises:
        AssertionError: it ended with an error; says which, and what was printed.
    """
    argv = [_PACKAGE, *map(str, words)]
    printed, errors = io.StringIO(), io.StringIO()
    with patch.object(sys, "argv", argv), redirect_stdout(printed), redirect_stderr(errors):
        try:
            runpy.run_module(_PACKAGE, run_name="__main__")
            code = None
        except SystemExit as end:
            code = end.code
        except Exception:
            code = traceback.format_exc()
    if code:
        raise AssertionError(f"{' '.join(argv)} ended with {code}:\n{printed.getvalue()}{errors.getvalue()}")
    return printed.getvalue()


def settings(changes: dict[str, object]) -> list[str]:
    """Recipe keys and values as words of the command line."""
    return [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]


@contextmanager
def workplace(folder: Path) -> Iterator[None]:
    """A folder to work in by relative names, a token cache of its own, wide lines, one thread, and blank figures."""
    clean = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
    clean |= {"SKIPWISE_CACHE": str(folder / "cache"), "COLUMNS": "200", "NO_COLOR": "1"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # training collects garbage when it starts: spare it all that is imported
    try:
        with patch.dict(os.environ, clean, clear=True), chdir(folder), patch.object(Figure, "savefig", _blank):
            yield
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)


def _blank(figure: Figure, file: Any, *args: object, **options: object) -> None:
    """Figures are not compared, and to draw them would take a fifth of the time."""
    blank = b"<svg ></svg>"
    file.write(blank) if hasattr(file, "write") else Path(file).write_bytes(blank)
