"""The folder of one run or evaluation: its paths, its lock, and ``run.json``.

recipe.yaml   resolved, every default written out; of a run it is the first file, and is written once
run.json      versions, seed, machine, command, fingerprints of text and base, probe
checkpoints/  of the training, each with its marker of completeness
written.npy   the text that a teacher wrote to be trained on
model/        the extended checkpoint
token_losses/ the losses of single tokens in the shortest and the longest window, for LongPPL
results.jsonl figures/ report.html
"""

import os
import platform
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from filelock import FileLock, Timeout
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from skipwise.errors import RunError, first_problem
from skipwise.results.files import content_hash, read_json, write_json
from skipwise.results.privacy import private_folder
from skipwise.results.records import Count, Natural

LAUNCHED_BY = "SKIPWISE_COMMAND"  # environment variable
TRAINING_TEXT, BASE_MODEL = "training text", "base model"  # names of the fingerprints that decide a model
_WITHOUT_FACTS = "restore it. Of a run, remove it, and extend --resume writes it again; an evaluation is begun again with another --out"
_PACKAGES = ("skipwise", "torch", "transformers", "accelerate", "tokenizers", "datasets", "numpy")


def _documents(value: Any) -> Any:
    """Require a number, as evaluations write, or names by text, as runs do."""
    named = isinstance(value, dict) and all(isinstance(names, list) for names in value.values())
    if not isinstance(value, int) and not named:
        raise ValueError("it must be a number, or lists of names by text")
    return value


class _Facts(BaseModel):
    """Types of facts by name; each may be missing, and others may stand beside them."""

    model_config = ConfigDict(strict=True)


class _Evaluated(_Facts):
    label: str
    name: str
    original: Count
    target: Count
    base: str | None = ""
    control: bool = False
    weights: str | None = ""


class _Evaluation(_Facts):
    models: list[_Evaluated] = []
    windows: list[Count] = []
    tasks: list[str] = []
    prompt_lengths: list[Count] = []
    trials: Natural = 0
    documents: Annotated[Any, AfterValidator(_documents)] = 0
    tokens: dict[str, list[Count]] = {}  # of each document, by text
    strides: dict[str, Count] = {}  # by window


class _Model(_Facts):
    name: str = ""
    original_length: Count = 1
    target_length: Count = 1
    train_length: Count = 1
    factor: float = 1.0
    interpolation: str = ""


class _Training(_Facts):
    steps: Natural = 0
    tokens: Natural = 0
    seconds: float = 0.0
    loss: float = 0.0
    tokens_per_second: float = 0.0
    precision: str = ""


class _Kept(_Facts):
    step: Natural
    of: Natural
    far_loss: float


class _Run(_Facts):
    """``run.json``."""

    command: str = ""
    created: str = ""
    seed: int = 0
    versions: dict[str, str] = {}
    machine: dict[str, Any] = {}
    recipe: str = ""
    settings: dict[str, Any] = {}
    fingerprints: dict[str, str] | None = {}
    model: _Model = _Model()
    data: dict[str, Any] = {}
    precision: str = ""
    probe: dict[str, Any] = {}
    training: _Training = _Training()
    evaluation: _Evaluation = _Evaluation()
    records: Natural | None = 0
    kept: _Kept | None = None
    logged: list[str] = []


class RunFolder:
    """The paths of a run, and its ``run.json``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.facts = path / "run.json"
        self.checkpoints = path / "checkpoints"
        self.written = path / "written.npy"
        self.model = path / "model"
        self.results = path / "results.jsonl"
        self.figures = path / "figures"
        self.report = path / "report.html"
        self._lock = FileLock(path / ".lock")

    @property
    def is_free(self) -> bool:
        """Whether nothing lies there; hidden files are left by a process that was killed as it began."""
        return not self.path.exists() or (
            self.path.is_dir() and all(path.name.startswith(".") for path in self.path.iterdir())
        )

    def lock(self) -> None:
        """Make the folder, and keep it for this process until its end."""
        try:
            private_folder(self.path)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise RunError(f"another process is running {self.path}; wait for it, or give another --out") from None
        except (OSError, UnicodeError) as error:
            raise RunError(f"run folder {str(self.path)!r} cannot be written: {error}; give another --out") from None

    def begin(self, **facts: Any) -> None:
        """Lock the folder; in a new one record versions, machine, command and ``facts``."""
        self.lock()
        if not self.facts.exists():
            self.record(**_provenance(), **facts)

    def require_same(self, fingerprints: Mapping[str, str]) -> None:
        """Require the texts and models of a resumed run to be those that it began with."""
        known = self.read().get("fingerprints") or {}
        for name, value in fingerprints.items():
            if known.get(name, value) != value:
                raise RunError(
                    f"the {name} has changed since {self.path} was begun (fingerprint {value[:12]}, was "
                    f"{str(known[name])[:12]}): bring it back, or begin a run with another --out"
                )

    @property
    def identity(self) -> str:
        """16 hex digits of what decides the run's model: its settings, its text and its base, as it was begun."""
        facts = self.read()
        decides = [
            facts.get("settings"),
            [(facts.get("fingerprints") or {}).get(name) for name in (TRAINING_TEXT, BASE_MODEL)],
        ]
        return content_hash(decides)

    def record(self, **facts: Any) -> None:
        """Add facts to ``run.json``."""
        write_json(self.facts, self.read() | facts)

    def read(self) -> dict[str, Any]:
        """The facts recorded so far.

        Raises:
            RunError: the file is damaged, another than was written, or has a fact of another type than it is read as.
        """
        try:
            facts = read_json(self.facts) if os.path.lexists(self.facts) else {}
            _Run.model_validate(facts)
            return facts
        except ValidationError as error:
            key, value, rule = first_problem(error)
            rule = rule.partition(" or instance of ")[0]
            raise RunError(f"{self.facts} has {key} = {repr(value)[:60]} ({rule}); {_WITHOUT_FACTS}") from None
        except (OSError, ValueError) as error:
            raise RunError(f"{self.facts} is damaged ({error}); {_WITHOUT_FACTS}") from None


def _provenance() -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "command": command_line(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "machine": _machine(),
    }


def command_line() -> str:
    """Return the command that runs, as it was called: ``skipwise ...``, or ``python -m reproduction ...``.

    In a process that ``--launch`` began it is the command that launched.
    """
    path = Path(sys.argv[0])
    program = ["python", "-m", path.parent.name] if path.name == "__main__.py" else [path.name]
    return os.environ.get(LAUNCHED_BY) or shlex.join([*program, *sys.argv[1:]])


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
