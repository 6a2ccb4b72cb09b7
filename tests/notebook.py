"""The notebook, executed. ``python -m tests.notebook`` writes its outputs anew."""

import os
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "examples" / "skipwise.ipynb"


def executed(folder: Path, small: dict[str, str] | None = None) -> Any:
    """Run all cells in their order, in ``folder``; a cell that fails raises ``CellExecutionError``.

    ``small`` replaces texts of the cells; each must be there.
    """
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for shown, used in (small or {}).items():
        assert any(shown in cell.source for cell in notebook.cells)
        for cell in notebook.cells:
            cell.source = cell.source.replace(shown, used)
    options = {"timeout": 300, "record_timing": False, "coalesce_streams": True}
    inline = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # pictures go into the notebook
    return NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, **options).execute(env=inline)


if __name__ == "__main__":
    notebook = executed(NOTEBOOK.parent)
    notebook.metadata["language_info"] = {"name": "python"}  # without the version of this Python
    nbformat.write(notebook, NOTEBOOK)
