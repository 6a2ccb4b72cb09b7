"""What a command left behind, how a case ended, and the table of all cases."""

import hashlib
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GOOD = ("ok", "refused", "repaired", "said", "not read")
BAD = ("SILENT", "TRACEBACK", "HANG", "UNUSABLE", "UNCLEAR")
_TIMES = ("seconds", "tokens_per_second")  # fields of a record that two equal measurements differ in
_CHANGING = ("created", "command", "training")  # fields of run.json that two equal runs differ in
_VARIES = ("report.html", "README.md", "trainer_state.json", "training_args.bin", "complete.json")


@dataclass(frozen=True)
class Result:
    """How one case ended: ``outcome`` is one of ``GOOD`` or ``BAD``."""

    group: str
    case: str
    outcome: str
    detail: str = ""

    @property
    def bad(self) -> bool:
        return self.outcome in BAD


def fruits(folder: Path, makes: Sequence[str]) -> dict[str, str]:
    """Return each result file with a hash of what two equal runs have in common; hidden files are no results."""
    found: dict[str, str] = {}
    for path in sorted(path for name in makes for path in _files(folder / name)):
        name = path.relative_to(folder).as_posix()
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            found[name] = _hash(path)
    return found


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir() and not path.is_symlink():
        yield from (below for below in path.rglob("*") if not below.is_dir() or below.is_symlink())
    elif os.path.lexists(path):
        yield path


def _hash(path: Path) -> str:
    if not stat.S_ISREG(path.lstat().st_mode):
        return "no file"
    data = path.read_bytes()
    if path.name in _VARIES:
        data = b"" if data else b"empty"
    with suppress(ValueError, AttributeError):  # damaged: its bytes
        if path.name == "run.json":
            facts = {key: fact for key, fact in json.loads(data).items() if key not in _CHANGING}
            data = json.dumps(facts, sort_keys=True).encode()
        elif path.suffix == ".jsonl" and path.name != "names.jsonl":
            lines = [{k: v for k, v in json.loads(line).items() if k not in _TIMES} for line in data.splitlines()]
            data = "\n".join(sorted(json.dumps(line, sort_keys=True) for line in lines)).encode()
    return hashlib.sha256(data).hexdigest()[:12]


def difference(got: dict[str, str], wanted: dict[str, str]) -> str:
    """Say in a few words how two results differ; nothing if they are equal."""
    lost, more = sorted(wanted.keys() - got.keys()), sorted(got.keys() - wanted.keys())
    other = sorted(name for name in wanted.keys() & got.keys() if wanted[name] != got[name])
    parts = [("lost", lost), ("left over", more), ("changed", other)]
    return "; ".join(f"{word} {', '.join(names[:4])}" for word, names in parts if names)


def summary(results: Sequence[Result]) -> str:
    """A Markdown table: how many cases of each group ended how."""
    counts = Counter((one.group, one.outcome) for one in results)
    groups = list(dict.fromkeys(one.group for one in results))
    kinds = [kind for kind in (*GOOD, *BAD) if any(counts[group, kind] for group in groups)]
    lines = [f"| attack | cases | {' | '.join(kinds)} |", "|---" * (len(kinds) + 2) + "|"]
    for group in groups:
        numbers = [counts[group, kind] for kind in kinds]
        lines.append(f"| {group} | {sum(numbers)} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def causes(results: Sequence[Result]) -> str:
    """One line for each kind of failure, with how often it was seen and one case of it."""
    found: dict[tuple[str, ...], list[Result]] = {}
    for one in filter(lambda one: one.bad, results):
        found.setdefault((one.group, one.outcome, _shape(one.detail)), []).append(one)
    lines = [
        f"{len(ones):4} {ones[0].outcome} [{ones[0].group}] {ones[0].case}: {ones[0].detail}" for ones in found.values()
    ]
    return "\n".join(sorted(lines, reverse=True))


def _shape(detail: str) -> str:
    return "".join("#" if letter.isdigit() else letter for letter in detail)[:160]
