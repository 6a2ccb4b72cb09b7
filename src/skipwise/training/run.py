"""Choose the folder of a run: a new run never takes an existing one, and a resumed run has the same recipe."""

import glob
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from skipwise.errors import RecipeError, RunError
from skipwise.recipes.loading import dump_recipe, load_recipe, read_file
from skipwise.recipes.methods import SETTINGS
from skipwise.recipes.schema import Recipe
from skipwise.results.files import file_digest
from skipwise.results.run_folder import RunFolder
from skipwise.training.arguments import OF_EVALUATION

# Settings by which neither the model nor its logs change, to the bit.
_FREE = re.compile(
    r"training\.(dataloader_.*|(activation|gradient)_checkpointing|log_level.*|project|report_to|run_name|save_total_limit)"
)


RUNS = Path("runs")  # where runs go without ``out``


class _OtherVersionError(RunError):
    """A run was begun by a version whose methods had other settings."""


def open_run(recipe: Recipe, out: Path | None, default_name: str, *, resume: bool) -> RunFolder:
    """Return the folder of a new run, or of the one to resume; nothing is written before ``begin_run``.

    Without ``out`` it is ``runs/<default_name>``, with a number if that exists.
    """
    run = RunFolder(out or _default_folder(recipe, default_name, resume))
    require_ours(run, recipe, resume)
    return run


def require_ours(run: RunFolder, recipe: Recipe, resume: bool) -> None:
    """Require a folder to be free for a new run, or to hold the run of this recipe where one is resumed."""
    if run.recipe.exists():
        if not resume:
            raise RunError(f"{run.path} holds another run: pass --resume to continue it, or give another --out")
        as_begun = _read(run)
        written = deciding_settings(as_begun)
        begun = written | run.read().get("settings", {})
        for key, old, new in _differences(begun, written):
            raise RunError(
                f"{run.recipe} was edited: the run was begun with {key} = {old!r}, and the file has {new!r}; undo that, "
                "or give another --out"
            )
        if run.read().get("recipe", file_digest(run.recipe)) != file_digest(run.recipe):
            raise RunError(
                f"{run.recipe} was edited since the run was begun; undo that, and say what else is to be measured by --set"
            )
        for key, old, new in _differences(begun, deciding_settings(recipe)):
            told = [*_leading_changes(as_begun, recipe), f"with {key} = {old!r}, now it is {new!r}"]
            raise RunError(
                f"{run.path} was begun {', and '.join(told)}: resume with the recipe it began with, or give another --out"
            )
    elif run.facts.exists():
        raise RunError(f"{run.path} is a run that lost its recipe.yaml; restore it, or give another --out")
    elif not run.is_free:
        raise RunError(f"{run.path} exists and is not a run of skipwise; give another --out")
    elif resume:
        raise RunError(f"{run.path} holds no run to resume; leave --resume out to begin one")


def _default_folder(recipe: Recipe, name: str, resume: bool) -> Path:
    """Return the first free folder of runs/name, runs/name-2, ..., or to resume, the newest run of this recipe."""
    if not resume:
        numbered = (RUNS / (name if number == 1 else f"{name}-{number}") for number in count(1))
        return next(folder for folder in numbered if not folder.exists())
    number = {folder: folder.name.removeprefix(name) for folder in RUNS.glob(f"{glob.escape(name)}*")}
    named = [folder for folder, end in number.items() if re.fullmatch(r"(-\d+)?", end)]
    for folder in sorted(named, key=lambda folder: int(number[folder][1:] or 1), reverse=True):
        run = RunFolder(folder)
        with suppress(_OtherVersionError):
            if run.recipe.exists() and not _differences(deciding_settings(_read(run)), deciding_settings(recipe)):
                return folder
    raise RunError(f"no run of this recipe under runs/{name}*; give its folder by --out, or leave --resume out")


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (key, old, new) of every setting that differs and that a resume may not change."""
    fixed = (key for key in {**old, **new} if not _FREE.fullmatch(key))
    return [(key, old.get(key), new.get(key)) for key in fixed if old.get(key) != new.get(key)]


def _leading_changes(begun: Recipe, now: Recipe) -> Iterator[str]:
    """Say which settings differ that others follow from: LoRA sets the learning rate, and a method many settings."""
    if bool(begun.lora) != bool(now.lora):
        yield "with --lora, now it is left out" if begun.lora else "without --lora, now it is given"
    if begun.method != now.method:
        yield f"with method = {begun.method!r}, now it is {now.method!r}"


def deciding_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that decide the saved model and its logs, by dotted key, and a few others.

    The evaluation decides it only if the best step is kept; the cache never does, nor the method, whose settings are here.
    """
    settings = _flatten(
        recipe.model_dump(
            mode="json", exclude={"method": True, "evaluation": True, "data": {"cache", "workers", "stream"}}
        )
    )
    for name in OF_EVALUATION:  # earlier versions took them, and nothing read them
        settings.pop(f"training.{name}", None)
    rule = recipe.evaluation
    settings["evaluation.keep"] = rule.keep
    if rule.keep == "best":
        settings |= {"evaluation.steps": rule.steps, "evaluation.segments": rule.segments}
        settings["evaluation.source"] = recipe.measured_sources[0]
    return settings


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def begin_run(run: RunFolder, recipe: Recipe, *, resume: bool) -> None:
    """Lock the run's folder, and write the recipe of a new one before anything else.

    What ``open_run`` saw is looked at again under the lock: meanwhile another process may have begun a run there. A
    resumed run may measure other things than its recipe.yaml says; run.json has what was asked last.
    """
    run.lock()
    require_ours(run, recipe, resume)
    if not run.recipe.exists():
        dump_recipe(recipe, run.recipe)
    run.begin(seed=recipe.seed, settings=deciding_settings(recipe), recipe=file_digest(run.recipe))


def recipe_of(folder: Path) -> Recipe:
    """Return the recipe of a run."""
    return _read(RunFolder(folder))


def _read(run: RunFolder) -> Recipe:
    if not run.recipe.exists():
        raise RunError(
            f"{run.path} holds no run: there is no {run.recipe.name}; give the folder of a run, as runs/NAME"
        )
    try:
        recipe = load_recipe(run.recipe)
    except RecipeError as error:
        raise RunError(f"{run.path} holds no run that can be read: {run.recipe.name}: {error}") from None
    # What the file lacks it got from today's method.
    written: dict[str, Any] | None = read_file(run.recipe)
    if not written:
        raise RunError(f"{run.path} holds no run that can be read: {run.recipe.name} is empty; restore it")
    if "method" not in written:
        raise _OtherVersionError(
            f"{run.path} was begun by skipwise 0.1, before there were methods; go on with that version, or give another --out"
        )
    for section, settings in SETTINGS.get(str(recipe.method), {}).items():
        part = written.get(section, {})
        if part is not None and (lacks := settings.keys() - part.keys()):
            raise _OtherVersionError(
                f"{run.path} was begun by a version without {section}.{min(lacks)}; go on with that version, or give another --out"
            )
    return recipe
