"""The folder of one run or evaluation: its paths, its lock, and ``run.json``.

recipe.yaml   resolved, every default written out
run.json      versions, seed, machine, command, data fingerprint, probe
checkpoints/  of the training, each with its marker of completeness
model/        the extended checkpoint
results.jsonl figures/ report.html
"""

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from skipwise.errors import RunError

_PACKAGES = ("skipwise", "torch", "transformers", "accelerate", "tokenizers", "datasets", "numpy")


class RunFolder:
    """The paths of a run, and its ``run.json``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.facts = path / "run.json"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.results = path / "results.jsonl"
        self.figures = path / "figures"
        self.report = path / "report.html"
        self._lock = FileLock(path / ".lock")

    def begin(self, **facts: Any) -> None:
        """Lock the folder for this process; in a new one record versions, machine, command and ``facts``."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
            if not self.facts.exists():
                self.record(**_provenance(), **facts)
        except Timeout:
            raise RunError(f"another process is running {self.path}; wait for it, or give another --out") from None
        except (OSError, UnicodeError) as error:
            raise RunError(f"run folder {str(self.path)!r} cannot be written: {error}; give another --out") from None

    def require_same(self, **fingerprints: str) -> None:
        """Require the text of a resumed run to be what it began with, lest one table hold numbers of two texts."""
        known = self.read().get("fingerprints", {})
        for name, value in fingerprints.items():
            if known.get(name, value) != value:
                raise RunError(
                    f"the {name} has changed since {self.path} was begun (fingerprint {value[:12]}, was "
                    f"{known[name][:12]}): bring it back, or begin a run with another --out"
                )

    def record(self, **facts: Any) -> None:
        """Add facts to ``run.json``; written whole and renamed, so a kill never leaves half of it."""
        temporary = self.facts.with_suffix(".partial")
        temporary.write_text(json.dumps(self.read() | facts, indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, self.facts)

    def read(self) -> dict[str, Any]:
        """The facts recorded so far."""
        try:
            facts = json.loads(self.facts.read_text(encoding="utf-8")) if self.facts.exists() else {}
            if not isinstance(facts, dict):
                raise ValueError(f"it holds a {type(facts).__name__}, not facts by name")
            return facts
        except (ValueError, RecursionError) as error:
            raise RunError(f"{self.facts} is damaged ({error}); delete it to go on without what it recorded") from None


def _provenance() -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "command": " ".join([_program(), *sys.argv[1:]]),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "machine": _machine(),
    }


def _program() -> str:
    """The program that runs, as it was called: ``skipwise``, or ``python -m reproduction``."""
    path = Path(sys.argv[0])
    return f"python -m {path.parent.name}" if path.name == "__main__.py" else path.name


def _machine() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
    }
    torch = sys.modules.get("torch")  # whatever computes has imported it
    if torch and torch.cuda.is_available():
        facts["gpu"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return facts


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
