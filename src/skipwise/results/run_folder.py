"""The folder of one run or evaluation: its paths, its lock, and ``run.json``.

recipe.yaml   every setting with its default; the first file of a run, written once
run.json      versions, seed, machine, command, fingerprints of text and base, probe
checkpoints/  of the training, each with its manifest
model/        the extended checkpoint
results.jsonl figures/ report.html
"""

import os
import platform
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock

from skipwise.errors import RunError
from skipwise.results.files import acquire, content_hash, read_json, write_json

TRAINING_TEXT, BASE_MODEL = "training text", "base model"  # names of the fingerprints that decide a model
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

    @property
    def is_free(self) -> bool:
        """Whether the folder is missing, or has only hidden files of a killed start."""
        return not self.path.exists() or (
            self.path.is_dir() and all(path.name.startswith(".") for path in self.path.iterdir())
        )

    def lock(self) -> None:
        """Make the folder, and lock it for this process until its end."""
        self.path.mkdir(parents=True, exist_ok=True)
        acquire(self._lock, self.path)

    def begin(self, **facts: Any) -> None:
        """Lock the folder; in a new one record versions, machine, command and ``facts``."""
        self.lock()
        if not self.facts.exists():
            self.record(**_provenance(), **facts)

    def require_same(self, fingerprints: Mapping[str, str]) -> None:
        """Require the texts and models of a resumed run to be unchanged."""
        known = self.read().get("fingerprints") or {}
        for name, value in fingerprints.items():
            if (begun := known.get(name, value)) != value:
                raise RunError(
                    f"the {name} has changed since {self.path} was begun: its fingerprint was {begun[:12]}, now it is "
                    f"{value[:12]}; restore it, or begin a run with another --out"
                )

    @property
    def identity(self) -> str:
        """16 hex digits of the settings, text and base that decide the run's model."""
        facts = self.read()
        fingerprints = facts.get("fingerprints") or {}
        return content_hash([facts.get("settings"), [fingerprints.get(name) for name in (TRAINING_TEXT, BASE_MODEL)]])

    def record(self, **facts: Any) -> None:
        """Add facts to ``run.json``."""
        write_json(self.facts, self.read() | facts)

    def read(self) -> dict[str, Any]:
        try:
            return read_json(self.facts) if self.facts.exists() else {}
        except (ValueError, TypeError) as error:
            raise RunError(
                f"{self.facts} is damaged ({error}); restore it, or remove it, which extend --resume writes again"
            ) from None


def _provenance() -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    processor = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    system = f"{platform.system()} {platform.machine()}"
    machine: dict[str, Any] = {"system": system, "processor": processor, "cores": os.cpu_count()}
    torch = sys.modules.get("torch")  # a command that computes has imported it
    if torch and torch.cuda.is_available():
        machine["gpu"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return {"command": command_line(), "created": created, "versions": versions, "machine": machine}


def command_line() -> str:
    """Return the command of this process."""
    path = Path(sys.argv[0])
    program = ["python", "-m", path.parent.name] if path.name == "__main__.py" else [path.name]
    return shlex.join([*program, *sys.argv[1:]])
