"""The short form of the fault bench: kills, full disks, damaged files, two commands at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and watches processes by pidfd")
def test_every_case_ends_well() -> None:
    """A process of its own forks, away from pytest's threads."""
    bench = [sys.executable, "-m", "tests.faults.bench", "--short"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    done = subprocess.run(bench, cwd=root, env=env, capture_output=True, text=True, timeout=290, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
