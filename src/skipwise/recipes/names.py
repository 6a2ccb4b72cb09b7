"""Names of models, files and folders, as people write them."""

import os
from pathlib import Path

from skipwise.errors import ModelError, RecipeError, nearest

PACKAGED = ("nano", "smollm2")  # models that come by name, without a folder or the hub
_MODEL = "model"  # the folder of a run folder that holds its model
_LONGEST = 255  # bytes of one part of a path, on every common file system


def recordable(name: str) -> str:
    """Return ``name``.

    Raises:
        RecipeError: it is not UTF-8.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise RecipeError(f"{name!r} is not UTF-8, so no record could name it; rename it") from None
    return name


def expanded(name: str) -> str:
    """Return ``name`` with a leading ``~`` as the home folder.

    Raises:
        RecipeError: no file system or record could hold it, or it names a home folder that is not there.
    """
    parts = recordable(name).encode().split(b"/")
    if "\x00" in name:
        raise RecipeError(f"{name!r} has a zero byte, which no path may have; leave it out")
    if (longest := max(map(len, parts))) > _LONGEST:
        raise RecipeError(
            f"path {name[:40]!r}... has a part of {longest:,} bytes; file systems hold {_LONGEST} at most: shorten it"
        )
    path = os.path.expanduser(name)
    if name.startswith("~") and path == name and not os.path.lexists(name):
        raise RecipeError(f"{name!r} begins with ~, and this machine has no such user; write the whole path")
    return path


def model_name(name: str) -> str:
    """Return ``expanded(name)`` of a model; a run folder stands for the model in it.

    A path where nothing is, is refused before torch is imported.

    Raises:
        ModelError: it can only be a path, and nothing is there.
    """
    path = Path(expanded(name))
    if not path.exists() and _is_path(name):
        beside = [str(path.parent / one) for one in os.listdir(path.parent)] if path.parent.is_dir() else []
        raise ModelError(
            f"there is no folder {name}{nearest(str(path), beside)}; give {' or '.join(PACKAGED)}, a folder here or a name on "
            "the model hub, as OWNER/NAME"
        )
    if (path / _MODEL).is_dir() and not (path / "config.json").exists():
        return str(path / _MODEL)
    return str(path) if name.startswith("~") else name


def short_name(model: str) -> str:
    """Return the last part of a model's name; for the model of a run the name of the run's folder."""
    path = Path(model).resolve() if Path(model).exists() else Path(model)
    return path.parent.name if path.name == _MODEL and path.parent.name else path.name


def _is_path(name: str) -> bool:
    """Return whether a name can only be a path: names on the hub have one slash, and no folder is called as the owner."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or ("/" in name and Path(name).parent.is_dir())
