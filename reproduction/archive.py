"""The published records as one file, ``docs/reproduction/records.jsonl.zst``: every arm, without its weights.

One JSON object a line:

    {"changes": {...}}                               recipe changes that all arms have
    {"arm": FOLDER, "recipe": {...}, "run": {...}}   recipe.yaml and run.json of an arm
    {"arm": FOLDER, "record": {...}}                 a line of its results.jsonl
    {"record": {...}}                                a line of costs.jsonl

``unpack`` makes the folder of a ``python -m reproduction --out`` of it: what is recorded there is not measured again.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
import zstandard

from reproduction.bases import BASES, folder_stem
from skipwise.errors import RunError

DOCS = Path(__file__).parent.parent / "docs"
ARCHIVE = DOCS / "reproduction" / "records.jsonl.zst"
_BASE = re.compile(r"[^\s\"]*/bases/([^/\s]+)/model\b")  # a small base in the cache of the machine that trained it


@dataclass(frozen=True)
class Published:
    """How the archived arms were planned: recipe changes, and the folders of the small bases by name."""

    changes: Mapping[str, Any]
    bases: Mapping[str, str]


def pack(out: Path, archive: Path, changes: Mapping[str, Any]) -> None:
    """Write the arms and costs of the folder ``out`` into ``archive``; the same records give the same bytes."""
    lines = "".join(f"{json.dumps(line)}\n" for line in [{"changes": dict(changes)}, *_lines(out)])
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(zstandard.ZstdCompressor(19).compress(lines.encode()))


def _lines(out: Path) -> Iterator[dict[str, Any]]:
    for arm in sorted((out / "arms").iterdir()):
        recipe = yaml.safe_load(_BASE.sub(r"\1", (arm / "recipe.yaml").read_text(encoding="utf-8")))
        run = json.loads(_BASE.sub(r"\1", (arm / "run.json").read_text(encoding="utf-8")))
        for name in ("command", "check", "recipe"):  # it has paths of the machine; seals of files that are written anew
            run.pop(name, None)
        yield {"arm": arm.name, "recipe": recipe, "run": run}
        for record in _records(arm / "results.jsonl"):
            if record["kind"] != "coverage":  # computed, not measured
                yield {"arm": arm.name, "record": record}
    for line in dict.fromkeys(json.dumps(record) for record in _records(out / "costs.jsonl")):  # published before: once
        yield {"record": json.loads(line)}


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file without the hashes that follow from the rest, a third of the archive's bytes."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for line in text.splitlines():
        record = json.loads(line)
        derived = ("check",) if record["kind"] == "cost" else ("check", "key")  # that of a cost says what it is of
        yield {name: value for name, value in record.items() if name not in derived}


def unpack(archive: Path, out: Path) -> Published:
    """Write the arms and costs of ``archive`` under ``out``, replacing what has the same names.

    Raises:
        RunError: there is no archive, or it is damaged.
    """
    changes, bases = dict[str, Any](), dict[str, str]()
    files = dict[Path, list[str]]()
    try:
        for line in zstandard.decompress(archive.read_bytes()).decode().splitlines():
            entry = json.loads(line)
            if "changes" in entry:
                changes = entry["changes"]
            elif "recipe" in entry:
                folder, recipe = out / "arms" / Path(entry["arm"]).name, entry["recipe"]
                files[folder / "recipe.yaml"] = [yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)]
                files[folder / "run.json"] = [f"{json.dumps(entry['run'], indent=2)}\n"]
                bases |= {name: recipe["model"] for name in BASES if _is_base(recipe["model"], name)}
            else:
                path = (
                    out / "arms" / Path(entry["arm"]).name / "results.jsonl" if "arm" in entry else out / "costs.jsonl"
                )
                files.setdefault(path, []).append(f"{json.dumps(entry['record'])}\n")
    except (OSError, ValueError, KeyError, TypeError, zstandard.ZstdError) as error:
        raise RunError(f"{archive} cannot be read ({error!r}); take it from the repository again") from None
    for path, lines in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines), encoding="utf-8")
    return Published(changes, bases)


def _is_base(model: str, name: str) -> bool:
    return model.rpartition("-")[0] == folder_stem(name)
