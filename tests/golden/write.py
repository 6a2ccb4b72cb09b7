"""Write golden files, all or those that are named, and print what changed: ``python -m tests.golden.write [NAME ...]``."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.golden import compare
from tests.golden.command import workplace
from tests.golden.outcomes import GOLDENS
from tests.golden.runs import Commands

_SHOWN = 200  # lines of a file


def main(names: list[str]) -> None:
    """Write the golden files ``names``; one whose values are the same stays as it is."""
    if unknown := [name for name in names if name not in GOLDENS]:
        raise SystemExit(f"no golden file {unknown[0]!r}; there are {', '.join(GOLDENS)}")
    with TemporaryDirectory() as folder, workplace(Path(folder).resolve()):
        commands = Commands()
        for name in names or GOLDENS:
            found = {part: make(commands) for part, make in GOLDENS[name].items()}
            _write(name, compare.plain(found))


def _write(name: str, found: object) -> None:
    known = (compare.FOLDER / f"{name}.json").exists()
    lines = list(compare.differences(_lined(compare.load(name).values), _lined(found))) if known else ["new"]
    print(f"{name}.json: {f'{len(lines)} changes' if lines else 'unchanged'}")
    for line in lines[:_SHOWN]:
        print(f"  {line}")
    if len(lines) > _SHOWN:
        print(f"  ... and {len(lines) - _SHOWN} more")
    if lines:
        compare.save(name, found)


def _lined(values: Any) -> Any:
    """Texts as dictionaries of their lines, so that a change is shown line by line."""
    if isinstance(values, dict):
        return {key: _lined(value) for key, value in values.items()}
    text = isinstance(values, list) and all(isinstance(line, str) for line in values)
    return {f"line {number}": line for number, line in enumerate(values, 1)} if text else values


if __name__ == "__main__":
    main(sys.argv[1:])
