"""A recipe whose interpolation is fitted: the fit is read or made, and its settings take its place."""

from pathlib import Path

from rich.console import Console

from skipwise.errors import RunError, counted
from skipwise.evaluation.forecast import training_seconds
from skipwise.fit.result import FILE, read_fit
from skipwise.fit.search import fit
from skipwise.method.limits import SHORT_WINDOW
from skipwise.model.config import load_config
from skipwise.model.extension import extension_of
from skipwise.model.fingerprint import weights_fingerprint
from skipwise.model.precision import choose_precision, default_device
from skipwise.recipes.fields import FITTED
from skipwise.recipes.schema import Recipe
from skipwise.results.files import default_cache, short_digest
from skipwise.training import processes

_SHARE, _LEAST = 0.1, 3.0  # of the training's time; minutes


def fitted_recipe(recipe: Recipe, out: Path | None, resume: bool, console: Console) -> tuple[Recipe, Path | None]:
    """Return the recipe with the settings of its fit, and the fit's file; other recipes as they are.

    ``fitted`` searches for a tenth of the training's time, and keeps the fit in the user's cache. Another name is that of a
    ``fit.json``. A run that is resumed keeps the settings that it began with.

    Raises:
        RunError: the fit is of another model or target, damaged, or not finished.
    """
    if not recipe.is_fitted:
        return recipe, None
    config, model = load_config(recipe.model), recipe.model
    extension, fingerprint = extension_of(config, recipe), weights_fingerprint(model)
    target, path = extension.target_length, Path(recipe.interpolation)
    if resume and out is not None and (out / FILE).is_file():
        path = out / FILE
    elif recipe.interpolation == FITTED:
        key = short_digest(f"{fingerprint} {target} {recipe.data.model_dump_json()} {recipe.seed}".encode())
        folder = default_cache() / "fits" / key
        path, training, original = folder / FILE, recipe.training, extension.rope.original_length
        tokens = training.max_steps * training.batch_size * recipe.train_length_of(original)
        with processes.main_process_first():
            if not (path.is_file() and read_fit(path).finished):
                device = default_device()
                precision = choose_precision("auto", device)
                share = _SHARE * training_seconds(config, tokens, min(original, SHORT_WINDOW), precision, device) / 60
                minutes = max(share, _LEAST)
                fit(
                    model,
                    target=target,
                    data=recipe.data,
                    out=folder,
                    minutes=minutes,
                    seed=recipe.seed,
                    console=console,
                )
    found = read_fit(path)
    if (found.fingerprint, found.target) != (fingerprint, target):
        raise RunError(
            f"{path} is a fit of {found.model} for {found.target:,} tokens, not of {model} for {target:,}; run skipwise fit "
            f"{model} --target {target}"
        )
    if not found.finished:
        raise RunError(
            f"{path} is not finished ({counted(len(found.candidates), 'candidate')} measured); run the same skipwise fit again"
        )
    console.print(f"fitted interpolation: {found.best.extension.told}, from {path}", soft_wrap=True)
    return Recipe.model_validate({**recipe.model_dump(exclude_unset=True), **found.best.recipe}), path
