"""Names of models, baselines and paths."""

import os
from pathlib import Path

from skipwise.errors import ModelError, nearest

PACKAGED = ("nano", "smollm2")  # models that come by name, without a folder or the hub
_MODEL = "model"  # the folder of a run folder that has its model

BASELINES = ("original", "untrained")
ARM_NAMES = {  # label in records: name in tables
    "original": "original",
    "untrained": "no training",
    "no_skip": "no skips",
    "randpos": "RandPos",
    "cream": "CREAM",
    "pose": "PoSE",
    "full_length": "full-length",
}


def arm_name(arm: str) -> str:
    """Return the name of a model in tables."""
    return ARM_NAMES.get(arm, arm)


def expanded(name: str) -> str:
    """Return ``name`` with a leading ``~`` as the home folder."""
    return os.path.expanduser(name)


def model_name(name: str) -> str:
    """Return the name of a model; a run folder becomes the model in it.

    Raises:
        ModelError: the name can only be a path, and nothing is there.
    """
    path = Path(expanded(name))
    # A name on the hub has one slash, and its owner is no folder here.
    local = name.startswith((".", "/", "~")) or name.count("/") > 1 or ("/" in name and Path(name).parent.is_dir())
    if local and not path.exists():
        siblings = [str(path.parent / other) for other in os.listdir(path.parent)] if path.parent.is_dir() else []
        raise ModelError(
            f"there is no folder {name}{nearest(str(path), siblings)}; give {' or '.join(PACKAGED)}, a folder here or a "
            "name on the model hub, as OWNER/NAME"
        )
    if (path / _MODEL).is_dir() and not (path / "config.json").exists():
        return str(path / _MODEL)
    return str(path) if name.startswith("~") else name


def short_name(model: str) -> str:
    """Return the last part of a model's name; for the model of a run, the name of the run's folder."""
    path = Path(model).resolve() if Path(model).exists() else Path(model)
    return path.parent.name if path.name == _MODEL and path.parent.name else path.name
