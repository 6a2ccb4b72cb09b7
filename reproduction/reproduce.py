"""Parts of the command: the list of exhibits, the runs in turn, and their time."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from reproduction.exhibits import EXHIBITS
from reproduction.measured import SLIDING, make, requested_records
from reproduction.runs import SCALES, ArmRun, distinct, plan_runs
from skipwise.evaluation.evaluate import measuring_seconds, planned
from skipwise.model.config import load_config
from skipwise.model.cost import ForwardCost, Speed, meta_model, training_seconds
from skipwise.model.forward import choose_precision, default_device

_SETTLED = 12.0  # seconds of a run for loading, the probe, saving and the report


def list_exhibits(console: Console, out: Path) -> None:
    """Print the exhibits, and how long each takes on this machine."""
    plans = {name: plan_runs(EXHIBITS[name], SCALES["nano"], out, changes={}) for name in EXHIBITS}
    grid = Table("exhibit", "what it compares: where in the paper", box=None, pad_edge=False)
    for column in ("seeds", "models", "here"):
        grid.add_column(column, justify="right")
    lines = [(name, f"{each.title}: {each.source}", str(each.seeds), plans[name]) for name, each in EXHIBITS.items()]
    for *words, runs in [*lines, ("all", "each model trained once", "", distinct(plans.values()))]:
        models = str(len({run.key for run in runs if run.trained})) if runs else "–"
        grid.add_row(*words, models, _minutes(total_seconds(runs)))
    console.print(grid)
    console.print("The small bases of families are trained besides, once. What is done is not done again.")


def state_of(run: ArmRun, out: Path, scale: str) -> str:
    """Return ``done``, or how long a run takes."""
    if scale == "paper":
        return "trained" if run.trained else "measured"
    read = {text for kind, text, _ in requested_records(run, out) if kind == SLIDING}
    done = read and read >= set(run.recipe.evaluation.source or [])
    return "done" if done else f"missing, {_minutes(total_seconds([run]))}"


def make_all(runs: Sequence[ArmRun], out: Path, console: Console) -> None:
    """Train and measure each run in turn, with the number of runs that are left and about their time."""
    for number, run in enumerate(runs):
        left = _minutes(total_seconds(runs[number:]))
        console.rule(f"{number + 1} of {len(runs)}, {left} left at most: {run}")
        make(run, out, console)


def print_page(page: Path, console: Console) -> None:
    """Print a page without its figures."""
    lines = page.read_text(encoding="utf-8").splitlines()
    console.print(Markdown("\n".join(line for line in lines if not line.startswith("!["))))


def total_seconds(runs: Iterable[ArmRun]) -> float:
    """Return the time of runs one after another, as ``skipwise plan`` forecasts; a model that several share is trained once.

    A small base counts as the embedded model, because it may not be trained yet.
    """
    seconds, trained = 0.0, set[str]()
    for run in runs:
        token, cost, speed = _speed("nano" if run.base else run.recipe.model, run.window)
        if run.trained and run.key not in trained:
            trained.add(run.key)
            seconds += run.tokens * token
        work = planned(run.recipe, run.original, run.target)
        seconds += _SETTLED + sum(measuring_seconds(work, cost, speed).values())
    return seconds


@cache
def _speed(model: str, window: int) -> tuple[float, ForwardCost, Speed]:
    """Time a model here: seconds of training on a token in a window, the cost of a forward pass, the machine's speed."""
    config, device = load_config(model), default_device()
    precision = choose_precision("auto", device)
    token = training_seconds(config, 1, window, precision, device)
    return token, ForwardCost.of(meta_model(config)), Speed.measured(config, precision, device)


def _minutes(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
