"""Which models are measured: their lengths, and the base that each of them was extended from."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from skipwise.errors import ModelError, RecipeError
from skipwise.model.loading import load_config, weights_fingerprint
from skipwise.model.rope import original_length


@dataclass(frozen=True)
class Subject:
    """A model that is measured.

    Attributes:
        label: by which records and tables name it.
        name: a folder, or a name on the model hub.
        original: its original length in tokens, of which its base makes use.
        target: the length that its config says.
        base: the label of the model that it was extended from; empty where none is known, and of a base.
        control: whether it is a base that is there only to be compared with.
        weights: their fingerprint.
    """

    label: str
    name: str
    original: int
    target: int
    base: str
    control: bool
    weights: str

    def as_dict(self) -> dict[str, Any]:
        """For ``run.json``."""
        return asdict(self)


def subjects(names: list[str], base: str | None, original: int | None) -> list[Subject]:
    """The models, and behind them the bases that are not among them.

    What is not given is found beside a model that ``skipwise extend`` made, in its run's ``run.json``, or in its config.

    Args:
        names: folders, or names on the model hub.
        base: of all of them; empty for none.
        original: their original length, where neither run nor config says it (as under NTK).

    Raises:
        ModelError: a model cannot be read.
        RecipeError: one is named twice.
    """
    names = [name.rstrip("/") or name for name in names]
    if len(set(names)) < len(names):
        raise RecipeError(f"models {', '.join(names)}: one is named twice; name each once")
    behind = {name: _base_of(name) if base is None else base for name in names}
    bases = [name for name in dict.fromkeys(behind.values()) if name and name not in names]
    labels = dict(zip(names, _labels(names), strict=True)) | {
        name: f"{_short(name)} (base)" for name in bases
    }
    found = [
        _subject(name, original, from_ if from_ != name else None, labels, control=False)
        for name, from_ in behind.items()
    ]
    return [*found, *(_subject(name, None, None, labels, control=True) for name in bases)]


def _subject(
    name: str, original: int | None, base: str | None, labels: Mapping[str, str], *, control: bool
) -> Subject:
    target, label = _length(name), labels[name]
    window = original or run_facts(name).get("original_length") or original_length(load_config(name))
    if original and original > target:
        raise RecipeError(f"original {original:,} must not exceed the {target:,} tokens of {name}; lower it")
    if base:
        window = min(window, _length(base))
    return Subject(
        label,
        name,
        min(window, target),
        target,
        labels[base] if base else "",
        control,
        weights_fingerprint(name),
    )


def _length(name: str) -> int:
    """The most tokens that a model's config says it reads."""
    length = getattr(load_config(name).get_text_config(), "max_position_embeddings", None)
    if not isinstance(length, int):
        raise ModelError(
            f"model {name!r} says no length in its config (max_position_embeddings), and cannot be evaluated"
        )
    return length


def _base_of(name: str) -> str | None:
    """The model that a run of ours extended, if it is still there."""
    base = run_facts(name).get("name")
    try:
        return base if base and load_config(base) else None
    except ModelError:
        return None


def run_facts(name: str) -> dict[str, Any]:
    """What ``skipwise extend`` wrote of a model beside it: base, lengths; empty where it is not there."""
    try:
        folder = Path(name).resolve()
        model = json.loads((folder.parent / "run.json").read_text(encoding="utf-8"))["model"]
        return dict(model) if folder.name == "model" else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _labels(names: list[str]) -> list[str]:
    short = [_short(name) for name in names]
    return [label if short.count(label) == 1 else name for label, name in zip(short, names, strict=True)]


def _short(name: str) -> str:
    """The run's name of a run's model, else the last part."""
    path = Path(name).resolve() if Path(name).exists() else Path(name)
    return path.parent.name if path.name == "model" and path.parent.name else path.name
