"""How long training and measuring take, and which measurements do not fit in memory; said before a run begins."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

import numpy as np
import torch
from rich.console import Console
from transformers import PretrainedConfig

from skipwise.data.shipped import KINDS
from skipwise.evaluation.arms import RunEvaluation, measured_steps
from skipwise.evaluation.batches import Batch, Prompts, Readings
from skipwise.evaluation.models import EvaluatedModel
from skipwise.evaluation.other_text import longest_segment, most_segments
from skipwise.evaluation.perplexity import fed_tokens
from skipwise.evaluation.runner import require_memory
from skipwise.evaluation.specification import specification_of
from skipwise.model.config import load_config
from skipwise.model.forward_cost import ForwardCost, Speed, Writing, layer_step_seconds
from skipwise.model.memory import parameters_of, token_bytes
from skipwise.model.precision import dtype_of
from skipwise.model.rope import extension_of
from skipwise.recipes.schema import Recipe

_TIMED_WINDOW = 2048  # tokens, at the most
_BF16 = 2  # bytes of a number
_NOTHING = Writing(0.0, 0.0)
_STEP = 3  # times the operations of a forward pass: backward takes twice as many


Forecast = dict[str, float]  # seconds, by what is measured


def training_seconds(config: PretrainedConfig, tokens: int, window: int, precision: str, device: torch.device) -> float:
    """The seconds that so many tokens in windows take to train on, by timing a layer and the products that are not in it.

    The layer is timed on a window of up to 2,048 tokens; beyond, attention grows as its operations do.
    """
    cost, speed = ForwardCost.of_config(config), Speed.measured(config, precision, device)
    timed = min(window, _TIMED_WINDOW)
    layers = config.get_text_config().num_hidden_layers * layer_step_seconds(config, precision, device, timed) / timed
    more = _STEP * (cost.output / speed.linear + cost.pair * (window - timed) / 2 / speed.attention)
    return tokens * (layers + more)


def measured_here(batches: Sequence[Batch], config: PretrainedConfig, precision: str, device: torch.device) -> Forecast:
    """The seconds that batches take on this machine, by a short timing of the model's layers."""
    writes = any(isinstance(batch, Prompts) and batch.written for batch in batches)
    writing = Writing.measured(config, precision, device) if writes else _NOTHING
    return measuring_seconds(batches, ForwardCost.of_config(config), Speed.measured(config, precision, device), writing)


def measuring_seconds(
    batches: Iterable[Batch], cost: ForwardCost, speed: Speed, writing: Writing = _NOTHING
) -> Forecast:
    """The seconds that batches take, by what is measured; prompts that share a beginning take less, and so do answers that
    end early or are written together."""
    seconds: Forecast = {}
    for batch in batches:
        what = "windows of" if isinstance(batch, Readings) else f"{batch.requests[0].task} at"
        part = f"{what} {batch.length:,} tokens"
        each = _seconds(cost.of_token(batch.length, scored=isinstance(batch, Readings)), speed)
        written = batch.written * writing.seconds(batch.length) if isinstance(batch, Prompts) else 0.0
        seconds[part] = seconds.get(part, 0.0) + batch.tokens * each + written
    return seconds


def batches_of(evaluation: RunEvaluation) -> list[Batch]:
    """What is measured of all arms of a run, and of the trained one during its training."""
    lengths = evaluation.extension.rope.original_length, evaluation.extension.target_length
    models = [EvaluatedModel(evaluation.label(arm), "", *lengths) for arm in evaluation.recipe.evaluation.arms]
    during = [batch for step in evaluation.steps for batch in evaluation.step_batches(step)]
    return [*during, *(batch for model in models for batch in evaluation.batches(model))]


def print_forecast(evaluation: RunEvaluation, tokens: int, window: int, device: torch.device, console: Console) -> None:
    """Print how long a run that trains on ``tokens`` tokens in windows takes on this machine, by a short timing of its
    layers."""
    config, precision = load_config(evaluation.recipe.model), evaluation.specification.precision
    training = training_seconds(config, tokens, window, precision, device)
    console.print(told(training, measured_here(batches_of(evaluation), config, precision, device)))


def require_measurable(evaluation: RunEvaluation, device: torch.device) -> None:
    """Refuse windows and prompts that this machine's memory is certain not to hold."""
    config = load_config(evaluation.recipe.model)
    itemsize = dtype_of(evaluation.specification.precision).itemsize
    weights = itemsize * (parameters_of(config) or 0)
    require_memory(config, device, itemsize, batches_of(evaluation), weights)


def print_planned_measuring(recipe: Recipe, rate: float, memory: float, console: Console) -> None:
    """Print how long one GPU of ``rate`` operations a second measures what a recipe asks for, and what of it cannot fit
    ``memory`` bytes."""
    config = load_config(recipe.model)
    extension = extension_of(config, recipe)
    lengths = extension.rope.original_length, extension.target_length
    seconds = planned_seconds(recipe, *lengths, ForwardCost.of_config(config), Speed(rate, rate))
    console.print(f"Besides training, {told_measuring(seconds)}, on one GPU.")
    for told_of in beyond_memory(recipe, *lengths, config, memory):
        console.print(told_of, style="yellow", soft_wrap=True)


def planned_seconds(recipe: Recipe, original: int, target: int, cost: ForwardCost, speed: Speed) -> Forecast:
    """The seconds that each measurement of a recipe takes, by what is measured, before any text is known.

    Every text has as many documents as are asked for, and no prompts share a beginning, so it takes no longer; the writing of
    RULER's answers is not counted.
    """
    asked, arms = specification_of(recipe, original, target, "float32"), len(recipe.evaluation.arms)
    tokens = asked.tokens_read(max(asked.windows)) or max(asked.windows)
    document, texts = np.empty(tokens), arms * len(asked.texts)
    read = [
        (f"windows of {n:,} tokens", n, texts * asked.documents * fed_tokens([document], n, asked.stride_of(n)))
        for n in asked.windows
    ]
    read += [(f"segments of {n:,} tokens", n, texts * asked.segments * n) for n in asked.segment_lengths]
    if recipe.evaluation.other and (readers := {*recipe.evaluation.arms} - {"pi-only"}):
        n = longest_segment(original)
        read.append((f"other text in segments of {n:,} tokens", n, len(readers) * len(KINDS) * most_segments(n) * n))
    if steps := len(measured_steps(recipe)):  # of the first text
        n, during = asked.windows[-1], "during training"
        fed = fed_tokens([document], n, asked.stride_of(n))
        read.append((f"windows of {n:,} tokens {during}", n, steps * asked.documents * fed))
        if recipe.evaluation.keep == "best":
            read.append((f"segments of {target:,} tokens {during}", target, steps * asked.segments * target))
    prompts = [
        (f"{task} at {n:,} tokens", n, arms * asked.trials * n) for task in asked.tasks for n in asked.prompt_lengths
    ]
    return {
        what: fed * _seconds(cost.of_token(length, scored=scored), speed)
        for parts, scored in ((read, True), (prompts, False))
        for what, length, fed in parts
    }


def beyond_memory(recipe: Recipe, original: int, target: int, config: PretrainedConfig, memory: float) -> Iterator[str]:
    """Say which windows and prompts are certain not to fit a GPU of ``memory`` bytes beside the model in bf16."""
    asked, weights = specification_of(recipe, original, target, "bf16"), _BF16 * (parameters_of(config) or 0)
    for what, measured, cached in (("windows", asked.windows, False), ("passkey_lengths", asked.prompt_lengths, True)):
        each, lengths = token_bytes(config, _BF16, cached=cached), sorted(set(measured))
        fitting = [length for length in lengths if weights + length * each <= memory]
        if fitting != lengths:
            instead = (
                f"Leave it out, --set evaluation.{what}=[{', '.join(map(str, fitting))}], and measure"
                if fitting
                else "Measure"
            )
            yield (
                f"Measuring at {lengths[-1]:,} tokens does not fit: it takes {(weights + lengths[-1] * each) / 1e9:.1f} GB at the "
                f"least, of {memory / 1e9:.1f} GB. {instead} it on a larger GPU, or prompts through a server (skipwise evaluate)."
            )


def told(training: float, measuring: Forecast) -> str:
    """Say how long training and measuring take, and what of measuring takes longest."""
    said = f"on this machine: training about {_time(training)}"
    return f"{said}, {told_measuring(measuring)}" if measuring else said


def told_measuring(seconds: Forecast) -> str:
    """Say how long measuring takes, and what of it takes longest."""
    longest = max(seconds, key=lambda part: seconds[part])
    return f"measuring about {_time(sum(seconds.values()))}, of which {longest} take longest, {_time(seconds[longest])}"


def _seconds(operations: tuple[float, float], speed: Speed) -> float:
    linear, attention = operations
    return linear / speed.linear + attention / speed.attention


def _time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
