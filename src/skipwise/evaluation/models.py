"""Which models are measured: how each is loaded, its lengths, and the base that it is compared with."""

import os
from collections.abc import Iterable, Mapping
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
    """A model that is measured; lengths are in tokens."""

    label: str  # by which records and tables name it
    name: str  # a folder, or a name on the model hub
    original: int  # the window that its base was trained with
    target: int  # what it was extended to, else what its config says
    base: str = ""  # label of the model that it was extended from; empty if that is not known, and for a base
    control: bool = False  # whether it is a base that is measured only to compare others with it
    weights: str = ""  # digest
    extension: Extension | None = None  # an interpolation to set when it is loaded; None: as its config says

    def load(self, precision: str) -> PreTrainedModel:
        """Load it for measuring: on a GPU with weights in ``precision``, else in float32 under autocast."""
        device = default_device()
        dtype = dtype_of(precision) if device.type == "cuda" else torch.float32
        return load_model(self.name, self.extension, dtype=dtype, device=device).eval()

    @property
    def digest(self) -> str:
        """16 hex digits of the weights and the interpolation that is set."""
        extension = "" if self.extension is None else repr(self.extension)
        return short_digest(f"{self.weights}{extension}".encode())

    def as_dict(self) -> dict[str, Any]:
        """The fields for ``run.json``."""
        return {key: value for key, value in vars(self).items() if key != "extension"}


def find_models(
    names: list[str], base: str | None = None, original: int | None = None, length: int | None = None
) -> list[EvaluatedModel]:
    """Find the models ``names``, and after them the bases that are not among them.

    What is not given is read from the ``skipwise.json`` of a model that ``skipwise extend`` made, or from its config,
    which under NTK does not say the original length. An empty ``base`` stands for none. ``length`` in tokens counts for a
    model whose config says none.
    """
    names = [name.rstrip("/") or name for name in names]
    named = {_place(name): name for name in names}
    if len(named) < len(names):
        raise RecipeError(f"models {', '.join(names)}: one is named twice; name each once")
    base_of = {name: _base_of(name) if base is None else base for name in names}
    base_of = {name: named.get(_place(its), its) if its else its for name, its in base_of.items()}
    bases = [name for name in dict.fromkeys(base_of.values()) if name and name not in names]
    labels = dict(zip(names, _labels(names), strict=True))
    labels |= {name: f"{label} (base)" for name, label in zip(bases, _labels(bases), strict=True)}
    own_base = {name: base if base != name else None for name, base in base_of.items()}
    found = [_model(name, labels, own_base[name], original, length) for name in names]
    return [*found, *(_model(name, labels, None, None, length, control=True) for name in bases)]


def _place(name: str) -> str:
    """Where a model lies, which several names may lead to."""
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
            f"model {name!r} has rope_type dynamic: its frequencies depend on the longest text read so far, so its "
            "answers depend on the order of questions. Set another rope_type in its config, as yarn"
        )
    origin = read_origin(name)
    target = promised_length(name, original) or length
    if target is None:
        raise ModelError(
            f"model {name!r} says no length in its config (max_position_embeddings); give the lengths to measure "
            "(--lengths, --windows or --target)"
        )
    made_from = origin.original_length if origin else None
    window = original or made_from or (original_length(config) if promised_length(name) else target)
    if original and original > target:
        raise RecipeError(f"original {original:,} must not exceed the {target:,} tokens of {name}; lower it")
    if base:
        window = min(window, promised_length(base) or window)
    behind = labels[base] if base else ""
    return EvaluatedModel(labels[name], name, min(window, target), target, behind, control, weights_fingerprint(name))


def assumed_length(model: EvaluatedModel) -> str | None:
    """A sentence on what is taken for the original length of a linear scaling that does not state it; None for others."""
    config = load_config(model.name).get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    stated = rope.get("original_max_position_embeddings") or read_origin(model.name)
    if rope.get("rope_type") != "linear" or stated or model.target != config.max_position_embeddings:
        return None
    return (
        f"{model.label}: the config has a linear scaling by {rope['factor']:g} and does not state the original length. Its "
        f"max_position_embeddings, {model.target:,} tokens, counts as the extended length. If that is the original one, give "
        f"--original {model.target}"
    )


def other_base(model: EvaluatedModel, bases: Iterable[EvaluatedModel]) -> str | None:
    """A sentence on a model that is compared with another base than it was extended from; None if it is that base."""
    origin, base = read_origin(model.name), next((one for one in bases if one.label == model.base), None)
    if base is None or origin is None or origin.base_fingerprint in (None, base.weights):
        return None
    # On the hub a model's fingerprint is its commit, which tells nothing of a folder, and there may be a newer one.
    if _is_folder(origin.base) != _is_folder(base.name) or origin.base == base.name:
        return None
    return (
        f"{model.label} was extended from {origin.base}, and is compared with {base.name}: what it costs and how far it reads is "
        "said against another model than its own base"
    )


def _is_folder(name: str) -> bool:
    try:
        return Path(resolve(name)).is_dir()
    except ModelError:  # it is there no more
        return True


def _base_of(name: str) -> str | None:
    """The model that ``skipwise extend`` extended, if it is still there."""
    origin = read_origin(name)
    try:
        if origin is None or not origin.base or not load_config(origin.base):
            return None
    except ModelError:
        return None
    # On the hub a model's fingerprint is its commit, which changes with its card too.
    local = Path(resolve(origin.base)).is_dir()
    if local and origin.base_fingerprint not in (None, weights_fingerprint(origin.base)):
        raise ModelError(
            f"model {name!r} was extended from {origin.base}, whose files have changed since; restore them, or give --base "
            f"{origin.base} to compare with what is there now, or --base none"
        )
    return origin.base


def _labels(names: list[str]) -> list[str]:
    short = [short_name(name) for name in names]
    return [label if short.count(label) == 1 else name for label, name in zip(short, names, strict=True)]
