import subprocess
import sys

import pytest

_BROKEN_UP = """
import time
from pathlib import Path
import numpy as np
from skipwise.cli import allocator

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

allocator._EVERY = 0.01
began = resident()
allocator.keep_freed_memory()
small = []

def broken_up(size):
    blocks = []
    for _ in range(40):
        blocks.append(np.ones(size, dtype=np.uint8))
        small.append(bytearray(100_000))  # stays, so that the blocks around it cannot become one
    return blocks

blocks = broken_up(2**23)
held = resident() - began
del blocks
freed = resident() - began
blocks = broken_up(2**23 + 2**20)  # for which none of the freed blocks has room
deadline = time.monotonic() + 30
while resident() - began > 1.5 * held and time.monotonic() < deadline:
    pass
print(round(held), round(freed), round(resident() - began))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_freed_memory_is_kept_and_given_back_once_the_process_grows() -> None:
    done = subprocess.run([sys.executable, "-c", _BROKEN_UP], capture_output=True, text=True, check=True)
    held, freed, grown = map(int, done.stdout.split())
    assert held > 300
    assert freed > 300
    assert grown < 500
