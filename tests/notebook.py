"""The notebook, executed. ``python -m tests.notebook`` writes its outputs anew."""

import os
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "examples" / "skipwise.ipynb"


def executed(folder: Path) -> Any:
    """Run all cells in their order, in ``folder``; a cell that fails raises ``CellExecutionError``."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    options = {"timeout": 300, "record_timing": False, "coalesce_streams": True}
    inline = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # pictures go into the notebook
    return NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, **options).execute(env=inline)


if __name__ == "__main__":
    notebook = executed(NOTEBOOK.parent)
    notebook.metadata["language_info"] = {"name": "python"}  # without the version of this Python
    nbformat.write(notebook, NOTEBOOK)
