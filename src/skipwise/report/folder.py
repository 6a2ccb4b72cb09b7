"""Read a folder of ``skipwise extend`` or ``skipwise evaluate``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skipwise.errors import RunError
from skipwise.results.records import OTHER_TEXT, ReadingRecord, Record, RulerRecord, TrialRecord, read_records
from skipwise.results.run_folder import RunFolder


@dataclass(frozen=True)
class Folder:
    """The records and the facts of one run or evaluation."""

    name: str  # in reports of several folders
    records: Sequence[Record]
    info: Mapping[str, Any] = field(default_factory=dict)  # ``run.json``; every key may be missing
    recipe: str = ""  # ``recipe.yaml``; empty for an evaluation

    @property
    def models(self) -> list[Mapping[str, Any]]:
        """Models of an evaluation, bases included; empty for a run."""
        models: list[Mapping[str, Any]] = self.info.get("evaluation", {}).get("models", [])
        return models

    def model(self, arm: str) -> Mapping[str, Any] | None:
        """Return the facts of an evaluated model; None for a run."""
        return next((model for model in self.models if model["label"] == arm), None)

    def base_of(self, arm: str) -> str:
        """Return the label of a model's base, or empty."""
        if model := self.model(arm):
            return str(model.get("base") or "")
        return "" if arm == "original" else "original"

    def length(self, key: str, arm: str) -> int | None:
        """Return the ``original`` or ``target`` length in tokens, or None."""
        facts = self.model(arm) or self.info.get("model", {})
        length: int | None = facts.get(key, facts.get(f"{key}_length"))
        return length

    @property
    def unfinished(self) -> str:
        """Sentence on missing records of an evaluation; empty if it is complete."""
        planned = self.info.get("records")
        made = len({r.key for r in self.records if isinstance(r, ReadingRecord | TrialRecord | RulerRecord)})
        if not isinstance(planned, int) or made >= planned:
            return ""
        return (
            f"Unfinished: {made:,} of {planned:,} records. Prompts are not answered in the order of their depths, so the "
            "numbers of a part mislead. Run the same skipwise evaluate again; with shards, measure the missing ones and merge "
            "all into a new folder."
        )


def read_folder(folder: Path, name: str | None = None) -> Folder:
    """Read a run or an evaluation.

    Raises:
        RunError: the folder has no results, or a file of it is damaged.
    """
    records = read_records(folder / "results.jsonl")
    if not records:
        raise RunError(
            f"{folder} has no results.jsonl; give the folder of a run or an evaluation, or finish it: extend with --resume, "
            "evaluate by the same command"
        )
    run = RunFolder(folder)
    info = run.read()
    recipe = run.recipe.read_text(encoding="utf-8") if run.recipe.is_file() else ""
    return Folder(name or folder.name, [record for record in records if _is_current(info, record)], info, recipe)


def _is_current(info: Mapping[str, Any], record: Record) -> bool:
    """Return whether a run still measures a record.

    A resumed run may have fewer windows, documents, tasks or prompts than before, another stride or another length of its
    documents. All records of an evaluation are current.
    """
    settings = info.get("evaluation", {})
    if "models" in settings:
        return True
    match record:
        case ReadingRecord(data=data) if data == OTHER_TEXT:
            return bool(settings.get("other", True))
        case TrialRecord() | RulerRecord() if {"prompt_lengths", "trials"} <= settings.keys():
            task = record.task in settings.get("tasks", [record.task])
            return task and record.length in settings["prompt_lengths"] and record.trial < settings["trials"]
        case ReadingRecord(mode="sliding", step=None) if isinstance(settings.get("documents"), dict):
            own = [info.get("model", {}).get("original_length")] if record.arm == "original" else []
            window = "windows" not in settings or record.window in [*settings["windows"], *own]
            stride = record.stride == settings.get("strides", {}).get(str(record.window), record.stride)
            documents = settings["documents"].get(record.data, [])
            tokens = dict(zip(documents, settings.get("tokens", {}).get(record.data, []), strict=False))
            document = record.document in documents
            return window and stride and document and record.edges[-1] == tokens.get(record.document, record.edges[-1])
        case _:
            return True
