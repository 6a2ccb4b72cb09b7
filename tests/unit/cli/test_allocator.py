import subprocess
import sys
from pathlib import Path

import pytest

from skipwise.cli import terminal

_BROKEN_UP = """
import time
from pathlib import Path
import numpy as np
from skipwise.cli import terminal

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

terminal._EVERY = float("{every}")
if {unsaid}:
    terminal._resident_bytes = lambda: float("inf")
began = resident()
terminal.keep_freed_memory()
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
deadline = time.monotonic() + {patience}
while resident() - began > 1.5 * held and time.monotonic() < deadline:
    pass
print(round(held), round(freed), round(resident() - began))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
@pytest.mark.parametrize(("every", "patience"), [(0.01, 30), (1000, 0.1)])
def test_freed_memory_is_kept_and_given_back_once_the_process_grows(every: float, patience: float) -> None:
    code = _BROKEN_UP.format(every=every, patience=patience, unsaid=False)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    held, freed, grown = map(int, done.stdout.split())
    assert held > 300
    assert freed > 300
    assert grown > 650 if every == 1000 else grown < 500


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_freed_memory_is_given_back_at_times_where_the_system_does_not_say_how_much_is_held() -> None:
    code = _BROKEN_UP.format(every=0.01, patience=30, unsaid=True)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) < 500
    assert not done.stderr


def test_what_is_held_is_without_bound_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "Path", lambda name: Path("/nowhere"))
    assert terminal._resident_bytes() == float("inf")
