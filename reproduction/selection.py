"""Which runs of the exhibits are asked for, and whether the changes, the budget and the text allow them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from reproduction.exhibits import EXHIBITS, Exhibit
from reproduction.runs import ArmRun
from skipwise.errors import DataError, RecipeError, nearest, one_of
from skipwise.extend import plan_run_evaluation
from skipwise.recipes.names import arm_name
from skipwise.training.prepare import prepare

Plans = Mapping[str, Sequence[ArmRun]]


def chosen_exhibits(names: Sequence[str]) -> list[str]:
    """The exhibits called ``names``, each once; ``all`` stands for all.

    Raises:
        RecipeError: there is none of a name.
    """
    found = dict.fromkeys(one_of("exhibit", name, [*EXHIBITS, "all"]) for name in names)
    return list(EXHIBITS) if "all" in found else list(found)


# Recipe keys that the exhibits set themselves, and the option that chooses their values.
_CHOSEN_BY = {
    "interpolation": "--setting",
    "target": "--setting",
    "positions.scheme": "--arm",
    "evaluation.arms": "--arm",
    "seed": "--seeds",
}


def compared(exhibit: Exhibit) -> set[str]:
    """The dotted recipe keys that the rows of the exhibit set to different values."""
    return {key for own in exhibit.variants.values() if not callable(own) for key in own}


def require_undecided(names: Iterable[str], changes: Iterable[str]) -> None:
    """Refuse changes after which a row or a block would no longer be what its name says.

    Raises:
        RecipeError: names the exhibit and the option to use instead.
    """
    for name in (name for name in names if EXHIBITS[name].variants):
        own = compared(EXHIBITS[name])
        for key in changes:
            if key in _CHOSEN_BY or key in own:
                instead = _CHOSEN_BY.get(key, "--arm")
                raise RecipeError(
                    f"--set {key}: the rows of {name} would no longer be what their names say; leave it out, and choose "
                    f"by {instead}"
                )


def require_same_budget(plans: Plans) -> None:
    """Refuse runs whose windows do not divide a step: they would train on another number of tokens than the others.

    Raises:
        RecipeError: names the run, and the batch that fits.
    """
    for run in (run for runs in plans.values() for run in runs if run.trained):
        batch, width = run.budget
        if run.recipe.training.batch_size * run.window != batch * width:
            raise RecipeError(
                f"{run}: a step of {batch} x {width:,} tokens is not a whole number of its windows of {run.window:,} tokens, so "
                "it would train on more tokens than the other rows; set training.batch_size to a multiple of "
                f"{run.window // width}, or choose other rows by --arm"
            )


def select(plans: Plans, arms: Sequence[str], settings: Sequence[str]) -> dict[str, list[ArmRun]]:
    """Keep the runs of some arms and settings; an empty list keeps all.

    Raises:
        RecipeError: no run of the exhibits has that arm or setting; names the nearest.
    """
    runs = [run for each in plans.values() for run in each]
    shown = {arm_name(run.variant).lower(): run.variant for run in runs}
    arms = [shown.get(arm.lower(), arm) for arm in arms]
    _require_known("arm", arms, [run.variant for run in runs])
    _require_known("setting", settings, [run.setting for run in runs])
    kept = {
        name: [run for run in each if (not arms or run.variant in arms) and (not settings or run.setting in settings)]
        for name, each in plans.items()
    }
    if runs and not any(kept.values()):
        raise RecipeError(
            f"none of these exhibits has the arm {' or '.join(arms)} in the setting {' or '.join(settings)}; leave one of "
            "them out"
        )
    return kept


def _require_known(kind: str, names: Iterable[str], valid: Sequence[str]) -> None:
    there = list(dict.fromkeys(valid))
    for name in names:
        if name not in there:
            listed = ", ".join(repr(one) for one in there) or "none"
            raise RecipeError(f"{kind} {name!r} is in none of these exhibits{nearest(name, there)}; there are {listed}")


def require_text(plans: Plans) -> None:
    """Refuse, before any training, runs that the text is too short for, and say what it is long enough for.

    Raises:
        DataError: names the settings, the longest documents, and the commands that can be run instead.
    """
    problems: dict[tuple[str, str], str] = {}
    for name, runs in plans.items():
        for run in _one_of_each_need(runs):
            try:
                plan_run_evaluation(prepare(run.recipe, _QUIET), _QUIET)
            except DataError as error:
                problems.setdefault((name, run.setting), str(error))
    if not problems:
        return
    told = "\n".join(f"{name}, {setting}: {message}" for (name, setting), message in problems.items())
    instead = []
    for name, runs in plans.items():
        settings = list(dict.fromkeys(run.setting for run in runs))
        fits = [setting for setting in settings if (name, setting) not in problems]
        some = "".join(f" --setting {setting!r}" for setting in fits) if len(fits) < len(settings) else ""
        if fits or not settings:
            instead.append(f"{name}{some}")
    raise DataError(f"{told}\nThis text is long enough for: {'; '.join(instead) or 'none of them'}")


_QUIET = Console(quiet=True)


def _one_of_each_need(runs: Sequence[ArmRun]) -> list[ArmRun]:
    """A run for each need of text; families whose base is not trained yet are left out."""
    needs: dict[tuple[str, str, bool, bool], ArmRun] = {}
    for run in runs:
        if run.base is None or Path(run.recipe.model).exists():
            full = run.recipe.positions.scheme == "full"
            needs.setdefault((run.setting, run.recipe.model, full, run.trained), run)
    return list(needs.values())
