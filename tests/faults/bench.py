"""Attack Skipwise's promises about files and processes, and print every case that ends badly.

python -m tests.faults.bench           # the long form
python -m tests.faults.bench --short   # what make test runs
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.faults import damage, disk, kills
from tests.faults.harness import World


def main() -> None:
    short = "--short" in sys.argv
    # In memory where there is one: flushing to a disk takes most of a case.
    root = Path(tempfile.mkdtemp(prefix="faults-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    bad = done = 0
    try:
        world = World(root / "faults")
        world.prepare()
        for group in (kills, disk, damage):
            for name, case in group.cases(world, short):
                began = time.monotonic()
                problem = case()
                done, bad = done + 1, bad + bool(problem)
                print(f"{time.monotonic() - began:5.1f} s  {name}: {problem or 'well'}", flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(f"{bad} of {done} cases ended badly")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
