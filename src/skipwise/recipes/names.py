"""Names of models, baselines and paths; settings that are secrets, which no file or message keeps."""

import os
import re
from pathlib import Path
from typing import Any

from skipwise.errors import ModelError, nearest

PACKAGED = ("nano", "smollm2")  # models that come by name, without a folder or the hub
_MODEL = "model"  # the folder of a run folder that has its model
_ENDING = r"(?i:token|(?<!pass)key|secret|password)"  # a passkey is no secret
_NAMED = re.compile(rf"({_ENDING}['\"]?\s*[=:]\s*)\S.*", re.DOTALL)
_OF_THE_HUB = re.compile(r"\bhf_((oauth|jwt)_[\w.-]{8,}|[A-Za-z0-9]{30,})")  # not a name such as hf_wikitext
_IN_ADDRESS = re.compile(r"(://(?:[^/\s:@]*:)?)[^/\s]+@")  # a password, or a token in place of a user name

BASELINES = ("original", "untrained")
DISPLAY_NAMES = {  # label in records: name in tables
    "original": "original",
    "untrained": "no training",
    "no_skip": "no skips",
    "randpos": "RandPos",
    "cream": "CREAM",
    "pose": "PoSE",
    "full_length": "full-length",
}


def display_name(label: str) -> str:
    """Return the name of a model in tables."""
    return DISPLAY_NAMES.get(label, label)


def expanded(name: str) -> str:
    """Return ``name`` with a leading ``~`` as the home folder."""
    return os.path.expanduser(name)


def model_name(name: str) -> str:
    """Return the name of a model; a run folder becomes the model in it, and a path must exist."""
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


def public_name(source: str) -> str:
    """Return a model or text without the folders of this machine above it."""
    return short_name(expanded(source)) if Path(expanded(source)).exists() else source


def short_name(model: str) -> str:
    """Return the last part of a model's name; for the model of a run, the name of the run's folder."""
    path = Path(model).resolve() if Path(model).exists() else Path(model)
    return path.parent.name if path.name == _MODEL and path.parent.name else path.name


def is_secret(name: str) -> bool:
    """Return whether a setting of this name is a secret, e.g. ``hub_token`` or ``api_key``."""
    return re.search(rf"{_ENDING}\s*$", name) is not None


def refusal(name: str) -> str:
    """Return the message for a secret setting, without its value."""
    return (
        f"{name} holds a secret, and every setting is written into the run folder; leave it out, and give a token of the "
        "hub by the environment variable HF_TOKEN"
    )


def refuse_secrets(values: Any, where: str = "") -> None:
    """Refuse secret settings at any depth by a ValueError."""
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        if isinstance(key, str) and is_secret(key) and value is not None:
            raise ValueError(refusal(f"{where}{key}"))
        refuse_secrets(value, f"{where}{key}.")


def masked(word: str) -> str:
    """Return a word of a command line without its secrets."""
    return without_passwords(_OF_THE_HUB.sub("***", _NAMED.sub(r"\1***", word)))


def without_passwords(text: str) -> str:
    """Return a text without the passwords in its addresses, ``https://name:password@host``."""
    return _IN_ADDRESS.sub(r"\1***@", text)
