"""Keep freed memory in the process: on a CPU, a training step frees and takes hundreds of megabytes.

By default glibc gives each large block back to the system at once, and the next step pays for every page
anew. Held in the process, in huge pages, they cost nothing. Values set by the user win.

What is kept must be given back now and then: small objects that stay, such as the words in a tokenizer's cache, are cut out
of freed blocks, and the next step's block no longer fits there. Training on retrieval prompts grew by 8 MB a step. But the next
step then pays for its pages again, so nothing is given back before the process has grown.
"""

import ctypes
import math
import os
import sys
import threading
import time
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # <malloc.h>
_EVERY = 10.0  # seconds
_GROWTH = 2**28  # bytes


def keep_freed_memory() -> None:
    """Tell glibc and torch to keep freed memory; call before the first tensor is made. Elsewhere a no-op."""
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
    """The memory that the process holds (proc_pid_statm(5)); infinite where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return math.inf
    return float(pages) * os.sysconf("SC_PAGE_SIZE")
