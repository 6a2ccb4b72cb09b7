"""The rows of an exhibit as run folders; a folder is named by what decides its model, so that nothing is trained twice.

    OUT/arms/<arm>-<key>/     a run folder as of ``skipwise extend``; key = hash of base and settings, the seed among them
    OUT/bases/<family>-<key>/ a small base

Two exhibits that compare the same row share its folder; the second adds only the measurements that it lacks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from reproduction import paper
from reproduction.bases import BASES, base_folder
from reproduction.exhibits import Block, Exhibit
from skipwise.errors import RecipeError, one_of
from skipwise.evaluation.specification import doubled_windows
from skipwise.model.config import load_config, weights_fingerprint
from skipwise.model.extension import plan_extension
from skipwise.recipes.loading import load_recipe
from skipwise.recipes.names import BASELINES, display_name
from skipwise.recipes.schema import Evaluation, Positions, Recipe, Training
from skipwise.results.files import content_hash
from skipwise.training.run import deciding_settings

_fingerprint = cache(weights_fingerprint)
_window = cache(lambda model: plan_extension(load_config(model)).rope.original_length)
_OURS = {"method", "interpolation", "target", "seed", "evaluation.models"}  # what makes a row or a block
_OURS |= {f"positions.{name}" for name in ("scheme", "chunks", "content")}


@dataclass(frozen=True)
class Scale:
    """A size at which the same code runs every exhibit."""

    recipe: str  # that every row changes
    texts: tuple[str, ...]  # what is measured on where the user gives none
    # Model and window of each family; those missing are the recipe's own, or small bases trained here.
    families: Mapping[str, tuple[str, int]] = field(default_factory=dict)


SCALES = {
    "nano": Scale(str(Path(__file__).parent / "nano.yaml"), ("stdlib", "pydoc")),
    "paper": Scale(
        "llama-7b-16k",
        (),
        {
            "LLaMA": ("huggyllama/llama-7b", 2048),
            "LLaMA2": ("meta-llama/Llama-2-7b-hf", 4096),
            "GPT-J": ("models/gpt-j-6b", 2048),  # converted, as for the recipes gptj-6b-16k and baichuan2-7b-16k
            "Baichuan2": ("models/baichuan2-7b", 4096),
        },
    ),
}


@dataclass(frozen=True)
class ArmRun:
    """One row of one block with one seed."""

    block: str  # its label
    row: str  # its label
    recipe: Recipe  # resolved
    original: int  # length, in tokens
    base: str = ""  # the small base that is trained first, if there is one

    @property
    def trained(self) -> bool:
        """Whether a model is trained, and not only measured."""
        return self.recipe.evaluation.models == ["trained"]

    @property
    def target(self) -> int:
        """Target length, in tokens."""
        assert isinstance(self.recipe.target, int)  # every block has one
        return self.recipe.target

    @property
    def window(self) -> int:
        """Tokens of each training window."""
        whole = self.recipe.positions.scheme == "full_length"
        return self.target if whole else self.recipe.train_length_of(self.original)

    @property
    def tokens(self) -> int:
        """Training tokens; 0 where nothing is trained."""
        training = self.recipe.training
        return training.max_steps * training.global_batch_size * self.window if self.trained else 0

    @cached_property
    def key(self) -> str:
        """16 hex digits of what decides the measured model: the settings, the base's weights, and the steps to measure.

        A small base counts by its folder's name, so that it need not be trained yet. Settings that are not set do not count.
        """
        model = Path(self.recipe.model)
        decides = deciding_settings(self.recipe) | {"evaluation.eval_steps": self.recipe.evaluation.eval_steps}
        decides = {name: value for name, value in decides.items() if value is not None}
        return content_hash(decides | {"model": model.parent.name if self.base else _fingerprint(self.recipe.model)})

    def folder(self, out: Path) -> Path:
        """Return the run folder, shared by all exhibits under ``out``."""
        name = self.recipe.positions.scheme if self.trained else self.recipe.evaluation.models[0]
        return out / "arms" / f"{name}-{self.key}"

    def __str__(self) -> str:
        return f"{self.block}, {self.row}" + (f", seed {self.recipe.seed}" if self.trained else "")


Plans = Mapping[str, Sequence[ArmRun]]  # by exhibit


def plan_runs(
    exhibit: Exhibit, scale: Scale, out: Path, *, seeds: Sequence[int] = (), changes: Mapping[str, Any]
) -> list[ArmRun]:
    """Return every run that the exhibit needs, the first seed before the second; what is not trained has one seed.

    ``seeds`` are of the trained rows, by default the exhibit's number; every run gets the dotted recipe ``changes``. Small
    bases are under ``out``.
    """
    seeds = seeds or range(exhibit.seeds)
    return [
        _arm_run(exhibit, block, row, scale, out, {**changes, "seed": seed})
        for seed in seeds
        for block in exhibit.blocks
        for row in exhibit.rows_in(block)
        if exhibit.rows[row].arm not in BASELINES or seed == seeds[0]
    ]


def _arm_run(exhibit: Exhibit, block: Block, label: str, scale: Scale, out: Path, changes: Mapping[str, Any]) -> ArmRun:
    """Resolve one run: the row overrides the user's changes, and these the exhibit and the scale's recipe."""
    row, base = exhibit.rows[label], ""
    changes = dict(changes)
    if block.family and "model" not in changes:
        if block.family in scale.families:
            changes["model"], changes["original_length"] = scale.families[block.family]
        elif block.family in BASES:
            base = block.family
            folder = base_folder(base, load_recipe(scale.recipe, changes).data, out)
            changes |= {"model": str(folder / "model"), "original_length": BASES[base].window}
    plain = load_recipe(scale.recipe, changes)
    known = dict(scale.families.values())  # so that a plan needs no network
    original = plain.original_length or known.get(plain.model) or _window(plain.model)
    target = block.factor * original
    arm: dict[str, Any] = {"target": target, "interpolation": row.interpolation or block.interpolation or "linear"}
    if row.arm in BASELINES:
        arm["evaluation.models"] = [row.arm]
    else:
        arm |= {"evaluation.models": ["trained"], "positions.scheme": row.arm}
        arm |= {f"positions.{name}": value for name, value in row.positions.items()}
    if row.arm == "full_length":  # as many windows a step as the others, which are longer
        micro = (plain.training.per_device_train_batch_size or 1) * plain.train_length_of(original) // target
        arm["training.per_device_train_batch_size"] = max(1, micro)
    measured = _measured(exhibit, block, scale, original, target, plain.training.max_steps)
    recipe = load_recipe(scale.recipe, {**measured, **changes, **arm})
    if row.arm in BASELINES:  # without what only training reads; the original knows no interpolation either
        update: dict[str, Any] = {"training": Training(precision=plain.training.precision), "positions": Positions()}
        recipe = recipe.model_copy(update=update | ({"interpolation": "none"} if row.arm == "original" else {}))
    if exhibit.segments == "original":
        recipe = by_position(recipe, original, 256)
    elif exhibit.segments == "target":
        recipe = by_position(recipe, target, 32)
    return ArmRun(block.label, label, recipe, original, base)


class ByPosition(Evaluation):
    """A recipe's evaluation that also measures loss by position, in segments that are read once."""

    segment_lengths: list[int]
    segments: int


def by_position(recipe: Recipe, length: int, segments: int) -> Recipe:
    """Return the recipe with loss by position in at most ``segments`` segments of ``length`` tokens."""
    evaluation = ByPosition(**dict(recipe.evaluation), segment_lengths=[length], segments=segments)
    return recipe.model_copy(update={"evaluation": evaluation})


def _measured(exhibit: Exhibit, block: Block, scale: Scale, original: int, target: int, steps: int) -> dict[str, Any]:
    """Return the settings of an exhibit's evaluation, in tokens; ``steps`` are trained."""
    windows = [n * original for n in block.windows] or doubled_windows(original, target)
    rule: dict[str, Any] = {
        "source": list(scale.texts) or None,
        "windows": windows,
        "tokens_per_document": 2 * max(windows),
        "num_prompts": 50 if exhibit.passkey else 0,
    }
    if exhibit.documents:
        rule["documents"] = exhibit.documents
    if exhibit.stride:  # as the paper's: of a document no more than the target is read
        rule |= {"stride": exhibit.stride * original, "tokens_per_document": target}
    if exhibit.by_step:
        rule["eval_steps"] = sorted({step for step in paper.STEPS if step < steps} | {steps})
    if exhibit.passkey:
        rule["prompt_lengths"] = [n * original for n in exhibit.passkey]
    return {f"evaluation.{name}": value for name, value in rule.items()}


def seeds_in(out: Path) -> list[int]:
    """Return the seeds of the run folders under ``out``."""
    recipes = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in out.glob("arms/*/recipe.yaml"))
    return sorted({int(recipe["seed"]) for recipe in recipes})


def distinct(plans: Iterable[Sequence[ArmRun]]) -> list[ArmRun]:
    """Return every run once, the first seed of all exhibits before the second of any."""
    once: dict[str, ArmRun] = {}
    for run in sorted((run for plan in plans for run in plan), key=lambda run: run.recipe.seed):
        once.setdefault(f"{run.key} {run.recipe.evaluation}", run)
    return list(once.values())


def require_undecided(changes: Iterable[str]) -> None:
    """Refuse changes to what makes a row or a block."""
    for key in _OURS.intersection(changes):
        raise RecipeError(f"--set {key} would change what a row's name means; choose by --arm, --setting or --seeds")


def select(plans: Plans, rows: Sequence[str], blocks: Sequence[str]) -> dict[str, list[ArmRun]]:
    """Keep the runs of some rows and blocks, as the tables write them; an empty list keeps all."""
    runs = [run for each in plans.values() for run in each]
    shown = {display_name(run.row).lower(): run.row for run in runs}
    rows = [shown.get(row.lower(), row) for row in rows]
    for row in rows:
        one_of("--arm", row, sorted({run.row for run in runs}))
    for block in blocks:
        one_of("--setting", block, sorted({run.block for run in runs}))
    return {
        name: [run for run in each if (not rows or run.row in rows) and (not blocks or run.block in blocks)]
        for name, each in plans.items()
    }
