"""Answer requests and keep their records; estimate time and memory of measuring.

A request that has a record, by its key, is not measured again.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from transformers import PretrainedConfig, PreTrainedModel

from skipwise.data.text import KINDS
from skipwise.errors import EvaluationError, out_of_memory
from skipwise.evaluation.perplexity import fed_tokens
from skipwise.evaluation.plan import Batch, Prompts, Readings, Request
from skipwise.evaluation.server import Server
from skipwise.evaluation.specification import specification_of
from skipwise.evaluation.texts import longest_segment, most_segments
from skipwise.model.config import load_config
from skipwise.model.cost import ForwardCost, Speed, machine_memory, meta_model, token_bytes
from skipwise.model.extension import extension_of
from skipwise.model.precision import default_device
from skipwise.progress import progress
from skipwise.recipes.schema import Recipe
from skipwise.results.records import Measured, ReadingRecord, Record, append_record, read_records

_BF16 = 2  # bytes of a number


def missing(batches: Iterable[Batch], known: Collection[str], shard: tuple[int, int] = (1, 1)) -> list[Batch]:
    """Keep the requests without a record that belong to ``shard``, part i of n."""
    part, parts = shard
    turn, rest = cycle(range(1, parts + 1)), []  # over all batches: many hold a single request
    for batch in batches:
        ours = {request.key for request in batch.requests if next(turn) == part}
        rest.append(batch.only(ours.difference(known)))
    return [batch for batch in rest if batch.requests]


def answered(
    load: Callable[[], PreTrainedModel],
    batches: Sequence[Batch],
    results: Path | None,
    console: Console,
    server: Server | None = None,
    shard: tuple[int, int] = (1, 1),
) -> list[Record]:
    """Measure the requests of ``shard`` that ``results`` lacks; return the records of all.

    Each record is appended to ``results`` at once; None keeps them in memory. ``load`` is called only if something is left to
    measure. A ``server`` answers the prompts in its place.
    """
    made: dict[str, Record] = {r.key: r for r in read_records(results) if isinstance(r, Measured)} if results else {}

    def keep(record: Record) -> None:
        assert isinstance(record, Measured)
        made[record.key] = record
        if results is not None:
            append_record(results, record)

    left = missing(batches, made.keys(), shard)
    if server and (prompts := [batch for batch in left if isinstance(batch, Prompts)]):
        with progress(f"prompts at {server.url}", sum(batch.tokens for batch in prompts), console) as work:
            for batch in prompts:
                for record in batch.served(server, work.advance):
                    keep(record)
        left = [batch for batch in left if not isinstance(batch, Prompts)]
    if left:
        measure(load(), left, console, keep)
    return [made[request.key] for batch in batches for request in batch.requests if request.key in made]


def measure(
    model: PreTrainedModel, batches: Sequence[Batch], console: Console, on_record: Callable[[Record], None]
) -> None:
    """Answer every request under one progress bar; ``on_record`` gets each record."""
    label = batches[0].requests[0].arm
    cost, speed = ForwardCost.of(model), Speed(1, 1)
    operations = [cost.token_seconds(batch.length, speed, scored=isinstance(batch, Readings)) for batch in batches]
    total = sum(batch.tokens * each for batch, each in zip(batches, operations, strict=True))
    with progress(f"measuring {label}", total, console) as work:
        for batch, each in zip(batches, operations, strict=True):

            def advance(tokens: int, each: float = each) -> None:
                work.advance(tokens * each)

            for record in explained_answers(model, batch, advance):
                on_record(record)


def explained_answers(
    model: PreTrainedModel, batch: Batch, on_progress: Callable[[int], None] | None = None
) -> Iterator[ReadingRecord | Request]:
    """Answer a batch; explain too little memory.

    Raises:
        EvaluationError: with the length and the setting.
    """
    label, length = batch.requests[0].arm, batch.length
    try:
        yield from batch.answers(model, on_progress)
    except EvaluationError as error:
        raise EvaluationError(f"{label}: {error}") from error
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise EvaluationError(
            f"out of memory measuring {label} at {length:,} tokens; finished records are kept. Lower the lengths (--lengths, "
            "evaluation.windows, evaluation.prompt_lengths), leave out evaluation.eval_steps, and run the command again"
        ) from error


@dataclass(frozen=True)
class Workload:
    """The tokens that one kind of measurement reads at one length."""

    what: str
    length: int  # tokens
    tokens: int  # in all
    scored: bool = True  # whether every token has logits; prompts have a KV cache instead

    def __str__(self) -> str:
        return f"{self.what} of {self.length:,} tokens"


def workloads(batches: Iterable[Batch]) -> list[Workload]:
    """Return the workload of each batch."""
    return [
        Workload(f"{batch.requests[0].task} prompts", batch.length, batch.tokens, scored=False)
        if isinstance(batch, Prompts)
        else Workload("windows", batch.length, batch.tokens)
        for batch in batches
    ]


def planned(recipe: Recipe, original: int, target: int) -> Iterator[Workload]:
    """Yield the largest workloads of a recipe, before its texts are known; lengths are in tokens."""
    rule, arms = specification_of(recipe, original, target, "float32"), recipe.evaluation.models
    document, texts = np.empty(rule.tokens_read(rule.windows[-1])), len(arms) * len(rule.texts)
    readings = {length: texts * rule.documents for length in rule.windows}
    if "original" in arms and original <= rule.windows[-1]:
        readings.setdefault(original, len(rule.texts) * rule.documents)
    if steps := len(recipe.measured_steps):  # of the first text
        readings[rule.windows[-1]] += steps * rule.documents
    for length, documents in readings.items():
        yield Workload("windows", length, documents * fed_tokens([document], length, rule.stride_of(length)))
    segments = {length: texts for length in rule.segment_lengths}
    if steps and rule.save_best:
        segments[target] = segments.get(target, 0) + steps
    for length, times in segments.items():
        yield Workload("windows", length, times * rule.segments * length)
    if rule.other_texts and (readers := len({*arms} - {"untrained"})):
        length = longest_segment(original)
        yield Workload("windows", length, readers * len(KINDS) * most_segments(length) * length)
    for task in rule.tasks:
        for length in rule.prompt_lengths:
            yield Workload(f"{task} prompts", length, len(arms) * rule.num_prompts * length, scored=False)


def measuring_seconds(parts: Iterable[Workload], cost: ForwardCost, speed: Speed) -> dict[str, float]:
    """Return the seconds of reading, by kind and length; shared prefixes and the decoding of answers are not counted."""
    seconds: dict[str, float] = {}
    for part in parts:
        each = cost.token_seconds(part.length, speed, scored=part.scored)
        seconds[str(part)] = seconds.get(str(part), 0.0) + part.tokens * each
    return seconds


def seconds_here(batches: Iterable[Batch], config: PretrainedConfig, precision: str) -> dict[str, float]:
    """Return the seconds of batches on this machine, from a short timing of the model's layers."""
    speed = Speed.measured(config, precision, default_device())
    return measuring_seconds(workloads(batches), ForwardCost.of(meta_model(config)), speed)


def time_of(seconds: dict[str, float]) -> str:
    """Return how long measuring takes, and what takes longest, as a phrase."""
    if not seconds:
        return "measuring nothing"
    longest = max(seconds, key=lambda part: seconds[part])
    total, most = (timedelta(seconds=round(each)) for each in (sum(seconds.values()), seconds[longest]))
    return f"measuring about {total}, of which {longest} {most}"


def print_planned(recipe: Recipe, rate: float, memory: float, console: Console) -> None:
    """Print time and memory of a recipe's measuring on one GPU of ``rate`` FLOP/s and ``memory`` bytes."""
    config = load_config(recipe.model)
    extension = extension_of(config, recipe)
    parts = list(planned(recipe, extension.rope.original_length, extension.target_length))
    model = meta_model(config)
    seconds = measuring_seconds(parts, ForwardCost.of(model), Speed(rate, rate))
    console.print(f"After training: {time_of(seconds)}, on one GPU.", soft_wrap=True)
    if text := too_long(parts, config, _BF16, _BF16 * model.num_parameters(), memory):
        console.print(f"Measuring does not fit: {text}", style="yellow", soft_wrap=True)


def require_memory(
    parts: Iterable[Workload], config: PretrainedConfig, itemsize: int, weights: float, device: torch.device
) -> None:
    """Require this machine's memory to hold every length, by a lower bound."""
    if (memory := machine_memory(device)) and (text := too_long(parts, config, itemsize, weights, memory)):
        raise EvaluationError(text)


def too_long(parts: Iterable[Workload], config: PretrainedConfig, itemsize: int, weights: float, memory: float) -> str:
    """Return which length certainly exceeds ``memory`` bytes next to ``weights`` bytes; empty if none."""
    longest = {part.scored: part for part in sorted(parts, key=lambda part: part.length)}
    each = {scored: token_bytes(config, itemsize, cached=not scored) for scored in longest}
    needed = {scored: weights + part.length * each[scored] for scored, part in longest.items()}
    if not needed or max(needed.values()) <= memory:
        return ""
    scored = max(needed, key=lambda scored: needed[scored])
    most = int(max(0, memory - weights) // each[scored])
    setting = "evaluation.windows and segment_lengths" if scored else "evaluation.prompt_lengths"
    return (
        f"{longest[scored]} take {needed[scored] / 1e9:,.1f} GB or more, and there are {memory / 1e9:,.1f} GB; at most {most:,} "
        f"tokens may fit. Lower {setting} (--lengths), or use a larger GPU"
    )
