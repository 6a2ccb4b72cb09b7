"""Put the records of a reproduction into docs/reproduction/records.jsonl.zst and write the pages from them.

    python -m tools.reproduction_docs OUT --set evaluation.documents=4

Arms of OUT replace those of the same folder name; others stay while an exhibit has them. The recipe changes of the commands that made OUT are
needed to find its arms again; those given here replace the archive's.
"""

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from reproduction.archive import ARCHIVE, Published, pack, unpack
from reproduction.exhibits import EXHIBITS
from reproduction.reproduce import Asked, publish_pages
from reproduction.runs import seeds_in
from reproduction.scales import SCALES
from skipwise.cli.terminal import new_console
from skipwise.recipes.loading import parse_changes


def publish(out: Path, archive: Path, changes: dict) -> None:
    """Add the arms and costs of ``out`` to ``archive``, which is made if it is missing; leave out arms that no exhibit has any more."""
    with tempfile.TemporaryDirectory() as folder:
        together = Path(folder)
        known = unpack(archive, together) if archive.exists() else Published({}, {})
        changes = changes or dict(known.changes)
        shutil.copytree(out / "arms", together / "arms", dirs_exist_ok=True, ignore=shutil.ignore_patterns("model"))
        if (out / "costs.jsonl").exists():
            with open(together / "costs.jsonl", "a", encoding="utf-8") as costs:
                costs.write((out / "costs.jsonl").read_text(encoding="utf-8"))
        asked = Asked(["all"], replace(SCALES["nano"], bases=known.bases), seeds_in(together), changes)
        planned = {run.folder(together).name for name in EXHIBITS for run in asked.plan(name)}
        new, arms = ({arm.name for arm in (folder / "arms").iterdir()} for folder in (out, together))
        if lost := new - planned or (set() if (arms - new) & planned else arms - new):
            raise SystemExit(
                f"no exhibit has the arms {', '.join(sorted(lost))} under the changes {changes}; give theirs by --set"
            )
        for name in sorted(arms - planned):
            print(f"left out, because no exhibit has it any more: {name}")
            shutil.rmtree(together / "arms" / name)
        pack(together, archive, changes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of a python -m reproduction")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE of the recipe; repeatable")
    asked = parser.parse_args()
    publish(asked.out, ARCHIVE, parse_changes(asked.set))
    publish_pages(["all"], new_console())
