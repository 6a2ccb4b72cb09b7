"""How long runs take on this machine, by the same forecast as ``skipwise plan``."""

from collections.abc import Iterable
from functools import cache

from reproduction.runs import ArmRun
from skipwise.evaluation.measure import measuring_seconds, planned
from skipwise.model.config import load_config
from skipwise.model.cost import ForwardCost, Speed, training_seconds
from skipwise.model.precision import choose_precision, default_device

_SETTLED = 12.0  # seconds of a run for loading, the probe, saving and the report


def seconds(run: ArmRun, model: str) -> float:
    """How long one run takes, training and every measurement, if its model is as large as ``model``."""
    return _SETTLED + _training(run, model) + _measuring(run, model)


def total_seconds(runs: Iterable[ArmRun], model: str) -> float:
    """How long runs take one after another; a model that several of them share is trained once."""
    runs = list(runs)
    once = {run.key: _training(run, model) for run in runs}
    return sum(once.values()) + sum(_SETTLED + _measuring(run, model) for run in runs)


def _training(run: ArmRun, model: str) -> float:
    return run.tokens * _trained_token(model, run.window) if run.trained else 0.0


def _measuring(run: ArmRun, model: str) -> float:
    return sum(measuring_seconds(planned(run.recipe, run.original, run.target), *_measured(model)).values())


@cache
def _trained_token(model: str, window: int) -> float:
    """The seconds that a token takes to train on in a window."""
    device = default_device()
    return training_seconds(load_config(model), 1, window, choose_precision("auto", device), device)


@cache
def _measured(model: str) -> tuple[ForwardCost, Speed]:
    """What a forward pass costs, and how fast this machine is."""
    config, device = load_config(model), default_device()
    return ForwardCost.of_config(config), Speed.measured(config, choose_precision("auto", device), device)
