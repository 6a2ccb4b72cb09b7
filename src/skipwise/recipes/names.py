"""Names of models, files and folders, as people write them."""

import os

from skipwise.errors import RecipeError

_LONGEST = 255  # bytes of one part of a path, on every common file system


def expanded(name: str) -> str:
    """Return ``name`` with a leading ``~`` as the home folder.

    Raises:
        RecipeError: no file system or record could hold it, or it names a home folder that is not there.
    """
    try:
        parts = name.encode().split(b"/")
    except UnicodeEncodeError:
        raise RecipeError(f"{name!r} is not UTF-8, so no record could name it; rename the file or folder") from None
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
