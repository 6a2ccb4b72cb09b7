"""Choose the folder of a run: a new run never takes an existing one, and a resumed run has the same recipe."""

from itertools import count, takewhile
from pathlib import Path
from typing import Any

from skipwise.errors import RecipeError, RunError
from skipwise.recipes.schema import Recipe, dump_recipe, load_recipe
from skipwise.results.run_folder import RunFolder


def open_run(recipe: Recipe, out: Path | None, default_name: str, *, resume: bool) -> RunFolder:
    """Return the folder of a new run, or of the one to resume; nothing is written before ``begin_run``.

    Without ``out`` it is ``runs/<default_name>``, with a number if that exists.
    """
    folder = RunFolder(out or _default_folder(recipe, default_name, resume))
    if folder.recipe.exists():
        if not resume:
            raise RunError(f"{folder.path} holds another run: pass --resume to continue it, or give another --out")
        for key, old, new in _changed(load_recipe(folder.recipe), recipe):
            raise RunError(
                f"{folder.path} was begun with {key} = {old!r}, now it is {new!r}: "
                "resume with the recipe it began with, or give another --out"
            )
        return folder
    if folder.facts.exists():
        raise RunError(f"{folder.path} is a run that lost its recipe.yaml; restore it, or give another --out")
    if folder.path.exists() and (not folder.path.is_dir() or any(p.name != ".lock" for p in folder.path.iterdir())):
        raise RunError(f"{folder.path} exists and is not a run of skipwise; give another --out")
    if resume:
        raise RunError(f"{folder.path} holds no run to resume; leave --resume out to begin one")
    return folder


def _default_folder(recipe: Recipe, name: str, resume: bool) -> Path:
    """Return the first free folder of runs/name, runs/name-2, ..., or to resume, the newest run of this recipe."""
    numbered = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    if not resume:
        return next(folder for folder in numbered if not folder.exists())
    for folder in reversed(list(takewhile(Path.exists, numbered))):
        saved = folder / "recipe.yaml"
        if saved.exists() and not _changed(load_recipe(saved), recipe):
            return folder
    raise RunError(f"no run of this recipe under runs/{name}*; give its folder by --out, or leave --resume out")


def _changed(saved: Recipe, wanted: Recipe) -> list[tuple[str, Any, Any]]:
    """Return (key, old, new) of every deciding setting that differs."""
    old, new = deciding_settings(saved), deciding_settings(wanted)
    return [(k, old.get(k), new.get(k)) for k in {**old, **new} if old.get(k) != new.get(k)]


def deciding_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that decide the saved model, by dotted key.

    The evaluation decides it only if the best step is kept; the cache never does.
    """
    settings = _flatten(
        recipe.model_dump(mode="json", exclude={"evaluation": True, "data": {"cache", "workers", "stream"}})
    )
    rule = recipe.evaluation
    settings["evaluation.keep"] = rule.keep
    if rule.keep == "best":
        first = (rule.source or [recipe.data.source])[0]
        settings |= {"evaluation.steps": rule.steps, "evaluation.source": first, "evaluation.segments": rule.segments}
    return settings


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def begin_run(run: RunFolder, recipe: Recipe) -> None:
    """Lock the run's folder and write its recipe, whose evaluation a resumed run may change."""
    run.begin(seed=recipe.seed)
    dump_recipe(recipe, run.recipe)


def recipe_of(folder: Path) -> Recipe:
    """Return the recipe of a run."""
    try:
        return load_recipe(RunFolder(folder).recipe)
    except RecipeError as error:
        raise RunError(f"{folder} holds no run that can be read: {error}") from None
