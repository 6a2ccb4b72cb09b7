"""The folder of one run: never overwritten, resumed only by the same recipe.

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

from skipwise.errors import RecipeError, RunError
from skipwise.recipe import Recipe, dump_recipe, load_recipe

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

    def begin(self, recipe: Recipe | None) -> None:
        """Take the folder for this process, and make what a new run needs; an evaluation has no recipe.

        Raises:
            RunError: another process runs in it, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
            if not self.facts.exists():
                self.record(**_provenance(), **({"seed": recipe.seed} if recipe else {}))
            if recipe:
                dump_recipe(
                    recipe, self.recipe
                )  # of a resumed run too: what is measured afterwards may change
        except Timeout:
            raise RunError(
                f"another process is running {self.path}; wait for it, or give another --out"
            ) from None
        except (OSError, UnicodeError) as error:
            raise RunError(
                f"run folder {str(self.path)!r} cannot be written: {error}; give another --out"
            ) from None

    def require_same(self, **fingerprints: str) -> None:
        """Require the text of a resumed run to be what it began with.

        Raises:
            RunError: it changed; numbers of two texts would stand in one table.
        """
        known = self.read().get("fingerprints", {})
        for name, value in fingerprints.items():
            if known.get(name, value) != value:
                raise RunError(
                    f"the {name} has changed since {self.path} was begun (fingerprint {value[:12]}, was "
                    f"{known[name][:12]}): bring it back, or begin a run with another --out"
                )

    def record(self, **facts: Any) -> None:
        """Add facts to ``run.json``; written whole and renamed, so a kill never leaves half of it."""
        known = self.read()
        known.update(facts)
        temporary = self.facts.with_suffix(".partial")
        temporary.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, self.facts)

    def read(self) -> dict[str, Any]:
        """The facts recorded so far.

        Raises:
            RunError: ``run.json`` is damaged.
        """
        try:
            facts = json.loads(self.facts.read_text(encoding="utf-8")) if self.facts.exists() else {}
            if not isinstance(facts, dict):
                raise ValueError(f"it holds a {type(facts).__name__}, not facts by name")
            return facts
        except (ValueError, RecursionError) as error:
            raise RunError(
                f"{self.facts} is damaged ({error}); delete it to go on without what it recorded"
            ) from None


def open_run(recipe: Recipe, out: Path | None, default_name: str, *, resume: bool) -> RunFolder:
    """Choose the folder of a new run, or find the one to go on with; nothing is written before ``begin``.

    Args:
        recipe: resolved.
        out: the folder; None takes ``runs/<default_name>``, numbered on where it is taken.
        default_name: a name for the run, free of separators.
        resume: go on with a folder that this recipe began.

    Raises:
        RunError: the folder holds another run or other files, or there is nothing to resume.
    """
    folder = RunFolder(out or _default_folder(recipe, default_name, resume))
    if folder.recipe.exists():
        if not resume:
            raise RunError(
                f"{folder.path} holds another run: --resume goes on with it, or give another --out"
            )
        _same_recipe(load_recipe(folder.recipe), recipe, folder.path)
        return folder
    if folder.facts.exists():
        raise RunError(
            f"{folder.path} is a run that lost its recipe.yaml; put it back, or give another --out"
        )
    if folder.path.exists() and (
        not folder.path.is_dir() or any(p.name != ".lock" for p in folder.path.iterdir())
    ):
        raise RunError(f"{folder.path} exists and is no run of skipwise; give another --out")
    if resume:
        raise RunError(f"{folder.path} holds no run to resume; leave --resume out to begin one")
    return folder


def _default_folder(recipe: Recipe, name: str, resume: bool) -> Path:
    """The newest run of this recipe to resume, or the first free of runs/name, runs/name-2, ..."""
    number, free = 1, Path("runs") / name
    candidates = []
    while free.exists():
        candidates.append(free)
        number += 1
        free = Path("runs") / f"{name}-{number}"
    if not resume:
        return free
    for folder in reversed(candidates):
        saved = folder / "recipe.yaml"
        if saved.exists() and not _changed(load_recipe(saved), recipe):
            return folder
    raise RunError(
        f"no run of this recipe under runs/{name}*; give its folder by --out, or leave --resume out"
    )


def _changed(saved: Recipe, wanted: Recipe) -> list[tuple[str, Any, Any]]:
    """(key, old, new) of every setting that decides the trained model and differs."""
    old, new = deciding_settings(saved), deciding_settings(wanted)
    return [(k, old.get(k), new.get(k)) for k in {**old, **new} if old.get(k) != new.get(k)]


def deciding_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings that decide the model that is saved, by dotted key: not where the cache lies, nor what is measured.

    But what is measured decides it where the best step is kept.
    """
    settings = _flatten(
        recipe.model_dump(mode="json", exclude={"evaluation": True, "data": {"cache", "workers", "stream"}})
    )
    rule = recipe.evaluation
    settings["evaluation.keep"] = rule.keep
    if rule.keep == "best":
        first = (rule.source or [recipe.data.source])[0]
        settings |= {
            "evaluation.steps": rule.steps,
            "evaluation.source": first,
            "evaluation.segments": rule.segments,
        }
    return settings


def _same_recipe(saved: Recipe, wanted: Recipe, folder: Path) -> None:
    for key, old, new in _changed(saved, wanted):
        raise RunError(
            f"{folder} was begun with {key} = {old!r}, now it is {new!r}: "
            "resume with the recipe it began with, or give another --out"
        )


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _provenance() -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "command": " ".join(["skipwise", *sys.argv[1:]]),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "machine": _machine(),
    }


def _machine() -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
    }
    if torch.cuda.is_available():
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


def recipe_of(folder: Path) -> Recipe:
    """The recipe that a run was begun with.

    Raises:
        RunError: the folder holds no run.
    """
    try:
        return load_recipe(RunFolder(folder).recipe)
    except RecipeError as error:
        raise RunError(f"{folder} holds no run that can be read: {error}") from None
