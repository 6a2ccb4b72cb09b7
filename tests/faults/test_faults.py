"""The short form of the fault bench: kills, full and failing disks, damaged files, two commands, two machines."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.bench import GROUPS

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and watches processes by pidfd")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    """All results by group; a process of its own forks, away from pytest's threads."""
    out = tmp_path_factory.mktemp("faults") / "results.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.bench", "--short", "--out", str(out)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    found: dict[str, list[dict]] = {name: [] for name in GROUPS}
    for line in out.read_text().splitlines():
        found[json.loads(line)["name"]].append(json.loads(line))
    return found


@pytest.mark.parametrize("group", GROUPS)
def test_every_case_ends_well(results: dict[str, list[dict]], group: str) -> None:
    if group == "full" and not results[group]:
        pytest.skip("this process may not mount a small disk")
    assert results[group]
    assert [one for one in results[group] if one["outcome"].isupper()] == []
