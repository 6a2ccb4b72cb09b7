"""Results -> the trackers that ``training.report_to`` names: curves of measured steps, the final numbers, table and figures.

transformers' callbacks log the training. Measuring comes after it, so the rest is logged at the end, from the records, by
accelerate's trackers and into the same run. A tracker that fails stops nothing: the run folder holds everything.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from accelerate import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS
from PIL import Image
from rich.console import Console

from skipwise.errors import reason
from skipwise.method.lengths import format_length
from skipwise.recipes.names import arm_name
from skipwise.report.by_step import perplexity_by_step
from skipwise.report.folder import Folder
from skipwise.report.ruler_tables import ruler_name
from skipwise.report.summary import rows_of
from skipwise.report.tables import summary_cells, summary_markdown
from skipwise.results.files import short_digest
from skipwise.results.run_folder import RunFolder

PROJECT = "skipwise"

_KNOWN = ("tensorboard", "wandb", "trackio")
_STEP = "train/global_step"  # by which transformers has wandb draw curves


@contextmanager
def one_run(run: RunFolder) -> Iterator[None]:
    """In this context all that logs, also after a resume, logs into one run, and its files lie in the run folder.

    What the user's environment says already stays.
    """
    folder = run.path.absolute()
    ours = {
        "TENSORBOARD_LOGGING_DIR": str(folder / "events"),
        "WANDB_DIR": str(folder),
        "WANDB_PROJECT": PROJECT,
        "WANDB_RUN_ID": short_digest(f"{run.identity} {run.read().get('created')}".encode()),
        "WANDB_RESUME": "allow",
    }
    ours = {name: value for name, value in ours.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def log_results(trackers: Sequence[str], run: RunFolder, measured: Folder, console: Console) -> None:
    """Log what a finished run measured to those of ``trackers`` that accelerate knows by the same names; once."""
    told = run.read().get("logged") or []
    for name in [name for name in trackers if name in _KNOWN and name in LOGGER_TYPE_TO_CLASS and name not in told]:
        try:
            _log(name, run, measured)
        except Exception as error:  # the network, an account or a tracker's own files
            console.print(
                f"{name}: the results were not logged ({type(error).__name__}: {reason(error)}); they are in {run.path}, and "
                "--resume logs them",
                style="yellow",
            )
        else:
            told = [*told, name]
            run.record(logged=told)


def _log(name: str, run: RunFolder, measured: Folder) -> None:
    PartialState()  # accelerate's trackers ask it which process is the first
    options: dict[str, dict[str, Any]] = {
        "tensorboard": {"logging_dir": os.environ["TENSORBOARD_LOGGING_DIR"]},
        "wandb": {"name": run.path.name},  # the rest it finds in the environment
        "trackio": {"name": run.path.name, "resume": "allow"},
    }
    place = {"tensorboard": ".", "wandb": os.environ["WANDB_PROJECT"], "trackio": PROJECT}[name]
    tracker = LOGGER_TYPE_TO_CLASS[name](place, **options[name])
    tracker.start()
    last = int((run.read().get("training") or {}).get("steps", 0))

    def log(values: dict[str, Any], step: int) -> None:
        tracker.log(values | ({} if name == "tensorboard" else {_STEP: step}), step=None if name == "wandb" else step)

    for (mode, window), curve in perplexity_by_step(measured).items():
        for step, perplexity in curve.items():
            log({f"evaluation/perplexity {mode} {format_length(window)}": perplexity.mean}, step)
    log(_numbers(measured), last)
    log({"results/table": summary_markdown(measured)}, last)
    if hasattr(tracker, "log_table"):
        head, rows = summary_cells(measured)
        tracker.log_table("results/summary", columns=head, data=rows)
    if hasattr(tracker, "log_images"):
        for path in sorted(run.figures.glob("*.png")):
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))[None]
            if name == "tensorboard":
                tracker.log_images({f"results/{path.stem}": pixels}, step=last, dataformats="NHWC")
            else:
                tracker.log_images({f"results/{path.stem}": list(pixels)})
    tracker.finish()


def _numbers(measured: Folder) -> dict[str, float]:
    """Perplexity by window and the share found by prompt length, of each arm."""
    numbers: dict[str, float] = {}
    for row in rows_of([measured]):
        arm = arm_name(row.arm)
        for window, interval in row.perplexity.items():
            numbers[f"results/perplexity {format_length(window)}/{row.label}"] = interval.mean
        for task, lengths in row.found.items():
            for length, (right, asked) in lengths.items():
                numbers[f"results/{task} {format_length(length)}/{arm}"] = right / asked
        if row.ruler:
            called = ruler_name([row.ruler])
            numbers |= {f"results/{called} {t} {format_length(n)}/{arm}": score for t, n, score in row.ruler.means}
    return numbers
