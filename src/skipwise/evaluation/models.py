"""Models to measure: how each is loaded, its lengths, and its base."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from skipwise.errors import ModelError, RecipeError
from skipwise.model.config import load_config, original_length, resolve
from skipwise.model.extension import Extension
from skipwise.model.loading import load_model
from skipwise.model.origin import promised_length, read_origin, require_unchanged, weights_fingerprint
from skipwise.model.precision import default_device, dtype_of
from skipwise.recipes.names import short_name
from skipwise.results.files import short_digest


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
        RecipeError: a model is given twice.
        ModelError: a model is missing, has ``rope_type: dynamic``, or has no length.
    """
    names = [name.rstrip("/") or name for name in names]
    named = {_place(name): name for name in names}
    if len(named) < len(names):
        raise RecipeError(f"models {', '.join(names)} contain one twice; give each once")
    base_of = {name: _base_of(name) if base is None else base for name in names}
    base_of = {name: named.get(_place(its), its) if its else its for name, its in base_of.items()}
    bases = [name for name in dict.fromkeys(base_of.values()) if name and name not in names]
    labels = dict(zip(names, _labels(names), strict=True))
    labels |= {name: f"{label} (base)" for name, label in zip(bases, _labels(bases), strict=True)}
    own_base = {name: base if base != name else None for name, base in base_of.items()}
    found = [_model(name, labels, own_base[name], original, length) for name in names]
    return [*found, *(_model(name, labels, None, None, length, control=True) for name in bases)]


def _place(name: str) -> str:
    """Return the real path of a model, which may have several names."""
    return os.path.realpath(resolve(name))


def _model(
    name: str,
    labels: Mapping[str, str],
    base: str | None,
    original: int | None,
    length: int | None,
    *,
    control: bool = False,
) -> EvaluatedModel:
    require_unchanged(Path(resolve(name)))
    config = load_config(name)
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    if rope.get("rope_type") == "dynamic":
        raise ModelError(
            f"model {name!r} has rope_type dynamic: answers depend on earlier prompts; set another rope_type, e.g. yarn"
        )
    origin = read_origin(name)
    target = promised_length(name, original) or length
    if target is None:
        raise ModelError(
            f"the config of {name!r} has no max_position_embeddings; give the lengths by --lengths or --target"
        )
    made_from = origin.original_length if origin else None
    window = original or made_from or (original_length(config) if promised_length(name) else target)
    if base:
        window = min(window, promised_length(base) or window)
    label = labels[base] if base else ""
    return EvaluatedModel(labels[name], name, min(window, target), target, label, control, weights_fingerprint(name))


def assumed_length(model: EvaluatedModel) -> str:
    """Return a warning if a linear scaling does not state the original length, else an empty string."""
    config = load_config(model.name).get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    stated = rope.get("original_max_position_embeddings") or read_origin(model.name)
    if rope.get("rope_type") != "linear" or stated or model.target != config.max_position_embeddings:
        return ""
    return (
        f"{model.label}: max_position_embeddings, {model.target:,}, counts as the length after the linear scaling by "
        f"{rope['factor']:g}; if it is the original length, give --original {model.target}"
    )


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
