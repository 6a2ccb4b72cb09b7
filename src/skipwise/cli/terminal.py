"""What a command does with its process: the environment before torch starts, the console, the messages at the end."""

import errno
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from skipwise.errors import CutOffWarning, SkipwiseError


def prepare_process(*, trains: bool = False) -> Any:
    """Set what must be set before torch starts, and return the console; freed memory is kept for training only."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if trains:
        from skipwise.cli.allocator import keep_freed_memory

        keep_freed_memory()
    logging.getLogger("DeepSpeed").addFilter(_is_of_use)
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    return new_console()


def _is_of_use(record: logging.LogRecord) -> bool:
    """Whether to show what DeepSpeed logs: a filter of ``logging``. On import it says that it found no GPU."""
    return "Setting accelerator to CPU" not in record.getMessage()


def new_console() -> Any:
    """A console that prints names and paths as they are."""
    from rich.console import Console

    quiet = os.environ.get("RANK", "0") != "0"  # of several processes one prints
    return Console(highlight=False, markup=False, emoji=False, quiet=quiet)


@contextmanager
def explained(command: str = "") -> Iterator[None]:
    """In this context a user's mistake ends in its message and exit status 1, without a traceback.

    ``command`` is the command that runs; by default the first argument names it.
    """
    try:
        with _plain_warnings():
            yield
    except SkipwiseError as error:
        if os.environ.get("RANK", "0") == "0":  # of several processes one says it
            print(f"skipwise: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(
            f"skipwise: the disk cannot be written{where}: {error.strerror}; what was written is kept. Make room, and "
            "go on: extend with --resume, other commands as they are",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
    except SystemExit as end:
        if end.code == 130:  # typer's, of Ctrl-C
            ways_on = {
                "extend": "; the same command with --resume goes on, if its run folder was begun",
                "reproduce": "; the same command goes on, and what is done is not done again",
                "evaluate": "; the same command goes on, and what is measured is not measured again",
            }
            print(f"\nskipwise: stopped{ways_on.get(command or sys.argv[1], '')}", file=sys.stderr)
        raise


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """In this context a record that was cut off is said in one sentence, once, without a line of source."""
    with warnings.catch_warnings():
        warnings.simplefilter("once", CutOffWarning)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if category is CutOffWarning:
                new_console().print(str(message), style="yellow", soft_wrap=True)
            else:
                others(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        yield
