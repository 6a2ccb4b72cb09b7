"""How long an exhibit takes: on this machine from a few timed steps, at the paper's scale by arithmetic."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from skipwise.arms import evaluation_windows, stride_of
from skipwise.evaluation.perplexity import fed_tokens, inference
from skipwise.measure import AUTOCAST
from skipwise.model.loading import load_model
from skipwise.reproduction.runs import ArmRun
from skipwise.reproduction.scales import Shape
from skipwise.training_arguments import choose_precision

_SETTLED = 12.0  # seconds a run takes besides: loading, the probe, saving, the report
_DECODED = 1.4  # a passkey prompt with its answer, over the prompt alone


@dataclass(frozen=True)
class Speed:
    """Seconds a token, by what is done with it: ``a + b * width`` each, attention being linear in the width.

    Attributes:
        train: (a, b) of a training step.
        read: (a, b) of a forward pass.
    """

    train: tuple[float, float]
    read: tuple[float, float]


def measure_speed(model: str, near: int = 256, far: int = 2048) -> Speed:
    """Time a training step and a forward pass of 4,096 tokens at two widths; a few seconds with the embedded model."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loaded = load_model(model, device=device)
    precision = AUTOCAST[choose_precision("auto", device)]

    def read(width: int) -> None:
        ids = torch.zeros((4096 // width, width), dtype=torch.long, device=device)
        with inference(loaded, precision):
            loaded(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)

    def train(width: int) -> None:
        ids = torch.zeros((4096 // width, width), dtype=torch.long, device=device)
        with torch.autocast(device.type, precision, enabled=precision is not None):
            loss = loaded(
                input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, use_cache=False
            ).loss
        loss.backward()
        loaded.zero_grad()

    lines = []
    for work in (train, read):
        low, high = (_seconds(work, width) / 4096 for width in (near, far))
        slope = max(0.0, (high - low) / (far - near))
        lines.append((low - slope * near, slope))
    return Speed(lines[0], lines[1])


def _seconds(work: object, width: int) -> float:
    assert callable(work)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        work(width)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def seconds(run: ArmRun, speed: Speed) -> float:
    """How long one run takes: training, and every measurement."""
    return _SETTLED + _training(run, speed) + _measuring(run, speed)


def _training(run: ArmRun, speed: Speed) -> float:
    if not run.trained:
        return 0.0
    tokens, training = tokens_of(run), run.recipe.training
    return tokens * _at(speed.train, tokens // (training.max_steps * training.batch_size))


def _measuring(run: ArmRun, speed: Speed) -> float:
    recipe, total = run.recipe, 0.0
    rule = recipe.evaluation
    windows = evaluation_windows(rule, run.original, recipe.target or 0)
    documents = [np.zeros(rule.tokens_per_document or 2 * windows[-1], dtype=np.int8)] * rule.documents
    for _ in rule.source or [""]:
        for window in windows:
            stride = stride_of(rule, run.original, recipe.target or 0, window)
            total += fed_tokens(documents, window, stride) * _at(speed.read, window)
        for length in rule.segment_lengths or []:
            total += rule.segments * length * _at(speed.read, length)
        if rule.steps:
            stride = stride_of(rule, run.original, recipe.target or 0, windows[-1])
            total += (
                len(rule.steps) * fed_tokens(documents, windows[-1], stride) * _at(speed.read, windows[-1])
            )
    for length in (rule.passkey_lengths or windows) if rule.passkey_trials else []:
        total += _DECODED * rule.passkey_trials * length * _at(speed.read, length)
    return total


def tokens_of(run: ArmRun) -> int:
    """How many tokens a run trains on; none where nothing is trained."""
    training, recipe = run.recipe.training, run.recipe
    width = recipe.target if recipe.positions.scheme == "full" else recipe.train_length or run.original
    return training.max_steps * training.batch_size * (width or 0) if run.trained else 0


def _at(line: tuple[float, float], width: int) -> float:
    return line[0] + line[1] * width


# The machine that the paper's scale is planned for, and how much of it is used.
GPUS, PEAK, USED = 8, 312e12, 0.4  # A100 80 GB, bf16 operations a second


@dataclass(frozen=True)
class Cost:
    """One arm at full size: GPU hours are of all GPUs together."""

    gigabytes: float
    gpu_hours: float


def full_size(run: ArmRun, shape: Shape) -> Cost:
    """Memory of each of 8 GPUs under ZeRO-3 with gradient checkpointing, and GPU hours of training.

    Memory: 16 bytes a parameter (bf16 weight and gradient, float32 master weight and two Adam moments) over the GPUs;
    the inputs of every layer, 2 s h L bytes for a window of s tokens; one layer at work, about 34 s h; the logits in
    bf16 and float32, 6 s V; and one layer's gathered weights, 24 h^2. Operations a token: 6 N + 6 L h s (forward and
    backward, causal attention), and a third more for the forward pass done again (Kaplan et al., 2020; Korthikanti et
    al., 2022).
    """
    tokens = tokens_of(run)
    width = tokens // (run.recipe.training.max_steps * run.recipe.training.batch_size) if tokens else 0
    h, layers = shape.width, shape.layers
    held = 16 * shape.parameters / GPUS + 24 * h * h
    held += width * (2 * h * layers + 34 * h + 6 * shape.vocabulary)
    operations = tokens * (6 * shape.parameters + 6 * layers * h * width) * 4 / 3
    return Cost(held / 1e9, operations / (PEAK * USED) / 3600)


def total_seconds(runs: Iterable[ArmRun], speed: Speed) -> float:
    """How long runs take one after another; what several of them train is trained once."""
    runs = list(runs)
    once = {run.key: _training(run, speed) for run in runs}
    return sum(once.values()) + sum(_SETTLED + _measuring(run, speed) for run in runs)
