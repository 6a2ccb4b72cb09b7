"""How long a run takes on this machine, before it begins: training, and measuring by what is measured."""

from collections.abc import Iterable
from datetime import timedelta

from skipwise.evaluation.arms import RunEvaluation
from skipwise.evaluation.models import EvaluatedModel
from skipwise.evaluation.runner import Batch, Readings
from skipwise.model.forward_cost import ForwardCost, Speed

_BACKWARD = 2  # times the operations of a forward pass


def training_seconds(tokens: int, window: int, cost: ForwardCost, speed: Speed) -> float:
    """The seconds that so many tokens in windows take to train on."""
    return (1 + _BACKWARD) * tokens * _seconds(cost.of_token(window, scored=True), speed)


def measuring_seconds(batches: Iterable[Batch], cost: ForwardCost, speed: Speed) -> dict[str, float]:
    """The seconds that batches take, by what is measured; prompts that share a beginning take less."""
    seconds: dict[str, float] = {}
    for batch in batches:
        what = "windows of" if isinstance(batch, Readings) else f"{batch.requests[0].task} at"
        part = f"{what} {batch.length:,} tokens"
        each = _seconds(cost.of_token(batch.length, scored=isinstance(batch, Readings)), speed)
        seconds[part] = seconds.get(part, 0.0) + batch.tokens * each
    return seconds


def batches_of(evaluation: RunEvaluation) -> list[Batch]:
    """What is measured of all arms of a run."""
    lengths = evaluation.extension.rope.original_length, evaluation.extension.target_length
    models = [EvaluatedModel(evaluation.label(arm), "", *lengths) for arm in evaluation.recipe.evaluation.arms]
    return [batch for model in models for batch in evaluation.batches(model)]


def told(training: float, measuring: dict[str, float]) -> str:
    """Say how long training and measuring take, and what of measuring takes longest."""
    said = f"on this machine: training about {_time(training)}"
    if not measuring:
        return said
    longest = max(measuring, key=lambda part: measuring[part])
    return (
        f"{said}, measuring about {_time(sum(measuring.values()))}, of which {longest} take longest, "
        f"{_time(measuring[longest])}"
    )


def _seconds(operations: tuple[float, float], speed: Speed) -> float:
    linear, attention = operations
    return linear / speed.linear + attention / speed.attention


def _time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
