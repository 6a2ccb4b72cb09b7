"""The notebook runs from top to bottom, and the outputs that are stored with it are those of a run."""

import base64
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


def test_what_is_stored_is_small_and_names_no_machine() -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    outputs = [output for cell in stored.cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = [
        base64.b64decode(output.data["image/png"]) for output in outputs if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 4
    assert sum(map(len, pictures)) < 150_000
    assert {output.name for output in outputs if output.output_type == "stream"} == {"stdout"}
    assert not [output.text for output in outputs if output.output_type == "stream" and "/" in output.text]
