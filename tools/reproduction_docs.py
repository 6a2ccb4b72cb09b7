"""Put a reproduction into docs/: the page, its figures, and the records that it was made from.

    python tools/reproduction_docs.py OUT

docs/reproduction.md             the page of OUT, its links moved
docs/reproduction/figures/       SVG, and CSV of what is drawn
docs/reproduction/arms/, costs.jsonl   recipe, facts and records of each arm, without its weights: copied into an OUT of
                                 one's own, they are not measured again, and the page can be made from them
"""

import argparse
import json
import re
import shutil
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def publish(out: Path, docs: Path) -> None:
    """Write the page, figures and records of ``out`` under ``docs``; arms that are there already are replaced."""
    page = (out / "reproduction.md").read_text(encoding="utf-8")
    (docs / "reproduction.md").write_text(
        page.replace("](figures/", "](reproduction/figures/"), encoding="utf-8"
    )
    figures = docs / "reproduction" / "figures"
    shutil.rmtree(figures, ignore_errors=True)
    figures.mkdir(parents=True)
    for file in sorted((out / "figures").iterdir()):
        if file.suffix in (".svg", ".csv"):
            shutil.copy(file, figures)
    for arm in sorted((out / "arms").iterdir()):
        copy_records(arm, docs / "reproduction" / "arms" / arm.name)
    if (out / "costs.jsonl").exists():
        shutil.copy(out / "costs.jsonl", docs / "reproduction")


def copy_records(arm: Path, target: Path) -> None:
    """Copy what says how an arm was made and what was measured of it; coverage curves are computed, not measured."""
    target.mkdir(parents=True, exist_ok=True)
    recipe = (arm / "recipe.yaml").read_text(encoding="utf-8")
    recipe = re.sub(
        r"(?m)^model: .*/bases/([^/]+)/model$", r"model: \1", recipe
    )  # a base in this machine's cache
    (target / "recipe.yaml").write_text(recipe, encoding="utf-8")
    facts = json.loads((arm / "run.json").read_text(encoding="utf-8"))
    facts.pop("command", None)  # has paths of the machine
    (target / "run.json").write_text(_without_cache(json.dumps(facts, indent=2)) + "\n", encoding="utf-8")
    lines = (arm / "results.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["kind"] != "coverage"]
    (target / "results.jsonl").write_text("".join(kept), encoding="utf-8")


def _without_cache(text: str) -> str:
    """A small base by its name, without where this machine's cache lies."""
    return re.sub(r"[^\s\"]*/bases/([^/\s]+)/model\b", r"\1", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of a skipwise reproduce")
    publish(parser.parse_args().out, DOCS)
