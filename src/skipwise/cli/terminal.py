"""What a command does with its process: the environment before torch starts, the console, the messages at the end."""

import ctypes
import errno
import io
import logging
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skipwise.errors import UNSAFE, PeerError, SkipwiseError, out_of_memory, reason
from skipwise.recipes.private import without_passwords
from skipwise.results.files import is_shared

_LONGEST = 1200  # characters of a message
_SENTENCE = re.compile(r"(?<=[.!?;])\s+")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EFBIG)
_PEER_LOST = ("by peer", "NCCL")  # in messages of gloo and NCCL about a lost process
_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # typer's of Ctrl-C; the launcher's of several processes
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # <malloc.h>
_EVERY = 10.0  # seconds
_GROWTH = 2**28  # bytes


def prepare_process(*, trains: bool = False, private: bool = True) -> Any:
    """Set what must be set before torch starts, and return the console; freed memory is kept for training only.

    Files of a ``private`` command are the user's alone: tokens and records hold text. ``$SKIPWISE_SHARED`` lifts that.
    """
    if private and not is_shared():
        os.umask(0o077)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if not os.environ.get("OMP_WAIT_POLICY"):
        # A thread of OpenMP spins while it waits for the others. Next to another program one of them has no core, and all spin for
        # as long as that one waits. This is the number at which GNU's OpenMP itself stops where threads outnumber cores.
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if trains:
        from skipwise.cli.terminal import keep_freed_memory

        keep_freed_memory()
    # On import DeepSpeed logs that it found no GPU.
    logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in record.getMessage())
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    return new_console()


def new_console() -> Any:
    """Return a console that prints names and paths as they are; of several processes rank 0 prints."""
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the terminal's encoding may lack a character
    return Console(highlight=False, markup=False, emoji=False, quiet=_rank() != "0")


@contextmanager
def explained(command: str = "") -> Iterator[None]:
    """In this context a user's mistake ends in its message and exit status 1, without a traceback.

    ``command`` is the command that runs; by default the first argument names it. SIGTERM ends it as Ctrl-C does, with
    exit status 143.
    """
    terminated: list[int] = []
    try:
        with _sigterm_as_ctrl_c(terminated):
            yield
    except SkipwiseError as error:
        rank = _rank()
        if rank != "0" and not isinstance(error, PeerError):  # of several processes one prints it
            raise SystemExit(1) from None
        raise _refused(f"process {rank}: {error}" if isinstance(error, PeerError) else str(error)) from None
    except (OSError, RuntimeError, MemoryError) as error:
        if out_of_memory(error):  # where no stage explains it itself
            raise _refused(_too_little_memory(error, command or sys.argv[1])) from None
        if not isinstance(error, OSError):
            if "RANK" not in os.environ or not any(phrase in str(error) for phrase in _PEER_LOST):
                raise
            raise _refused(
                "another process of this run has ended, and printed why; the same command with --resume goes on "
                "in as many processes"
            ) from None
        where = f" ({error.filename})" if error.filename else ""
        if error.errno in _FULL:
            raise _refused(
                f"the disk cannot be written{where}: {error.strerror}; what was written is kept. Make room, and go on: "
                "extend with --resume, other commands as they are"
            ) from None
        if error.filename:
            raise _refused(
                f"{error.filename} cannot be used: {error.strerror}; correct the path, or its rights"
            ) from None
        raise
    except (SystemExit, KeyboardInterrupt) as end:
        code = 128 + terminated[0] if terminated else getattr(end, "code", None)
        if code in _STOPPED:
            ways_on = {
                "extend": "; the same command with --resume goes on, if its run folder was begun",
                "reproduce": "; the same command goes on, and what is done is not done again",
                "evaluate": "; the same command goes on, and what is measured is not measured again",
                "fit": "; the same command goes on, and what is measured is not measured again",
            }
            print(f"\nskipwise: stopped{ways_on.get(command or sys.argv[1], '')}", file=sys.stderr)
            raise SystemExit(code) from None
        raise


def _rank() -> str:
    """The number of this process; a variable that another job left is ignored in a single process."""
    return os.environ.get("RANK", "0") if os.environ.get("WORLD_SIZE", "1") != "1" else "0"


def _too_little_memory(error: BaseException, command: str) -> str:
    said = reason(error).split(" Of the allocated memory")[0].rstrip(".")
    less = {
        "extend": "let the run take less: --lora, lora.load_in_4bit=true, teacher=null, a smaller model",
        "evaluate": "take a smaller model, or shorter lengths (--lengths)",
    }.get(command, "take a smaller model")
    return (
        f"the memory is too small, or the limit of this process ({said}); what was written is kept. End other programs that hold "
        f"memory (nvidia-smi lists those on a GPU), or {less}"
    )


def _refused(message: str) -> SystemExit:
    """Print a message, and return the end of the process."""
    print(f"skipwise: {readable(without_passwords(message))}", file=sys.stderr)
    return SystemExit(1)


def readable(message: str) -> str:
    """Return a message of at most a paragraph, without the sentences in which another library advises what is unsafe."""
    if any(word in message for word in UNSAFE):
        message = " ".join(part for part in _SENTENCE.split(message) if not any(word in part for word in UNSAFE))
    if len(message) > _LONGEST:
        kept = message[:_LONGEST].rsplit(maxsplit=1)[0]
        message = f"{kept} ... (and {len(message) - len(kept):,} characters more)"
    return message


@contextmanager
def _sigterm_as_ctrl_c(terminated: list[int]) -> Iterator[None]:
    """In this context SIGTERM raises KeyboardInterrupt, so that it leaves what Ctrl-C leaves, and is noted.

    A process that a launcher started keeps the default: it may wait for others inside a library, where no handler of
    Python's runs, and the launcher would wait for it.
    """
    if "RANK" in os.environ or threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def stop(number: int, frame: Any) -> None:
        if os.getpid() != owner:  # a worker that was forked: its parent expects it to end at once
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        terminated.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def keep_freed_memory() -> None:
    """Make glibc and torch keep freed memory; call before the first tensor is made. Elsewhere a no-op."""
    if sys.platform != "linux" or "MALLOC_TRIM_THRESHOLD_" in os.environ:
        return
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    except (OSError, AttributeError):
        return
    threading.Thread(target=_give_back_growth, args=(libc,), daemon=True).start()


def _give_back_growth(libc: ctypes.CDLL) -> None:
    least = math.inf
    while True:
        time.sleep(_EVERY)  # after memory was given back, the next step takes what it needs
        held = _resident_bytes()
        least = min(least, held)
        if held >= least + _GROWTH:
            libc.malloc_trim(0)
            least = math.inf


def _resident_bytes() -> float:
    """The memory that the process holds (proc_pid_statm(5)); infinite where the system has no such file."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return math.inf
    return float(pages) * os.sysconf("SC_PAGE_SIZE")
