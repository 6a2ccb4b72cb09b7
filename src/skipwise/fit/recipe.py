"""A recipe whose interpolation is fitted: the fit is read or made, and its settings take its place."""

from pathlib import Path

from rich.console import Console

from skipwise.errors import DataError, RunError, counted
from skipwise.fit.result import FILE, read_fit
from skipwise.fit.search import fit
from skipwise.method.limits import SHORT_WINDOW
from skipwise.model.config import load_config
from skipwise.model.cost import training_seconds
from skipwise.model.extension import Extension, extension_of
from skipwise.model.origin import weights_fingerprint
from skipwise.model.precision import choose_precision, default_device
from skipwise.recipes.schema import AUTO, FITTED, Recipe
from skipwise.results.files import default_cache, short_digest
from skipwise.training import processes

_SHARE, _LEAST = 0.1, 3.0  # of the training's time; minutes


def fitted_recipe(recipe: Recipe, out: Path | None, resume: bool, console: Console) -> tuple[Recipe, Path | None]:
    """Return the recipe with the settings of its fit, and the fit's file.

    ``fitted`` searches for a tenth of the training's time, and keeps the fit in the user's cache. ``auto`` does so from 8 times
    the window on, and takes YaRN below and where no fit can be made. A path is that of a ``fit.json``. A run that is resumed
    keeps its fit.

    Raises:
        RunError: the fit is of another model or target, damaged, or not finished.
    """
    if not recipe.is_fitted:
        return recipe, None
    with processes.together():
        extension, fingerprint = extension_of(load_config(recipe.model), recipe), weights_fingerprint(recipe.model)
    if resume and out is not None and (out / FILE).is_file():
        path = out / FILE
    elif recipe.interpolation == AUTO:
        if extension.interpolation == "yarn":
            return _with(recipe, {"interpolation": "yarn"}), None
        try:
            path = _searched(recipe, extension, fingerprint, console)
        except (DataError, RunError) as error:
            console.print(f"interpolation: yarn, because no fit can be made: {error}", style="yellow", soft_wrap=True)
            return _with(recipe, {"interpolation": "yarn"}), None
    elif recipe.interpolation == FITTED:
        path = _searched(recipe, extension, fingerprint, console)
    else:
        path = Path(recipe.interpolation)
    found, target = read_fit(path), extension.target_length
    if (found.fingerprint, found.target) != (fingerprint, target):
        raise RunError(
            f"{path} is a fit of {found.model} for {found.target:,} tokens, not of {recipe.model} for {target:,}; run skipwise fit "
            f"{recipe.model} --target {target}"
        )
    if not found.finished:
        raise RunError(
            f"{path} is not finished ({counted(len(found.candidates), 'candidate')} measured); run the same skipwise fit again"
        )
    console.print(f"fitted interpolation: {found.best.extension.told}, from {path}", soft_wrap=True)
    return _with(recipe, found.best.recipe), path


def _searched(recipe: Recipe, extension: Extension, fingerprint: str, console: Console) -> Path:
    """Return the cached fit of a recipe; the first process makes it."""
    target, original, training = extension.target_length, extension.rope.original_length, recipe.training
    key = short_digest(f"{fingerprint} {target} {recipe.data.model_dump_json()} {recipe.seed}".encode())
    folder = default_cache() / "fits" / key
    with processes.together(), processes.main_process_first():
        if not ((folder / FILE).is_file() and read_fit(folder / FILE).finished):
            device = default_device()
            precision = choose_precision("auto", device)
            tokens = training.max_steps * training.batch_size * recipe.train_length_of(original)
            config, window = load_config(recipe.model), min(original, SHORT_WINDOW)
            minutes = max(_SHARE * training_seconds(config, tokens, window, precision, device) / 60, _LEAST)
            fit(
                recipe.model, target=target, data=recipe.data, out=folder, minutes=minutes, seed=recipe.seed, console=console
            )  # fmt: skip
    return folder / FILE


def _with(recipe: Recipe, settings: dict[str, object]) -> Recipe:
    return Recipe.model_validate({**recipe.model_dump(exclude_unset=True), **settings})
