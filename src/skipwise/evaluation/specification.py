"""What is measured: the models, and the recipe's section ``evaluation`` with its defaults resolved."""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field, ValidationError
from transformers import PreTrainedModel

from skipwise.data import ruler
from skipwise.data.prompts import TASKS
from skipwise.data.text import other_source
from skipwise.errors import ModelError, RecipeError, counted, one_of, reason
from skipwise.evaluation.perplexity import sliding_windows
from skipwise.model.config import (
    load_config,
    original_length,
    promised_length,
    read_origin,
    require_unchanged,
    resolve,
    weights_fingerprint,
)
from skipwise.model.extension import Extension
from skipwise.model.forward import default_device, dtype_of
from skipwise.model.loading import load_model
from skipwise.recipes.names import short_name
from skipwise.recipes.schema import Data, Evaluation, Recipe
from skipwise.results.files import short_digest
from skipwise.results.scores import FOUND
from skipwise.results.statistics import (
    POWER,
    fewest_prompts,
    least_hits,
    prompts_for_difference,
    smallest_difference,
    wilson_interval,
)

if TYPE_CHECKING:
    from skipwise.evaluation.texts import EvaluationText

RULER = "ruler:"  # prefix of RULER's tasks


@dataclass(frozen=True)
class EvaluatedModel:
    """A model to measure; lengths are in tokens."""

    label: str  # in records and tables
    name: str  # a folder, or a name on the model hub
    original: int  # original length
    target: int  # target length, or the length in the config
    base: str = ""  # label of the base; empty for a base, or if the base is unknown
    control: bool = False  # whether it is measured only as the base of others
    weights: str = ""  # fingerprint
    extension: Extension | None = None  # interpolation to set when loading; None: the config's

    def load(self, precision: str) -> PreTrainedModel:
        """Load the model: on a GPU with weights in ``precision``, else in float32 under autocast."""
        device = default_device()
        dtype = dtype_of(precision) if device.type == "cuda" else torch.float32
        return load_model(self.name, self.extension, dtype=dtype, device=device).eval()

    @property
    def digest(self) -> str:
        """16 hex digits of the weights and the interpolation."""
        extension = "" if self.extension is None else repr(self.extension)
        return short_digest(f"{self.weights}{extension}".encode())

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for ``run.json``."""
        return {key: value for key, value in vars(self).items() if key != "extension"}


def find_models(
    names: list[str], base: str | None = None, original: int | None = None, length: int | None = None
) -> list[EvaluatedModel]:
    """Find the models ``names``, followed by the bases that are not among them.

    Base and lengths that are not given come from ``skipwise.json`` of a model that ``skipwise extend`` made, or from the
    config. An empty ``base`` means no base. ``length`` in tokens is for a config without a length.

    Raises:
        ModelError: a model is missing, has ``rope_type: dynamic``, or has no length.
    """
    named = {_place(name): name.rstrip("/") for name in names}
    names, base_of = list(named.values()), dict[str, str]()
    for name in names:
        made_from = (_base_of(name) if base is None else base) or ""
        made_from = named.get(_place(made_from), made_from) if made_from else ""
        base_of[name] = "" if made_from == name else made_from
    bases = [name for name in dict.fromkeys(base_of.values()) if name and name not in names]
    labels = dict(zip(names, _labels(names), strict=True))
    labels |= {name: f"{label} (base)" for name, label in zip(bases, _labels(bases), strict=True)}
    models = []
    for name in (*names, *bases):
        require_unchanged(Path(resolve(name)))
        rope = getattr(load_config(name).get_text_config(), "rope_parameters", None) or {}
        if rope.get("rope_type") == "dynamic":
            raise ModelError(
                f"model {name!r} has rope_type dynamic: answers depend on earlier prompts; set another rope_type, e.g. yarn"
            )
        control, own_base = name in bases, base_of.get(name, "")
        lengths = _lengths(name, own_base, None if control else original, length)
        label, weights = labels.get(own_base, ""), weights_fingerprint(name)
        models.append(EvaluatedModel(labels[name], name, *lengths, label, control, weights))
    return models


def _place(name: str) -> str:
    """Return the real path of a model, which may have several names."""
    return os.path.realpath(resolve(name))


def _base_of(name: str) -> str | None:
    """Return the model that ``skipwise extend`` extended, if it still exists."""
    origin = read_origin(name)
    try:
        return origin.base if origin and origin.base and load_config(origin.base) else None
    except ModelError:
        return None


def _labels(names: list[str]) -> list[str]:
    short = [short_name(name) for name in names]
    return [label if short.count(label) == 1 else name for label, name in zip(short, names, strict=True)]


def _lengths(name: str, base: str, original: int | None, length: int | None) -> tuple[int, int]:
    """Return a model's original and target length."""
    promised, origin = promised_length(name), read_origin(name)
    target = promised_length(name, original) or length
    if target is None:
        raise ModelError(
            f"the config of {name!r} has no max_position_embeddings; give the lengths by --lengths or --target"
        )
    made_from = origin.original_length if origin else None
    window = original or made_from or (original_length(load_config(name)) if promised else target)
    if base:
        window = min(window, promised_length(base) or window)
    return min(window, target), target


def assumed_length(model: EvaluatedModel) -> str:
    """Return a warning if a linear scaling states no original length, or ""."""
    config = load_config(model.name).get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    stated = rope.get("original_max_position_embeddings") or read_origin(model.name)
    if rope.get("rope_type") != "linear" or stated or model.target != config.max_position_embeddings:
        return ""
    return (
        f"{model.label}: max_position_embeddings, {model.target:,}, counts as the length after the linear scaling by "
        f"{rope['factor']:g}; if it is the original length, give --original {model.target}"
    )


class Specification(Evaluation):
    """The recipe's section ``evaluation`` with defaults resolved; lengths are in tokens."""

    texts: list[Data] = Field([])
    windows: list[int] = Field([])  # ascending
    original: int = 1  # original length
    target: int = 1  # target length
    documents: int = Field(8, ge=0)
    windows_per_document: int = 1  # times the largest window that is read of each document
    tasks: list[str] = Field([])
    prompt_lengths: list[int] = Field([])
    segment_lengths: list[int] = Field([])  # read once, for loss by position
    segments: int = 32  # at most, of each of these lengths
    seed: int = Field(0, ge=0)  # of the prompts
    depths: Literal["random", "spread"] = "spread"  # of the hidden number: random as in the paper, or over tenths
    precision: str = "float32"
    ruler_data: Path | None = None  # type: ignore[assignment]
    server: str | None = None  # engine that answers the prompts

    def stride_of(self, window: int) -> int:
        """Return the stride: ``stride``, or max(original / 2, target / 16), at most half the window.

        The default also serves a base's window that is narrower than ``stride``.
        """
        if self.stride and (self.stride <= window or window in self.windows):
            return self.stride
        return min(max(self.original // 2, self.target // 16), window // 2)

    def tokens_read(self, longest: int) -> int:
        """Return the tokens that are read of a document, where ``longest`` is the largest window."""
        return self.tokens_per_document or self.windows_per_document * longest

    @property
    def facts(self) -> dict[str, Any]:
        """The settings for ``run.json``."""
        unused = {"texts", "models", "source", "eval_steps", "save_best"}
        texts = [{"source": text.source, **text.reading} for text in self.texts]
        return self.model_dump(mode="json", exclude=unused) | {"texts": texts}

    def warnings(self, targets: Collection[int], texts: Sequence["EvaluationText"]) -> Iterator[str]:
        """Yield what these settings cannot show, and lengths beyond the models' target lengths."""
        trials = self.num_prompts
        if "passkey" in self.tasks and wilson_interval(trials, trials)[0] < FOUND:
            yield (
                f"{counted(trials, 'prompt')} cannot show an effective length ({FOUND:.0%} of the passkeys found); ask for "
                f"{fewest_prompts(FOUND)} or more"
            )
        if "passkey" in self.tasks and texts and len(texts[0].documents) == 1:
            yield (
                f"one document cannot show an effective length; give two or more with {texts[0].windows[-1]:,} tokens"
            )
        longest = max((*self.windows, *self.prompt_lengths, *self.segment_lengths), default=0)
        for target in sorted(targets):
            if longest > target:
                yield f"a model for {target:,} tokens is expected to fail at {longest:,}"

    @property
    def power(self) -> str:
        """What the prompts can show of two models, and of passkeys."""
        prompts, hits = self.num_prompts, least_hits(FOUND, self.num_prompts)
        passkeys = f"; {hits} right passkeys show {FOUND:.0%}" if hits and "passkey" in self.tasks else ""
        return (
            f"{counted(prompts, 'prompt')} a task and length can show {100 * smallest_difference(prompts):.0f} points between two "
            f"models (95% interval, power {POWER:.0%}); 5 points take {prompts_for_difference(0.05):,}{passkeys}"
        )


def is_ruler(task: str) -> bool:
    """Return whether a task is one of RULER's."""
    return task.startswith(RULER)


def read_tasks(names: Sequence[str], ruler_data: Path | None = None) -> list[str]:
    """Return the tasks of names such as ``passkey``, ``ruler``, ``ruler:vt`` and ``vt:hops=2``, each once.

    ``ruler`` is all of RULER's tasks that can be made: questions need files in ``ruler_data``. The part after a comma in
    ``vt:hops=2,chains=3`` belongs to the name before it.

    Raises:
        RecipeError: a task is unknown.
    """
    whole: list[str] = []
    for name in filter(None, (name.strip() for name in names)):
        if "=" in name and ":" not in name and whole:
            whole[-1] += f",{name}"
        else:
            whole.append(name)
    tasks: list[str] = []
    for name in whole:
        own = name.removeprefix(RULER)
        if name == RULER.removesuffix(":"):
            tasks += [RULER + task for task in ruler.possible_tasks(ruler.read_ruler_data(ruler_data))]
        elif is_ruler(name) or own.partition(":")[0] in ruler.TASKS:
            tasks.append(RULER + ruler.canonical(own))
        else:
            tasks.append(one_of("task", name, [*TASKS, RULER.removesuffix(":"), *ruler.TASKS]))
    return list(dict.fromkeys(tasks))


def doubled_windows(original: int, target: int) -> list[int]:
    """Return the original length, doubled up to the target, and the target."""
    return [*(original * 2**k for k in range(32) if original * 2**k < target), target]


def specify(original: int, target: int, **settings: Any) -> Specification:
    """Resolve the defaults of ``settings`` for an original and a target length in tokens.

    Raises:
        RecipeError: a setting breaks its rule, or a task is unknown.
    """
    windows = sorted(set(settings.get("windows") or doubled_windows(original, target)))
    asks = settings.get("num_prompts", 50) > 0 and bool(settings.get("tasks"))
    data = settings.get("ruler_data")
    resolved = {
        "windows": windows,
        "tasks": read_tasks(settings["tasks"], Path(data) if data else None) if asks else [],
        "prompt_lengths": (settings.get("prompt_lengths") or windows) if asks else [],
    }
    try:
        made = Specification(**{**settings, **resolved, "original": original, "target": target})
    except ValidationError as error:
        raise RecipeError(f"{reason(error)}; correct it") from None
    for window in windows:
        sliding_windows(window, window, made.stride_of(window))  # refuses a stride that does not fit
    return made


def specification_of(recipe: Recipe, original: int, target: int, precision: str) -> Specification:
    """Resolve a recipe's section ``evaluation``."""
    return specify(
        original,
        target,
        **recipe.evaluation.model_dump(),
        texts=[other_source(recipe.data, source) for source in recipe.measured_sources],
        windows_per_document=2,
        seed=recipe.seed,
        depths="random",
        precision=precision,
    )
