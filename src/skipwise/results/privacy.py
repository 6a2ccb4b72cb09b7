"""Files that hold a user's text are the user's alone, unless ``$SKIPWISE_SHARED`` is set."""

import os
from contextlib import suppress
from pathlib import Path


def is_shared() -> bool:
    """Whether other users of the machine may read what is written."""
    return bool(os.environ.get("SKIPWISE_SHARED"))


def private_folder(path: Path) -> None:
    """Make a folder that its owner alone can enter, unless files are shared; one that exists stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o777 if is_shared() else 0o700)


def keep_private(path: Path) -> None:
    """Let nobody but its owner read a file, unless files are shared."""
    if not is_shared():
        path.chmod(0o600)


def private_mode() -> int:
    """Return the mode in which a file is made that its owner alone may read, unless files are shared."""
    return 0o666 if is_shared() else 0o600
