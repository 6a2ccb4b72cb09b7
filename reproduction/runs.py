"""The arms of an exhibit as run folders; a folder is named by what decides its model, so that nothing is trained twice.

    OUT/arms/<arm>-<key>/     a run folder as of ``skipwise extend``; key = hash of base, recipe and seed

Two exhibits that compare the same arm share its folder; the second adds only the measurements that it lacks.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from reproduction.bases import BASES, base_folder
from reproduction.exhibits import BASELINES, TRAINED, Exhibit, Setting, arm_changes
from reproduction.scales import MODELS, Scale
from skipwise.evaluation.specification import doubled_windows
from skipwise.model.config import load_config, resolve
from skipwise.model.extension import plan_extension
from skipwise.model.origin import weights_fingerprint
from skipwise.recipes.loading import load_recipe
from skipwise.recipes.schema import Data, Positions, Recipe, Training
from skipwise.training.run import deciding_settings

_OFF = (
    ("positions.contiguous", 0.0),
    ("positions.margin", 0.0),
    ("data.retrieval", 0.0),
    ("data.answer_weight", 1.0),
    ("data.assistant_only", False),
    ("training.save_dtype", "float32"),
)


@dataclass(frozen=True)
class ArmRun:
    """One arm under one setting and one seed.

    Attributes:
        setting: the block of the exhibit's table.
        variant: the row.
        recipe: resolved.
        original: length, in tokens.
        budget: windows in a step and tokens in a window, of the recipe that all arms change.
        base: the small base that is trained first, if there is one, and on which text.
    """

    setting: str
    variant: str
    recipe: Recipe
    original: int
    budget: tuple[int, int]
    base: tuple[str, Data] | None = None

    @property
    def trained(self) -> bool:
        """Whether something is trained, and not only measured."""
        return self.recipe.evaluation.arms == ["trained"]

    @property
    def target(self) -> int:
        """Target length, in tokens."""
        assert self.recipe.target is not None  # every exhibit says one
        return self.recipe.target

    @property
    def window(self) -> int:
        """Tokens of each window that is trained on."""
        return self.target if self.recipe.positions.scheme == "full" else self.recipe.train_length_of(self.original)

    @property
    def tokens(self) -> int:
        """How many tokens are trained on; none where nothing is trained."""
        training = self.recipe.training
        return training.max_steps * training.batch_size * self.window if self.trained else 0

    @cached_property
    def key(self) -> str:
        """12 hex digits of what decides the model that is measured: the recipe's settings and the weights it starts from.

        A setting that is null does not count, nor one of ``_OFF``, so that a new one that is off leaves the keys of older
        runs as they are.
        """
        decides = deciding_settings(self.recipe).items()
        settings = {name: value for name, value in decides if value is not None and (name, value) not in _OFF}
        if settings.get("positions.content") == "even":  # as the published runs have it, whose places were less even
            settings["positions.content"] = "uniform"
        if self.recipe.evaluation.keep == "last":  # older runs had no choice
            del settings["evaluation.keep"]
        if self.base:  # by the folder's name, which says all that decides it; where the cache lies does not
            settings["model"] = Path(self.recipe.model).parent.name
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        if steps := self.recipe.evaluation.steps:  # only training itself can give them
            digest.update(json.dumps(steps).encode())
        if self.base is None:
            digest.update(_fingerprint(self.recipe.model).encode())
        return digest.hexdigest()[:12]

    def folder(self, out: Path) -> Path:
        """The run folder, shared by all exhibits under ``out``."""
        name = self.recipe.arm if self.trained else self.recipe.evaluation.arms[0]
        return out / "arms" / f"{name}-{self.key}"

    def __str__(self) -> str:
        return f"{self.setting}, {self.variant}" + (f", seed {self.recipe.seed}" if self.trained else "")


def plan_runs(exhibit: Exhibit, scale: Scale, *, seeds: Sequence[int], changes: Mapping[str, Any]) -> list[ArmRun]:
    """Every run that the exhibit needs, baselines first in each block; baselines have one seed.

    Args:
        exhibit: what is compared.
        scale: in miniature, or as in the paper.
        seeds: of the trained arms.
        changes: dotted recipe keys that every run gets, as the texts to measure on.
    """
    given = changes.get("evaluation.source") or []
    if its := [text for text in given if Path(text).name in exhibit.texts]:
        changes = {**changes, "evaluation.source": its}
    return [
        _arm_run(exhibit, setting, variant, scale, {**changes, "seed": seed})
        for seed in seeds
        for setting in exhibit.settings
        if scale.name == "nano" or not setting.miniature
        for variant in setting.only or exhibit.variants
        if variant not in BASELINES or seed == seeds[0]
    ]


def seeds_in(out: Path) -> list[int]:
    """The seeds of the run folders under ``out``; what holds no recipe of ours is passed over."""
    seeds = set()
    for path in (out / "arms").glob("*/recipe.yaml"):
        with suppress(OSError, ValueError, yaml.YAMLError, TypeError, KeyError):
            seeds.add(int(yaml.safe_load(path.read_text(encoding="utf-8"))["seed"]))
    return sorted(seeds)


def _arm_run(exhibit: Exhibit, setting: Setting, variant: str, scale: Scale, changes: Mapping[str, Any]) -> ArmRun:
    """Resolve one arm: what makes the row wins over what the user changes, that over the exhibit and the scale's recipe."""
    chosen: dict[str, Any] = {"interpolation": setting.interpolation}
    text = load_recipe(scale.recipe, {**chosen, **changes}).data  # of a small base, which is the same in every block
    family = _family(setting, scale, text)
    changes = {**changes, **setting.changes}
    chosen |= family
    plain = load_recipe(scale.recipe, {**chosen, **changes})
    original = plain.original_length or _window(plain.model)
    budget = plain.training.batch_size, plain.train_length_of(original)
    own = exhibit.variants[variant]
    row = own(plain, original) if callable(own) else own
    plain = load_recipe(scale.recipe, {**chosen, **changes, **row})
    target = scale.family_target if setting.family and scale.family_target else setting.factor * original
    train = plain.train_length_of(original)
    arm = variant if variant in (*BASELINES, *TRAINED) else plain.arm
    rule = {
        "target": target,
        # Documents that every arm can use, so that arms of equal windows read the same spans of the same text.
        "data.min_tokens": plain.data.min_tokens or min(target, 16 * original),
        "evaluation.source": list(scale.texts) or None,
        **_measured(exhibit, setting, scale, original, target, plain.training.max_steps),
        **exhibit.changes,
        **(exhibit.full_size if scale.name == "paper" else {}),
    }
    recipe = load_recipe(scale.recipe, {**rule, **chosen, **changes, **row, **arm_changes(arm, plain, target, train)})
    if variant in BASELINES:
        recipe = _as_it_came(recipe, variant)
    small = (setting.family, text) if setting.family and family and scale.name == "nano" else None
    return ArmRun(setting.label, variant, recipe, original, budget, small)


def _family(setting: Setting, scale: Scale, data: Data) -> dict[str, Any]:
    """The model of a family: at full size by its name, in miniature a small base where the recipe's is not its like."""
    if setting.family is None:
        return {}
    if name := scale.families.get(setting.family):
        return {"model": name, "original_length": MODELS[name].window}
    if setting.family in BASES:
        known = scale.bases.get(setting.family)
        folder = Path(known) if known else base_folder(setting.family, data)
        return {"model": str(folder / "model"), "original_length": BASES[setting.family].window}
    return {}


def _measured(
    exhibit: Exhibit, setting: Setting, scale: Scale, original: int, target: int, steps: int
) -> dict[str, Any]:
    """What an exhibit measures, in tokens; ``steps`` are trained."""
    windows = [n * original for n in setting.windows] or doubled_windows(original, target)
    rule: dict[str, Any] = {"evaluation.prompt_trials": 0, "evaluation.windows": windows}
    if segments := setting.segments or exhibit.segments:
        lengths = {"original": original, "target": target}
        rule["evaluation.segment_lengths"] = [lengths[name] for name in segments]
    if exhibit.by_step:
        rule["evaluation.steps"] = [step for step in scale.steps if step <= steps]
    if exhibit.passkey:
        rule["evaluation.prompt_lengths"] = [n * original for n in setting.windows or exhibit.passkey]
        rule["evaluation.prompt_trials"] = 50
    return rule


def _as_it_came(recipe: Recipe, arm: str) -> Recipe:
    """The recipe of an untrained arm without what only training reads; the original knows no interpolation either."""
    training = Training(precision=recipe.training.precision)
    plain: dict[str, Any] = {"training": training, "positions": Positions()}
    return recipe.model_copy(update=plain | ({"interpolation": "none"} if arm == "original" else {}))


@cache
def _fingerprint(model: str) -> str:
    """Of the embedded model as skipwise 0.1 took it, so that the published arms keep their names."""
    if model != "nano":
        return weights_fingerprint(model)
    digest = hashlib.sha256(b"None")
    for path in sorted(Path(resolve(model)).glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}".encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def _window(model: str) -> int:
    if model in MODELS:  # so that its plan needs no network
        return MODELS[model].window
    return plan_extension(load_config(model)).rope.original_length
