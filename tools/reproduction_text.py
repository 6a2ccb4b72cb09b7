"""Lay out more texts for the reproduction than the defaults: those to train on and those to measure on.

    python tools/reproduction_text.py PROSE OUT

PROSE/train/**, PROSE/eval/{books,reports,math}   long plain-text documents, one a file
OUT/train     PROSE/train and the standard library's modules that are not held out
OUT/modules   the held-out modules; OUT/books, OUT/reports, OUT/math as they are under PROSE/eval
"""

import argparse
import shutil
from pathlib import Path

from skipwise.data.text import is_held_out, open_corpus
from skipwise.recipes.schema import Data


def lay_out(prose: Path, out: Path) -> None:
    """Copy ``prose`` and the modules to ``out`` under their own names, which decide their order."""
    shutil.copytree(prose / "train", out / "train")
    for kind in ("books", "reports", "math"):
        shutil.copytree(prose / "eval" / kind, out / kind)
    for module in open_corpus("stdlib"):
        part = "modules" if is_held_out(module.name, Data().held_out) else "train/modules"
        target = out / part / module.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(module.text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("prose", type=Path)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    lay_out(asked.prose, asked.out)
