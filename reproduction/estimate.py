"""How long an exhibit takes on this machine, estimated from a few timed steps."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from reproduction.runs import ArmRun
from skipwise.evaluation.arms import measured_steps
from skipwise.evaluation.perplexity import fed_tokens, inference
from skipwise.evaluation.specification import specification_of
from skipwise.model.loading import load_model
from skipwise.model.precision import AUTOCAST, choose_precision, default_device

_SETTLED = 12.0  # seconds of a run for loading, the probe, saving and the report
_DECODED = 1.4  # time of a passkey prompt with its answer, over that of the prompt alone


@dataclass(frozen=True)
class Speed:
    """Seconds a token, as ``a + b * width`` because the attention of a token costs in proportion to the width.

    Attributes:
        train: (a, b) of a training step.
        read: (a, b) of a forward pass.
    """

    train: tuple[float, float]
    read: tuple[float, float]


def measure_speed(model: str, near: int = 256, far: int = 2048) -> Speed:
    """Time a training step and a forward pass of 4,096 tokens at two widths; a few seconds with the embedded model."""
    device = default_device()
    loaded = load_model(model, device=device)
    precision = choose_precision("auto", device)
    dtype = AUTOCAST[precision]

    def read(width: int) -> None:
        ids = torch.zeros((4096 // width, width), dtype=torch.long, device=device)
        with inference(loaded, precision):
            loaded(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)

    def train(width: int) -> None:
        ids = torch.zeros((4096 // width, width), dtype=torch.long, device=device)
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            loss = loaded(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, use_cache=False).loss
        loss.backward()
        loaded.zero_grad()

    lines = []
    for work in (train, read):
        low, high = (_seconds(work, width) / 4096 for width in (near, far))
        slope = max(0.0, (high - low) / (far - near))
        lines.append((low - slope * near, slope))
    return Speed(lines[0], lines[1])


def _seconds(work: Callable[[int], None], width: int) -> float:
    """The faster of two goes at ``work``, after one to warm up."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        work(width)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def seconds(run: ArmRun, speed: Speed) -> float:
    """How long one run takes: training, and every measurement."""
    return _SETTLED + _training(run, speed) + _measuring(run, speed)


def total_seconds(runs: Iterable[ArmRun], speed: Speed) -> float:
    """How long runs take one after another; a model that several of them share is trained once."""
    runs = list(runs)
    once = {run.key: _training(run, speed) for run in runs}
    return sum(once.values()) + sum(_SETTLED + _measuring(run, speed) for run in runs)


def _training(run: ArmRun, speed: Speed) -> float:
    if not run.trained:
        return 0.0
    tokens, training = tokens_of(run), run.recipe.training
    return tokens * _at(speed.train, tokens // (training.max_steps * training.batch_size))


def _measuring(run: ArmRun, speed: Speed) -> float:
    recipe, target, total = run.recipe, run.recipe.target or 0, 0.0
    asked = specification_of(recipe, run.original, target, "float32")
    longest = asked.windows[-1]
    documents = [np.zeros(asked.tokens_per_document or 2 * longest, dtype=np.int8)] * asked.documents

    def sliding(window: int) -> float:
        return fed_tokens(documents, window, asked.stride_of(window)) * _at(speed.read, window)

    for _ in asked.texts:
        total += sum(map(sliding, asked.windows))
        total += sum(asked.segments * n * _at(speed.read, n) for n in asked.segment_lengths)
    steps = len(measured_steps(recipe))  # of the first text
    total += steps * sliding(longest)
    if recipe.evaluation.keep == "best":
        total += steps * asked.segments * target * _at(speed.read, target)
    return total + sum(_DECODED * asked.trials * n * _at(speed.read, n) for n in asked.prompt_lengths)


def tokens_of(run: ArmRun) -> int:
    """How many tokens a run trains on; none where nothing is trained."""
    training, recipe = run.recipe.training, run.recipe
    width = recipe.target if recipe.positions.scheme == "full" else recipe.train_length or run.original
    return training.max_steps * training.batch_size * (width or 0) if run.trained else 0


def _at(line: tuple[float, float], width: int) -> float:
    return line[0] + line[1] * width
