"""The published records as one file, ``docs/reproduction/records.jsonl.zst``: every run, without its weights.

``python -m reproduction --publish`` writes it. The recipe changes of the commands that made the records are needed to find
its runs again. The first line has them, the others are files: ``{"path": "arms/pose-0123.../results.jsonl", "text": ...}``.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow

from reproduction.exhibits import EXHIBITS
from reproduction.runs import SCALES, plan_runs, seeds_in
from skipwise.errors import RunError

DOCS = Path(__file__).parent.parent / "docs"
ARCHIVE = DOCS / "reproduction" / "records.jsonl.zst"
_BASE = re.compile(r"[^\s\"]*/bases/([^/\s]+)/model\b")  # a small base on the machine that trained it


def pack(out: Path, archive: Path, changes: Mapping[str, Any]) -> None:
    """Write the runs and costs of the folder ``out`` into ``archive``; the same records give the same bytes."""
    plans = (plan_runs(each, SCALES["nano"], out, seeds=seeds_in(out), changes=changes) for each in EXHIBITS.values())
    planned = {run.folder(out).name for runs in plans for run in runs}
    if strangers := sorted({path.parent.name for path in out.glob("arms/*/recipe.yaml")} - planned):
        raise RunError(
            f"no exhibit has {', '.join(strangers)} under the changes {dict(changes)}; give theirs, or remove it"
        )
    lines: list[dict[str, Any]] = [{"changes": dict(changes)}]
    for path in sorted([*out.glob("arms/*/recipe.yaml"), *out.glob("arms/*/*.json*"), *out.glob("costs.jsonl")]):
        text = _BASE.sub(r"\1", path.read_text(encoding="utf-8"))
        if path.name == "run.json":  # its command has paths, and its seal is of a file that is written anew
            text = json.dumps({name: v for name, v in json.loads(text).items() if name not in ("command", "check")})
        if path.name == "results.jsonl":  # what is computed, not measured, is left out
            text = "".join(line for line in text.splitlines(keepends=True) if '"kind": "coverage"' not in line)
        lines.append({"path": path.relative_to(out).as_posix(), "text": text})
    archive.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    archive.write_bytes(pyarrow.Codec("zstd", 19).compress(text.encode(), asbytes=True))


def unpack(archive: Path, out: Path) -> dict[str, Any]:
    """Write the files of ``archive`` under ``out``, and return the recipe changes; without an archive, nothing."""
    if not archive.exists():
        return {}
    try:
        with pyarrow.input_stream(str(archive)) as stream:
            first, *lines = map(json.loads, stream.read().decode().splitlines())
        for line in lines:
            path = out / line["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(line["text"], encoding="utf-8")
        return dict(first["changes"])
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{archive} cannot be read ({error!r}); take it from the repository again") from None
