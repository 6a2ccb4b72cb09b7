"""Keep freed memory in the process: on a CPU, a training step frees and takes hundreds of megabytes.

By default glibc gives each large block back to the system at once, and the next step pays for every page
anew. Held in the process, in huge pages, they cost nothing. Values set by the user win.
"""

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # <malloc.h>


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
