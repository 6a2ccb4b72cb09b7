"""The published records as one file, ``docs/reproduction/records.jsonl.zst``: every run, without its weights.

``python -m reproduction --publish`` writes it. The first line has the recipe changes of the commands that made the records,
which are needed to find its runs again; the others are files: ``{"path": "arms/pose-0123.../results.jsonl", "text": ...}``.
"""

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
from rich.console import Console

from reproduction.exhibits import EXHIBITS
from reproduction.page import write_pages
from reproduction.runs import SCALES, plan_runs, seeds_in

DOCS = Path(__file__).parent.parent / "docs"
ARCHIVE = DOCS / "reproduction" / "records.jsonl.zst"
_BASE = re.compile(r"[^\s\"]*/bases/([^/\s]+)/model\b")  # a small base on the machine that trained it


def pack(out: Path, archive: Path, changes: Mapping[str, Any]) -> None:
    """Write the runs and costs of the folder ``out`` into ``archive``; the same records give the same bytes."""
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
    with pyarrow.input_stream(str(archive)) as stream:
        first, *lines = map(json.loads, stream.read().decode().splitlines())
    for line in lines:
        path = out / line["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(line["text"], encoding="utf-8")
    return dict(first["changes"])


def publish_pages(console: Console, docs: Path = DOCS, archive: Path = ARCHIVE) -> None:
    """Write the pages of all exhibits under ``docs`` from the published records."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        changes = unpack(archive, out)
        plans = {
            name: plan_runs(exhibit, SCALES["nano"], out, seeds=seeds_in(out), changes=changes)
            for name, exhibit in EXHIBITS.items()
        }
        write_pages(plans, out, docs / "reproduction", docs / "reproduction.md")
    console.print(f"page: {docs / 'reproduction.md'}", soft_wrap=True)
