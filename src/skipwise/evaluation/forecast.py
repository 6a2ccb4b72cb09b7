"""How long training and measuring take, said before a run begins."""

from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch
from rich.console import Console
from transformers import PretrainedConfig

from skipwise.evaluation.arms import RunEvaluation
from skipwise.evaluation.batches import Batch
from skipwise.evaluation.models import EvaluatedModel
from skipwise.evaluation.runner import require_memory
from skipwise.evaluation.workload import READ, TooLong, Workload, beyond_memory, planned, workload_of
from skipwise.model.config import load_config
from skipwise.model.cost import parameters_of
from skipwise.model.extension import extension_of
from skipwise.model.forward_cost import ForwardCost, Speed, Writing, layer_step_seconds
from skipwise.model.precision import dtype_of
from skipwise.recipes.schema import Evaluation, Recipe

_TIMED_WINDOW = 2048  # tokens, at the most
_BF16 = 2  # bytes of a number
_NOTHING = Writing(0.0, 0.0)
_STEP = 3  # times the operations of a forward pass: backward takes twice as many


Forecast = dict[str, float]  # seconds, by what is measured


def training_seconds(config: PretrainedConfig, tokens: int, window: int, precision: str, device: torch.device) -> float:
    """The seconds that so many tokens in windows take to train on, with the gradients of all weights: by timing a layer and the
    products that are not in it.

    The layer is timed on a window of up to 2,048 tokens; beyond, attention grows as its operations do.
    """
    cost, speed = ForwardCost.of_config(config), Speed.measured(config, precision, device)
    timed = min(window, _TIMED_WINDOW)
    layers = config.get_text_config().num_hidden_layers * layer_step_seconds(config, precision, device, timed) / timed
    more = _STEP * (cost.output / speed.linear + cost.pair * (window - timed) / 2 / speed.attention)
    return tokens * (layers + more)


def measured_here(batches: Sequence[Batch], config: PretrainedConfig, precision: str, device: torch.device) -> Forecast:
    """The seconds that batches take on this machine, by a short timing of the model's layers."""
    parts = [workload_of(batch) for batch in batches]
    writing = Writing.measured(config, precision, device) if any(part.written for part in parts) else _NOTHING
    return measuring_seconds(parts, ForwardCost.of_config(config), Speed.measured(config, precision, device), writing)


def measuring_seconds(
    parts: Iterable[Workload], cost: ForwardCost, speed: Speed, writing: Writing = _NOTHING
) -> Forecast:
    """The seconds that each measurement takes; prompts that share a beginning take less, and so do answers that end early or are
    written together. Without ``writing`` what is written is not counted."""
    seconds: Forecast = {}
    for part in parts:
        linear, attention = cost.of_token(part.length, scored=part.scored)
        each = linear / speed.linear + attention / speed.attention
        takes = part.read * each + part.written * writing.seconds(part.length)
        seconds[str(part)] = seconds.get(str(part), 0.0) + takes
    return seconds


def batches_of(evaluation: RunEvaluation) -> list[Batch]:
    """What is measured of all arms of a run, and of the trained one during its training."""
    lengths = evaluation.extension.rope.original_length, evaluation.extension.target_length
    models = [EvaluatedModel(evaluation.label(arm), "", *lengths) for arm in evaluation.recipe.evaluation.arms]
    during = [batch for step in evaluation.steps for batch in evaluation.step_batches(step)]
    return [*during, *(batch for model in models for batch in evaluation.batches(model))]


def print_forecast(evaluation: RunEvaluation, tokens: int, window: int, device: torch.device, console: Console) -> None:
    """Print how long a run takes on this machine that takes as long as plain training on ``tokens`` tokens in windows, by a short
    timing of its layers, and what shortens measuring if that takes longer than training."""
    config, precision = load_config(evaluation.recipe.model), evaluation.specification.precision
    training = training_seconds(config, tokens, window, precision, device)
    measuring = measured_here(batches_of(evaluation), config, precision, device)
    console.print(told(training, measuring, evaluation.recipe.evaluation), soft_wrap=True)


def require_measurable(evaluation: RunEvaluation, device: torch.device) -> None:
    """Refuse windows and prompts that this machine's memory is certain not to hold."""
    config = load_config(evaluation.recipe.model)
    itemsize = dtype_of(evaluation.specification.precision).itemsize
    weights = itemsize * (parameters_of(config) or 0)
    require_memory(config, device, itemsize, batches_of(evaluation), weights)


def print_planned_measuring(recipe: Recipe, rate: float, memory: float, console: Console) -> None:
    """Print how long one GPU of ``rate`` operations a second measures what a recipe asks for, without the writing of RULER's
    answers, and which lengths cannot fit ``memory`` bytes beside the model in bf16."""
    config = load_config(recipe.model)
    extension = extension_of(config, recipe)
    parts = [*planned(recipe, extension.rope.original_length, extension.target_length)]
    seconds = measuring_seconds(parts, ForwardCost.of_config(config), Speed(rate, rate))
    unwritten = ", without the writing of RULER's answers" if any(part.written for part in parts) else ""
    console.print(f"Besides training, {told_measuring(seconds)}, on one GPU{unwritten}.")
    weights = _BF16 * (parameters_of(config) or 0)
    for lengths in beyond_memory(parts, config, _BF16, weights, memory):
        console.print(_told_too_long(lengths, memory), style="yellow", soft_wrap=True)


def _told_too_long(lengths: TooLong, memory: float) -> str:
    instead = f"Leave it out, {lengths.instead}, and measure" if lengths.instead else "Measure"
    return (
        f"Measuring {READ[lengths.setting]} of {lengths.longest:,} tokens does not fit: it takes {lengths.needed / 1e9:.1f} GB at the least, of "
        f"{memory / 1e9:.1f} GB. {instead} it on a larger GPU, or prompts through a server (skipwise evaluate)."
    )


def told(training: float, measuring: Forecast, asked: Evaluation) -> str:
    """Say how long training and measuring take, what of measuring takes longest, and what shortens it if it takes longer than
    training."""
    said = f"on this machine: training about {_time(training)}"
    if not measuring:
        return said
    said += f", {told_measuring(measuring)}"
    shorter = {
        "'evaluation.arms=[trained]' leaves out the models that it is compared with": len(asked.arms) > 1,
        f"evaluation.prompt_trials={asked.prompt_trials // 2} asks half as many prompts": asked.prompt_trials > 1,
    }
    ways = [f"--set {setting}" for setting, shortens in shorter.items() if shortens]
    if sum(measuring.values()) <= training or not ways:
        return said
    return f"{said}\nMeasuring takes longer than training: {', and '.join(ways)}."


def told_measuring(seconds: Forecast) -> str:
    """Say how long measuring takes, and what of it takes longest."""
    longest = max(seconds, key=lambda part: seconds[part])
    return f"measuring about {_time(sum(seconds.values()))}, of which {longest} take longest, {_time(seconds[longest])}"


def _time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
