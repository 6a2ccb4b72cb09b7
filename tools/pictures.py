"""Draw the pictures of README and docs into docs/images, with the package's figure code.

python tools/pictures.py
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from skipwise.method.positions import pose
from skipwise.method.rng import Rng
from skipwise.report import canvas
from skipwise.report.canvas import LOOKS, Plot

IMAGES = Path("docs/images")
WINDOW, TARGET = 1024, 8192
STAGES = [
    ("documents", "your text"),
    ("examples", "short windows, skipped positions"),
    ("training", "a stock model in transformers' Trainer"),
    ("checkpoint", "safetensors, interpolation in the config"),
    ("evaluation", "perplexity, passkeys, baselines"),
    ("report", "one page, with every number"),
]
# Perplexity of SmolLM2-135M by position in one window of 128k: docs/results.md, "SmolLM2, 8k to 128k".
BUCKETS = [8, 16, 32, 64, 128]
SMOLLM2 = {
    "trained under YaRN": ("untrained", [20.0, 22.8, 29.9, 43.4, 59.3]),
    "trained under fitted settings": ("pose", [17.0, 13.8, 17.1, 18.4, 20.0]),
    "original, in windows of 8k": ("original", [18.6, 15.1, 18.7, 18.5, 18.3]),
}


def positions() -> Plot:
    """Return three training windows on the axis of the target."""
    plans = pose(Rng.of(0, 0, np.array([2, 4, 8])), WINDOW, TARGET, np.full(3, 10 * TARGET))
    starts = plans.lengths.cumsum(axis=1) - plans.lengths + plans.skips

    def draw(axes: Any, ink: str) -> None:
        for row, (begins, lengths) in enumerate(zip(starts.tolist(), plans.lengths.tolist(), strict=True)):
            height = 2 - row
            for begin, length, look in zip(begins, lengths, ("untrained", "pose"), strict=True):
                axes.barh(height, length, 0.42, left=begin, color=LOOKS[look].colour)
            skipped = (begins[0] + lengths[0], begins[1])
            axes.annotate(
                "", (skipped[1], height), (skipped[0], height), arrowprops={"arrowstyle": "->", "color": ink, "lw": 1.1}
            )
            axes.text(sum(skipped) / 2, height + 0.12, "skip", ha="center", fontsize=9.5)
        axes.set_yticks([2, 1, 0], ["window 1", "window 2", "window 3"])
        axes.set_xticks([0, 2048, 4096, 6144, 8192], ["0", "2k", "4k", "6k", "8k"])
        axes.set(xlim=(0, TARGET), ylim=(-0.5, 2.6), xlabel="position index")
        axes.grid(visible=False)

    rows = [[row + 1, *values] for row, values in enumerate(np.hstack([starts, plans.lengths]).tolist())]
    return Plot(
        "positions",
        "Windows of 1k at positions up to 8k",
        ["window", "start 1", "start 2", "tokens 1", "tokens 2"],
        rows,
        draw,
    )


def pipeline() -> Plot:
    """Return the stages of a run, from top to bottom."""

    def draw(axes: Any, ink: str) -> None:
        axes.axis("off")
        axes.set(xlim=(0, 1), ylim=(-len(STAGES) + 0.5, 0.6))
        for row, (stage, what) in enumerate(STAGES):
            axes.text(
                0.17, -row, stage, ha="center", va="center", fontweight="bold", fontsize=10,
                bbox={"boxstyle": "round,pad=0.35", "fc": "none", "ec": LOOKS["pose"].colour, "lw": 1.6},
            )  # fmt: skip
            axes.text(0.4, -row, what, va="center", fontsize=9.5)
            if row:
                axes.annotate(
                    "", (0.17, 0.3 - row), (0.17, 0.7 - row), arrowprops={"arrowstyle": "->", "color": ink, "lw": 1.1}
                )

    return Plot("pipeline", "A run", ["stage", "what"], [list(stage) for stage in STAGES], draw)


def smollm2() -> Plot:
    """Return the perplexity of SmolLM2 up to 128k."""

    def draw(axes: Any, ink: str) -> None:
        for label, (look, values) in SMOLLM2.items():
            axes.plot(BUCKETS, values, label=label, **LOOKS[look].line)
        axes.set_xscale("log", base=2)
        axes.set_xticks(BUCKETS, ["0-8k", "8-16k", "16-32k", "32-64k", "64-128k"])
        axes.minorticks_off()
        axes.set(xlabel="position in a window of 128k tokens", ylabel="perplexity", ylim=(0, 65))

    data = [[label, *values] for label, (_, values) in SMOLLM2.items()]
    return Plot("smollm2", "SmolLM2-135M, 8k to 128k", ["model", *map(str, BUCKETS)], data, draw)


def main() -> None:
    """Draw all pictures, as SVG; with a folder, as PNG too, there."""
    with TemporaryDirectory() as folder:
        out = Path(sys.argv[1] if len(sys.argv) > 1 else folder)
        for plot in (positions(), pipeline(), smollm2()):
            canvas.write(plot, out)
            shutil.copy(out / f"{plot.name}.svg", IMAGES)


main()
