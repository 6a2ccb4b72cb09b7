"""The manifest of a saved model: ``skipwise.json`` has the size and SHA-256 of every other file.

A model that was cut off in a copy, or edited, still loads; without the manifest it would be measured, exported or trained
on as the saved one.
"""

from pathlib import Path
from typing import Any

from skipwise.errors import ModelError
from skipwise.results.files import read_json, require_sealed, seal, write_json

FILE = "skipwise.json"
_WRITTEN_LATER = {FILE, "README.md", "perplexity.png"}  # every report writes the model card again


def write_seal(folder: Path, about: dict[str, Any]) -> None:
    """Write ``about`` and the manifest of all files in ``folder``."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    write_json(folder / FILE, about | {"files": seal(folder, [name for name in names if name not in _WRITTEN_LATER])})


def read_seal(folder: Path) -> dict[str, Any] | None:
    """Read ``skipwise.json``; None if there is none.

    Raises:
        ModelError: the file is damaged.
    """
    if not (folder / FILE).exists():
        return None
    try:
        return read_json(folder / FILE)
    except (OSError, ValueError) as error:
        raise damaged(folder, error) from error


def damaged(folder: Path, error: Exception) -> ModelError:
    """Return the error of a ``skipwise.json`` that cannot be read."""
    return ModelError(
        f"{folder / FILE} is damaged ({type(error).__name__}); copy the model again, or delete the file: the model's "
        "training text is then unknown"
    )


def require_unchanged(folder: Path, way_out: str = "") -> None:
    """Check the files of a model against its manifest; a folder without one is not checked.

    Raises:
        ModelError: the manifest is damaged.
        RunError: a file is missing or changed.
    """
    changed = f"copy the model again; to change it on purpose, copy {folder} without {FILE}"
    require_sealed(folder, (read_seal(folder) or {}).get("files", {}), way_out or changed)
