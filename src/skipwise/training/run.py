"""Which folder a run goes into: a new one is never an existing one, and a resumed one has the same recipe."""

from pathlib import Path
from typing import Any

from skipwise.errors import RecipeError, RunError
from skipwise.recipes.schema import Recipe, dump_recipe, load_recipe
from skipwise.results.run_folder import RunFolder


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


def begin_run(run: RunFolder, recipe: Recipe) -> None:
    """Lock the run's folder and write its recipe; a resumed run may have changed what is measured.

    Raises:
        RunError: as ``RunFolder.begin``.
    """
    run.begin(seed=recipe.seed)
    dump_recipe(recipe, run.recipe)


def recipe_of(folder: Path) -> Recipe:
    """The recipe that a run was begun with.

    Raises:
        RunError: the folder holds no run.
    """
    try:
        return load_recipe(RunFolder(folder).recipe)
    except RecipeError as error:
        raise RunError(f"{folder} holds no run that can be read: {error}") from None
