"""The notebook runs from top to bottom, and the outputs that are stored with it are those of a run."""

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

from tests.notebook import NOTEBOOK, executed  # noqa: E402


def kinds(notebook: Any) -> list[list[list[str]]]:
    """What each code cell put out: text that was printed, or the formats of what it showed."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[sorted(output.get("data", [output.get("name")])) for output in cell.outputs] for cell in cells]


SMALL = {
    "STEPS = 40": "STEPS = 2",
    "trials=10": "trials=1",
    'HELD_OUT = ("calendar.py", "trace.py", "traceback.py")': 'HELD_OUT = ("calendar.py",)',
    "[:4096]": "[:2048]",
    'library.glob("*.py")': 'library.glob("[a-c]*.py")',
    "else 2000": "else 100",
}


def test_it_runs_and_puts_out_what_is_stored(tmp_path: Path) -> None:
    assert kinds(executed(tmp_path, SMALL)) == kinds(nbformat.read(NOTEBOOK, as_version=4))
