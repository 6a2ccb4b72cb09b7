"""Time and memory of a training step by target length (the paper's Figure 3), on random text.

Targets are timed in turn in one process, so that a change of the machine's speed affects all of them. Peak memory is
measured in a process for each target.
"""

import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import TypeAdapter
from rich.console import Console

from reproduction import paper
from reproduction.claims import Finding
from skipwise.method.lengths import format_length
from skipwise.method.positions import PAPER, SCHEMES
from skipwise.method.rng import Rng
from skipwise.model.config import load_config
from skipwise.model.extension import plan_extension
from skipwise.model.forward import AUTOCAST, choose_precision, default_device
from skipwise.model.loading import load_model
from skipwise.recipes.names import display_name
from skipwise.recipes.schema import Recipe
from skipwise.report.page import markdown_table
from skipwise.results.files import content_hash
from skipwise.results.records import append_record

FACTORS = (2, 4, 8, 64)  # the paper's, and the largest of Table 2
EXAMPLES = 2  # windows in a step
_ROUNDS = {"pose": 120, "full_length": 1}
_TOLERANCE = 0.02


@dataclass(frozen=True)
class CostRecord:
    """The cost of training: seconds of each timed step, and peak memory.

    A step is ``examples`` windows of ``window`` tokens, one in memory at a time. ``base_bytes`` is the memory before the first
    step, with the weights; on a GPU both count GPU memory.
    """

    kind: ClassVar[str] = "cost"
    arm: str
    target: int
    window: int
    examples: int
    step_seconds: list[float]
    peak_bytes: int
    base_bytes: int
    device: str
    key: str = ""  # the model's shape and the settings that decide the cost


def measure_costs(recipe: Recipe, original: int, out: Path, console: Console) -> list[CostRecord]:
    """Measure full-length and PoSE steps at every target, unless ``out/costs.jsonl`` has all of them.

    A part of them may be of another machine, so then all are measured.
    """
    path, key = out / "costs.jsonl", _key(recipe, original)
    targets = [factor * original for factor in FACTORS]
    known = known_costs(recipe, original, out)
    if {(r.arm, r.target) for r in known} >= set(product(_ROUNDS, targets)):
        return known
    for arm in _ROUNDS:
        console.print(f"efficiency: timing {display_name(arm)} at {', '.join(map(format_length, targets))}")
        seconds = in_own_process(step_seconds, recipe, arm, targets, original, _ROUNDS[arm])
        for target, times in zip(targets, seconds, strict=True):
            base, peak, device = in_own_process(peak_bytes, recipe, arm, target, original)
            window = target if arm == "full_length" else original
            append_record(path, CostRecord(arm, target, window, EXAMPLES, times, peak, base, device, key))
    return known_costs(recipe, original, out)


def known_costs(recipe: Recipe, original: int, out: Path) -> list[CostRecord]:
    """Return the latest record in ``out/costs.jsonl`` of each arm and target, for this model and recipe."""
    path, key = out / "costs.jsonl", _key(recipe, original)
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # a torn line is left out
    records = [record for record in map(_COSTS.validate_json, lines) if record.key == key]
    return list({(r.arm, r.target): r for r in records}.values())


_COSTS = TypeAdapter(CostRecord)


def _key(recipe: Recipe, original: int) -> str:
    return content_hash([recipe.model, original, recipe.interpolation, recipe.training.precision])


def in_own_process(function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function`` in a new process, with nothing else in its memory."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *args).result()


def step_seconds(recipe: Recipe, arm: str, targets: Sequence[int], original: int, rounds: int) -> list[list[float]]:
    """Seconds of each step, by target; the targets take turns, each round begins with another one, and the first round does
    not count."""
    steps = [_stepper(recipe, arm, target, original) for target in targets]
    times: list[list[float]] = [[] for _ in targets]
    for turn in range(rounds + 1):
        for place in np.roll(range(len(steps)), turn).tolist():
            began = time.perf_counter()
            steps[place](turn)
            if turn:
                times[place].append(round(time.perf_counter() - began, 5))
    return times


def peak_bytes(recipe: Recipe, arm: str, target: int, original: int) -> tuple[int, int, str]:
    """Memory held before the first step and at the peak of two, and the device that holds it."""
    step = _stepper(recipe, arm, target, original)
    base = most_held()
    for turn in range(2):  # from the second on with the optimizer's state
        step(turn)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return base, most_held(), device


def most_held() -> int:
    """The most bytes that this process has held so far.

    On Linux from the process's status, because ``getrusage`` starts from the most that the parent process held.
    """
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        return int(lines["VmHWM"].split()[0]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _stepper(recipe: Recipe, arm: str, target: int, original: int) -> Callable[[int], None]:
    """Return a function that takes one optimizer step on a fresh model, as ``training.trainer`` does."""
    device = default_device()
    config = load_config(recipe.model)
    extension = plan_extension(
        config, target_length=target, original_length=original, interpolation=recipe.interpolation
    )
    model = load_model(recipe.model, extension, device=device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.training.learning_rate)
    precision = AUTOCAST[choose_precision(recipe.training.precision, device)]
    spans = np.full(EXAMPLES, target)

    def step(turn: int) -> None:
        rng = Rng.of(recipe.seed, 0, np.arange(turn * EXAMPLES, (turn + 1) * EXAMPLES))
        positions = torch.from_numpy(SCHEMES[arm](rng, original, target, spans, PAPER).position_ids())
        ids = torch.randint(0, config.vocab_size, positions.shape)
        for row, place in zip(ids.to(device), positions.to(device), strict=True):
            batch = {"input_ids": row[None], "position_ids": place[None], "labels": row[None]}
            with torch.autocast(device.type, precision, enabled=precision is not None):
                loss = model(**batch, attention_mask=torch.ones_like(row[None]), use_cache=False).loss
            (loss / EXAMPLES).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def costs_markdown(records: Sequence[CostRecord]) -> str:
    """Return tables of step time and peak memory by target, ours and the paper's."""
    by = {(r.arm, r.target): r for r in records}
    targets, arms = sorted({r.target for r in records}), list(dict.fromkeys(r.arm for r in records))
    lengths = [format_length(target) for target in targets]
    columns: dict[str, Callable[[CostRecord], str]] = {
        "seconds a step": lambda r: f"{statistics.median(r.step_seconds):.3f}",
        "peak memory, MiB": lambda r: f"{r.peak_bytes / 2**20:,.0f}",
    }
    setup = (
        f"A step is {EXAMPLES} windows, one in memory at a time, on {records[0].device}. As in the paper's figure, both rows take "
        "the same number of windows in a step: a window of full-length training has as many tokens as the target, a window of "
        "PoSE as many as the original length."
    )
    parts = [setup]
    for name, cell in columns.items():
        lines = [[display_name(arm), *(cell(by[arm, t]) if (arm, t) in by else "–" for t in targets)] for arm in arms]
        parts.append(markdown_table([f"{name}, target", *lengths], lines))
    theirs = {arm: (*paper.EFFICIENCY_HOURS[arm], *paper.EFFICIENCY_GB[arm]) for arm in paper.EFFICIENCY_GB}
    head = ["the paper", *(f"{unit}, {x}x" for unit in ("hours", "GB a GPU") for x in (2, 4, 8))]
    parts.append(
        markdown_table(head, [[display_name(arm), *(f"{v:g}" for v in values)] for arm, values in theirs.items()])
    )
    return "\n\n".join(parts)


def by_round(seconds: Sequence[Sequence[float]]) -> np.ndarray:
    """Divide step times [targets, rounds] by the mean of their round; what slows a whole round down cancels."""
    times = np.array(seconds)
    return times / times.mean(axis=0)


def constant_costs(records: Sequence[CostRecord]) -> list[Finding]:
    """Judge whether PoSE's step time and peak memory are the same at every target, to two per cent."""
    pose = [r for r in records if r.arm == "pose"]
    same = f"PoSE's {{}} is the same at every target, to {_TOLERANCE:.0%}"
    if len(pose) < len(FACTORS):
        return []
    measures = {
        "step time": np.median(by_round([r.step_seconds for r in pose]), axis=1).tolist(),
        "peak memory": [float(r.peak_bytes) for r in pose],
    }
    above = {name: max(values) / min(values) - 1 for name, values in measures.items()}
    return [
        Finding(same.format(name), most <= _TOLERANCE, f"most {most:.1%} above the least")
        for name, most in above.items()
    ]
