"""Log the results of a run to the trackers of ``training.report_to``.

transformers' callbacks log the training. The results come after it; accelerate's trackers log them into the same run.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from accelerate import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS
from rich.console import Console

from skipwise.errors import reason
from skipwise.method.lengths import format_length
from skipwise.report.folder import Folder
from skipwise.report.numbers import ReportData
from skipwise.report.rows import perplexity_by_step
from skipwise.results.files import short_digest
from skipwise.results.run_folder import RunFolder

PROJECT = "skipwise"


@contextmanager
def one_run(run: RunFolder) -> Iterator[None]:
    """Let all trackers log into one run, also after a resume.

    The user's own environment variables take precedence.
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
    """Log the results of a finished run to each known tracker, once."""
    logged = run.read().get("logged") or []
    for name in trackers:
        if name in logged or name not in ("tensorboard", "wandb", "trackio") or name not in LOGGER_TYPE_TO_CLASS:
            continue
        try:
            _log(name, run, measured)
        except Exception as error:  # network, account or files of a tracker; the run folder has all results
            text = f"{name}: results not logged ({type(error).__name__}: {reason(error)}); --resume logs them"
            console.print(text, style="yellow")
        else:
            logged = [*logged, name]
            run.record(logged=logged)


def _log(name: str, run: RunFolder, measured: Folder) -> None:
    PartialState()  # accelerate's trackers need it
    project, options = {
        "tensorboard": (".", {"logging_dir": os.environ["TENSORBOARD_LOGGING_DIR"]}),
        "wandb": (os.environ["WANDB_PROJECT"], {"name": run.path.name}),
        "trackio": (PROJECT, {"name": run.path.name, "resume": "allow"}),
    }[name]
    tracker = LOGGER_TYPE_TO_CLASS[name](project, **options)
    tracker.start()
    by_step: dict[int, dict[str, float]] = defaultdict(dict)
    for (mode, window), curve in perplexity_by_step(measured).items():
        for step, value in curve.items():
            by_step[step][f"evaluation/perplexity {mode} {format_length(window)}"] = value.mean
    by_step[int((run.read().get("training") or {}).get("steps", 0))] |= scalars(ReportData([measured]))
    for step, values in sorted(by_step.items()):
        x = {} if name == "tensorboard" else {"train/global_step": step}  # transformers' x axis in wandb
        tracker.log(values | x, step=None if name == "wandb" else step)
    tracker.finish()


def scalars(data: ReportData) -> dict[str, float]:
    """Return perplexity by window and scores by prompt length, of each model."""
    prefixes = {"perplexity": "", "found": "", "ruler by task": f"{data.ruler_name} "}
    return {
        f"results/{prefixes[n.measure.group]}{n.measure.short} {format_length(n.length or 0)}/{n.label}": n.value.mean
        for n in data.numbers
        if n.measure.group in prefixes
    }
