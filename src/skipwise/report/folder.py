"""What a folder of ``skipwise extend`` or ``skipwise evaluate`` holds, as far as it is still asked for."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from skipwise.errors import RunError, printable
from skipwise.results import token_losses
from skipwise.results.files import file_digest
from skipwise.results.records import OTHER_TEXT, Measured, ReadingRecord, Record, RulerRecord, TrialRecord, read_records
from skipwise.results.run_folder import RunFolder


@dataclass(frozen=True)
class Folder:
    """What a folder of ``extend`` or ``evaluate`` holds."""

    name: str  # shown where several folders are compared
    records: Sequence[Record]
    info: Mapping[str, Any] = field(default_factory=dict)  # ``run.json``; every key may be missing
    recipe: str = ""  # ``recipe.yaml``; empty for an evaluation
    losses: Path | None = None  # where the losses of single tokens are; None where there are none

    @property
    def models(self) -> list[Mapping[str, Any]]:
        """The models of an evaluation, bases included; empty for a run."""
        models: list[Mapping[str, Any]] = self.info.get("evaluation", {}).get("models", [])
        return models

    def model(self, arm: str) -> Mapping[str, Any] | None:
        """What an evaluation says of the model with this label; None for a run."""
        return next((model for model in self.models if model["label"] == arm), None)

    def base_of(self, arm: str) -> str:
        """The label of the model that an arm is compared with; empty for a base, and where none is known."""
        if about := self.model(arm):
            return str(about.get("base") or "")
        return "" if arm == "original" else "original"

    def length(self, key: str, arm: str) -> int | None:
        """A length of an arm's model in tokens; None where ``run.json`` does not hold it."""
        about = self.model(arm) or self.info.get("model", {})
        length: int | None = about.get(key, about.get(f"{key}_length"))
        return length

    @property
    def unfinished(self) -> str:
        """How much of an evaluation is measured, where that is not all; else empty."""
        asked = self.info.get("records")
        made = len({r.key for r in self.records if isinstance(r, ReadingRecord | TrialRecord | RulerRecord)})
        if not isinstance(asked, int) or made >= asked:
            return ""
        return (
            f"Unfinished: {made:,} of {asked:,} records. These numbers are of a part, and prompts are not answered in "
            "the order of their depths. The same skipwise evaluate goes on; if shards are missing, measure them, and "
            "merge all of them into a new folder."
        )


def read_folder(folder: Path, name: str | None = None) -> Folder:
    """Read what ``skipwise extend`` or ``skipwise evaluate`` wrote."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder; give the folder of a run or evaluation, as runs/NAME")
    if not (folder / "run.json").exists() and not (folder / "results.jsonl").exists():
        raise RunError(f"{folder} is neither a run nor an evaluation of skipwise; give the folder of one, as runs/NAME")
    records = read_records(folder / "results.jsonl")
    if not records:
        raise RunError(
            f"{folder} holds no results yet (results.jsonl); finish it: extend with --resume, evaluate by the same "
            "command"
        )
    try:
        run = RunFolder(folder)
        if run.recipe.is_file() and not run.facts.exists():
            raise RunError(f"{folder} has lost run.json; restore it, or let extend --resume write it again")
        info = run.read()
        if not run.recipe.is_file() and ("settings" in info or os.path.lexists(run.recipe)):
            raise RunError(f"{folder} has lost recipe.yaml; restore it")
        recipe = run.recipe.read_text(encoding="utf-8") if run.recipe.is_file() else ""
        if run.recipe.is_file() and info.get("recipe", file_digest(run.recipe)) != file_digest(run.recipe):
            raise RunError(f"{run.recipe} was edited or damaged since the run was begun; restore it")
    except (ValueError, OSError) as error:
        raise RunError(f"{folder}: recipe.yaml cannot be read ({error}); restore it") from None
    if not info and not recipe and all(isinstance(record, Measured) for record in records):
        raise RunError(
            f"{folder} holds what skipwise perplexity and passkey measured, which has no report: the same commands "
            "print their tables again, and skipwise evaluate makes a page. A run or an evaluation that lost run.json needs it back"
        )
    asked = [_shown(record) for record in records if _asked_for(info, record)]
    try:
        losses = folder / token_losses.FOLDER
        told = _shown(name or folder.name), asked, _shown(info), printable(recipe, keep="\n\t")
        return Folder(*told, losses if losses.is_dir() else None)
    except RecursionError:
        raise RunError(f"{run.facts} is damaged (its brackets are nested too deep); restore it") from None


def _shown(value: Any) -> Any:
    """A value of a record or of ``run.json``, its texts as a page, a figure and a terminal may show them."""
    match value:
        case str():
            return printable(value)
        case list():
            return [_shown(item) for item in value]
        case dict():
            return {_shown(key): _shown(item) for key, item in value.items()}
        case _ if isinstance(value, Record):
            raw = {name: text for name, text in vars(value).items() if isinstance(text, str) and text != _shown(text)}
            return replace(value, **_shown(raw)) if raw else value
        case _:
            return value


def _asked_for(info: Mapping[str, Any], record: Record) -> bool:
    """Whether a run still asks for a record: resumed, it may ask for fewer windows, documents, tasks or prompts than before, for
    another stride, or for more or fewer tokens of each document.

    An evaluation asks for all of its records. What ``run.json`` does not say is asked for.
    """
    asked = info.get("evaluation", {})
    if "models" in asked:
        return True
    match record:
        case ReadingRecord(data=data) if data == OTHER_TEXT:
            return bool(asked.get("other", True))
        case TrialRecord() | RulerRecord() if {"prompt_lengths", "trials"} <= asked.keys():
            task = record.task in asked.get("tasks", [record.task])
            return task and record.length in asked["prompt_lengths"] and record.trial < asked["trials"]
        case ReadingRecord(mode="sliding", step=None) if isinstance(asked.get("documents"), dict):
            own = [info.get("model", {}).get("original_length")] if record.arm == "original" else []
            window = "windows" not in asked or record.window in [*asked["windows"], *own]
            stride = record.stride == asked.get("strides", {}).get(str(record.window), record.stride)
            names = asked["documents"].get(record.data, [])
            tokens = dict(zip(names, asked.get("tokens", {}).get(record.data, []), strict=False))
            read = record.document in names and record.edges[-1] == tokens.get(record.document, record.edges[-1])
            return window and stride and read
        case _:
            return True
