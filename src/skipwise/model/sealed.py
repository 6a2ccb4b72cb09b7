"""The seal of a saved model: ``skipwise.json`` beside its weights has the size and the digest of every other file.

A model that was cut off in a copy, or edited, still loads; it would be measured, exported or trained on as if it were
the one that was saved.
"""

from pathlib import Path
from typing import Any

from skipwise.errors import ModelError
from skipwise.results.files import read_json, require_sealed, seal, write_json

FILE = "skipwise.json"
_WRITTEN_LATER = {FILE, "README.md", "perplexity.png"}  # the model card, which every report writes anew


def write_seal(folder: Path, about: dict[str, Any]) -> None:
    """Write ``about`` and the seal of all files that are in ``folder``."""
    files = (path.name for path in folder.iterdir() if path.is_file())
    names = sorted(name for name in files if name not in _WRITTEN_LATER and not name.startswith("."))
    write_json(folder / FILE, about | {"files": seal(folder, names)})


def read_seal(folder: Path) -> dict[str, Any] | None:
    """Read what ``write_seal`` wrote; None where there is none.

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
    """The error of a ``skipwise.json`` that cannot be read."""
    return ModelError(
        f"{folder / FILE} is damaged ({type(error).__name__}); it says what the model was trained on. Copy it again from "
        "the run, or delete it, and measure on text that the model was not trained on"
    )


def require_unchanged(folder: Path, way_out: str = "") -> None:
    """Require the files of a sealed model to be those that were saved; a folder without a seal is anybody's model.

    Raises:
        ModelError: the seal is damaged, or the folder is that of a run and has lost it.
        RunError: a file is lost or changed.
    """
    changed = f"a model that was changed on purpose is another one: copy {folder} elsewhere, without {FILE}"
    if about := read_seal(folder):
        require_sealed(folder, about.get("files", {}), way_out or f"copy the model again; {changed}")
    elif _is_of_a_run(folder):
        raise ModelError(f"{folder} has lost {FILE}; {way_out or f'restore it; {changed}'}")


def _is_of_a_run(folder: Path) -> bool:
    """Whether a run saved this model. One of version 0.1 sealed none: what its model was trained on would not be known."""
    try:
        return folder.name == "model" and not {"settings", "versions"}.isdisjoint(read_json(folder.parent / "run.json"))
    except (OSError, ValueError):
        return False
