"""A recipe whose interpolation is fitted: the fit is read or made, and its settings take its place."""

from pathlib import Path

from rich.console import Console

from skipwise.errors import RunError
from skipwise.fit.result import FILE, fitted_settings, read_fit
from skipwise.fit.search import fit
from skipwise.model.config import load_config
from skipwise.model.extension import extension_of
from skipwise.model.fingerprint import weights_fingerprint
from skipwise.recipes.fields import FITTED
from skipwise.recipes.loading import load_recipe
from skipwise.recipes.schema import Recipe
from skipwise.results.files import default_cache, short_digest
from skipwise.training import processes


def fitted_recipe(recipe: Recipe, out: Path | None, resume: bool, console: Console) -> tuple[Recipe, Path | None]:
    """Return the recipe with the settings of its fit, and the fit's file; other recipes as they are.

    ``fitted`` searches, at most a tenth of the training's time, and keeps the fit in the user's cache. Another name is that of a
    ``fit.json``. A run that is resumed keeps the settings that it began with.

    Raises:
        RunError: the fit is of another model or target, damaged, or not finished.
    """
    if not recipe.is_fitted:
        return recipe, None
    begun = out / "recipe.yaml" if resume and out is not None else None
    if begun is not None and begun.is_file():
        before = load_recipe(begun)
        settings: dict[str, object] = {
            "interpolation": before.interpolation,
            "rope": before.rope.model_dump(exclude_none=True),
        }
        return _with(recipe, settings), None
    extension = extension_of(load_config(recipe.model), recipe)
    fingerprint, target = weights_fingerprint(recipe.model), extension.target_length
    path = Path(recipe.interpolation)
    if recipe.interpolation == FITTED:
        key = short_digest(f"{fingerprint} {target} {recipe.data.model_dump_json()} {recipe.seed}".encode())
        folder = default_cache() / "fits" / key
        path = folder / FILE
        training = recipe.training
        tokens = training.max_steps * training.batch_size * recipe.train_length_of(extension.rope.original_length)
        with processes.first_ahead():
            if not (path.is_file() and read_fit(path)["finished"]):
                fit(
                    recipe.model, target=target, data=recipe.data, out=folder, seed=recipe.seed, console=console,
                    minutes=None, tokens=tokens,
                )  # fmt: skip
    elif not path.is_file():
        raise RunError(f"there is no fit {path}; make one with skipwise fit, or give --interpolation {FITTED}")
    found = fitted_settings(path, recipe.model, fingerprint, target)
    told = ", ".join(f"{key} {value:g}" for key, value in found["rope"].items())
    console.print(
        f"fitted interpolation: {found['interpolation']}{f' ({told})' if told else ''}, from {path}", soft_wrap=True
    )
    return _with(recipe, found), path


def _with(recipe: Recipe, settings: dict[str, object]) -> Recipe:
    return Recipe.model_validate({**recipe.model_dump(exclude_unset=True), **settings})
