"""Each arm of an exhibit as a run folder, found again by what was trained: nothing is trained twice.

    OUT/arms/<arm>-<key>/     a run folder as of ``skipwise extend``; key = hash of base, recipe and seed

Two exhibits that compare the same arm share its folder; the second one adds only what it measures beyond.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from skipwise.arms import evaluate, plan_evaluation
from skipwise.extend import extend
from skipwise.job import prepare
from skipwise.model.loading import load_config, plan_extension, resolve
from skipwise.recipe import Recipe, load_recipe
from skipwise.reproduction.exhibits import BASELINES, TRAINED, Exhibit, Setting, arm_changes
from skipwise.run_folder import RunFolder, deciding_settings, open_run


@dataclass(frozen=True)
class ArmRun:
    """One arm under one setting and one seed.

    Attributes:
        setting: the block of the exhibit's table.
        variant: the row.
        recipe: resolved.
        key: 12 hex digits of what decides the trained model.
    """

    setting: str
    variant: str
    recipe: Recipe
    key: str

    @property
    def trained(self) -> bool:
        """Whether something is trained, and not only measured."""
        return self.recipe.evaluation.arms == ["trained"]

    def folder(self, out: Path) -> Path:
        """The run folder, shared by all exhibits under ``out``."""
        name = self.recipe.positions.scheme if self.trained else self.variant
        return out / "arms" / f"{name}-{self.key}"


def plan_runs(exhibit: Exhibit, base: str, *, seeds: Sequence[int], changes: dict[str, Any]) -> list[ArmRun]:
    """Every run that the exhibit needs, baselines first in each block; baselines have one seed.

    Args:
        exhibit: what is compared.
        base: the recipe that every arm changes.
        seeds: of the trained arms.
        changes: dotted recipe keys that every run gets, as the texts to measure on.
    """
    runs = []
    for setting in exhibit.settings:
        for variant, own in exhibit.variants.items():
            for seed in seeds if variant not in BASELINES else seeds[:1]:
                common = {"evaluation.passkey_trials": 0, **exhibit.evaluation, **changes, "seed": seed}
                runs.append(_arm_run(setting, variant, base, {**common, **own}))
    return runs


def _arm_run(setting: Setting, variant: str, base: str, changes: dict[str, Any]) -> ArmRun:
    changes = {**changes, "interpolation": setting.interpolation}
    plain = load_recipe(base, changes)
    rope = plan_extension(load_config(plain.model), original_length=plain.original_length).rope
    target, train = setting.factor * rope.original_length, plain.train_length or rope.original_length
    arm = variant if variant in (*BASELINES, *TRAINED) else plain.positions.scheme
    recipe = load_recipe(base, {**changes, "target": target, **arm_changes(arm, plain, target, train)})
    if variant == "original":  # whatever the interpolation, it is the same model
        recipe = recipe.model_copy(update={"interpolation": "none"})
    return ArmRun(setting.label, variant, recipe, _key(recipe))


def _key(recipe: Recipe) -> str:
    """Hash what decides the model that is measured: its weights as they came, and the recipe's deciding settings."""
    digest = hashlib.sha256(json.dumps(deciding_settings(recipe), sort_keys=True).encode())
    digest.update(str(getattr(load_config(recipe.model), "_commit_hash", None)).encode())  # of a hub's model
    for path in sorted(Path(resolve(recipe.model)).glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
        with open(path, "rb") as file:
            digest.update(file.read(2**24))
    return digest.hexdigest()[:12]


def make(run: ArmRun, out: Path, console: Console) -> RunFolder:
    """Train and measure what is not there yet."""
    folder = run.folder(out)
    resume = (folder / "recipe.yaml").exists()
    if run.trained:
        return extend(run.recipe, out=folder, resume=resume, console=console)
    job = prepare(run.recipe, console)
    plan = plan_evaluation(job, console)
    taken = open_run(run.recipe, folder, job.name, resume=resume)
    taken.require_same(**plan.fingerprints)
    taken.begin(run.recipe)
    taken.record(fingerprints=plan.fingerprints)
    evaluate(job, plan, taken, console)
    return taken
