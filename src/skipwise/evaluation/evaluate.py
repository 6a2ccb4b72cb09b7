"""Measure the models of ``skipwise evaluate`` and of a run; forecast the time and memory of measuring.

``run.json`` has the settings, ``results.jsonl`` the records. The same command continues a stopped evaluation: a request that
has a record, by its key, is not measured again.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from skipwise.data.store import TokenStore
from skipwise.data.text import KINDS
from skipwise.errors import DataError, EvaluationError, RunError, counted, out_of_memory
from skipwise.evaluation.perplexity import fed_tokens
from skipwise.evaluation.plan import (
    QUIET,
    Batch,
    Plan,
    Prompts,
    Readings,
    Subject,
    Workload,
    missing,
    plan_models,
    plan_readings,
    plan_subjects,
)
from skipwise.evaluation.specification import (
    RULER,
    EvaluatedModel,
    EvaluationText,
    Specification,
    longest_segment,
    most_segments,
    other_text,
    read_texts,
    specification_of,
)
from skipwise.model.config import Origin, load_config, weights_fingerprint
from skipwise.model.cost import FOUR_BITS, ForwardCost, Speed, inner_linear, machine_memory, meta_model, token_bytes
from skipwise.model.extension import Extension, extension_of
from skipwise.model.forward import default_device, dtype_of
from skipwise.progress import progress
from skipwise.recipes.schema import Recipe
from skipwise.results.records import BenchmarkRecord, Measured, ReadingRecord, Record, Results, read_records
from skipwise.results.run_folder import RunFolder
from skipwise.results.statistics import loss

if TYPE_CHECKING:
    from skipwise.evaluation.benchmarks import Benchmarks
    from skipwise.evaluation.server import Server


def evaluate(
    models: Sequence[EvaluatedModel],
    specification: Specification,
    *,
    shard: tuple[int, int] = (1, 1),
    benchmarks: "Benchmarks | None" = None,
    server: "Server | None" = None,
    earlier: Sequence[Path] = (),
    out: Path,
    console: Console,
) -> RunFolder:
    """Measure every model and base into the folder ``out``, or continue there.

    ``shard`` is (i, n): part i of n of the requests is measured; part 1 runs the benchmarks too. Records of the folders
    ``earlier`` are taken over. A ``server`` answers the prompts of the first model.
    """
    fields = [{key: value for key, value in vars(model).items() if key != "extension"} for model in models]
    settings = specification.facts | {"models": fields}
    folder = _folder(out, settings)
    plan = plan_models(models, specification, console)
    if not benchmarks and not plan.only(shard).requests:
        raise DataError(
            f"part {shard[0]} of {shard[1]} has no records; give longer --lengths, other --tasks, or fewer parts"
        )
    if benchmarks and shard[0] == 1:
        _ = benchmarks.ready  # refuses before any work
    if server:
        server.require_window(max(specification.prompt_lengths, default=0))
        console.print(f"{server.engine} answers the prompts with its model {server.name}", soft_wrap=True)
    facts = {"evaluation": settings, "fingerprints": plan.fingerprints, "records": len(plan.requests)}
    folder.begin(**facts)
    folder.require_same(plan.fingerprints)
    console.print(f"folder: {folder.path}", soft_wrap=True)
    results = Results(folder.results)
    _take_over(earlier, results, plan, console)
    measure(plan, results, console, shard=shard, server=server, benchmarks=benchmarks)
    return folder


def _folder(path: Path, settings: dict[str, Any]) -> RunFolder:
    """Return the folder of an evaluation: a new one, or one with the same settings."""
    folder = RunFolder(path)
    if folder.is_free:
        return folder
    begun = folder.read().get("evaluation", {})
    if "models" not in begun:
        raise RunError(f"{path} exists and is no evaluation; give another --out")
    if changed := [key for key in {**begun, **settings} if begun.get(key) != settings.get(key)]:
        values = ", ".join(key if key == "models" else f"{key} ({begun.get(key)!r})" for key in changed)
        raise RunError(f"{path} was begun with other settings: {values}; give the same, or another --out")
    return folder


def _take_over(earlier: Iterable[Path], results: Results, plan: Plan, console: Console) -> None:
    """Append the records of other folders that this evaluation needs and lacks."""
    wanted = {request.key for request in plan.requests}
    models = {(subject.model.label, subject.model.digest) for subject in plan.subjects}
    for path in earlier:
        if not (other := RunFolder(path).results).is_file():
            raise RunError(f"{path} has no results.jsonl; give the folder of an evaluation")
        taken = {}
        for record in read_records(other):
            benchmark = isinstance(record, BenchmarkRecord) and (record.arm, record.digest) in models
            if isinstance(record, Measured) and record.key not in results.keys and (benchmark or record.key in wanted):
                taken[record.key] = record
        results.append(*taken.values())
        console.print(f"{path}: {counted(len(taken), 'record')} taken over", soft_wrap=True)


def measure(
    plan: Plan,
    results: Results,
    console: Console,
    *,
    shard: tuple[int, int] = (1, 1),
    server: "Server | None" = None,
    benchmarks: "Benchmarks | None" = None,
) -> None:
    """Measure what ``results`` lacks, model by model; a model with nothing left is not loaded."""
    for subject in plan.subjects:
        model, left = subject.model, missing(subject.batches, results.keys, shard)
        if server and not model.control:
            if prompts := [batch for batch in left if isinstance(batch, Prompts)]:
                answer(server, prompts, console, results.append)
            left = [batch for batch in left if isinstance(batch, Readings)]
        if left:
            answer(model.load(plan.specification.precision), left, console, results.append)
        if benchmarks and shard[0] == 1:
            benchmarks.run(model, plan.specification.precision, results, console)


def answer(
    model: "PreTrainedModel | Server", batches: Sequence[Batch], console: Console, on_record: Callable[[Record], None]
) -> None:
    """Answer every request under one progress bar; ``on_record`` gets each record; explain too little memory."""
    parts = [batch.workload for batch in batches]
    if isinstance(model, torch.nn.Module):
        doing, cost = f"measuring {batches[0].requests[0].arm}", ForwardCost.of(model)
        operations = [cost.token_seconds(part.length, Speed(1, 1), scored=part.scored) for part in parts]
    else:
        doing, operations = f"prompts at {model.url}", [1.0] * len(parts)
    total = sum(part.tokens * each for part, each in zip(parts, operations, strict=True))
    with progress(doing, total, console) as work:
        for batch, part, each in zip(batches, parts, operations, strict=True):

            def advance(tokens: int, each: float = each) -> None:
                work.advance(tokens * each)

            try:
                for record in batch.answers(model, advance):  # type: ignore[arg-type]
                    on_record(record)
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                raise EvaluationError(
                    f"out of memory at {part}; finished records are kept. Lower the lengths (--lengths, evaluation.windows, "
                    "evaluation.prompt_lengths), leave out evaluation.eval_steps, and run the command again"
                ) from error


@dataclass(frozen=True)
class RunEvaluation(Plan):
    """The requests of the arms of a run, without the fingerprints of their weights, and of its training steps."""

    recipe: Recipe

    @property
    def texts(self) -> list[EvaluationText]:
        return self.subjects[0].texts

    @property
    def fingerprints(self) -> dict[str, str]:
        return {f"evaluation text {text.source}": text.fingerprint for text in self.texts}

    @property
    def facts(self) -> dict[str, object]:
        """What is measured, for ``run.json``: a resumed run may need fewer records than there are."""
        rule = self.specification
        return {
            "documents": {text.source: [segment.document for segment in text.documents] for text in self.texts},
            "tokens": {text.source: [len(segment.tokens) for segment in text.documents] for text in self.texts},
            "windows": rule.windows,
            "strides": {str(window): rule.stride_of(window) for window in sorted({*rule.windows, rule.original})},
            "tasks": [task.removeprefix(RULER) for task in rule.tasks],  # as in records
            "prompt_lengths": rule.prompt_lengths,
            "trials": rule.num_prompts,
            "other": rule.other_texts,
            "load_in_4bit": rule.load_in_4bit,
        }

    def plan_trained(self, folder: Path) -> Plan:
        """Plan the arms with the fingerprints of their weights; ``folder`` is the trained model."""
        subjects = []
        for subject in self.subjects:
            name = subject.model.name or str(folder)
            model = replace(subject.model, name=name, weights=weights_fingerprint(name))
            subjects.append(replace(subject, model=model))
        return plan_subjects(self.specification, subjects, QUIET)

    @property
    def batches(self) -> list[Batch]:
        """All requests, those during training included, without the fingerprints of the weights."""
        steps = chain.from_iterable(map(self.step_batches, self.recipe.measured_steps))
        return [*steps, *chain.from_iterable(subject.batches for subject in self.subjects)]

    def step_batches(self, step: int) -> list[Readings]:
        """Plan a training step: the first text's longest window, and far segments."""
        rule, first = self.specification, self.texts[0]
        text = replace(first, segments={rule.target: first.far})
        model = EvaluatedModel(self.recipe.positions.scheme, "", rule.original, rule.target)
        return [
            replace(batch, requests=[replace(request, step=step) for request in batch.requests])
            for batch in plan_readings(rule, model, [text], [first.windows[-1]])
        ]

    def far_losses(self, records: Iterable[Record]) -> dict[int, float]:
        """Return by training step the mean far loss, in nats beyond the original window."""
        segments: dict[int, dict[str, ReadingRecord]] = {}  # by key: after a kill one may be there twice
        for record in records:
            if isinstance(record, ReadingRecord) and record.mode == "segment" and record.step is not None:
                segments.setdefault(record.step, {})[record.key] = record
        return {
            step: loss(list(read.values()), self.specification.original).mean
            for step, read in segments.items()
            if len(read) == len(self.texts[0].far)  # a kill may leave a part of a step's records
        }


def plan_evaluation(
    recipe: Recipe,
    extension: Extension,
    tokenizer: PreTrainedTokenizerBase,
    store: TokenStore,
    origin: Origin,
    precision: str,
    console: Console,
) -> RunEvaluation:
    """Plan every measurement of a run, before training; the documents of ``origin`` are trained on and not read.

    The original model also reads in its own window; the untrained one reads no text of other kinds.
    """
    original, target = extension.rope.original_length, extension.target_length
    specification = specification_of(recipe, original, target, precision)
    texts = read_texts(specification, tokenizer, [origin], console, {recipe.data.source: store})
    other = [other_text(tokenizer, original, [origin], console)] if specification.other_texts else []
    subjects = [
        Subject(
            EvaluatedModel(
                recipe.positions.scheme if arm == "trained" else arm,
                "" if arm == "trained" else recipe.model,
                original,
                target,
                extension=extension if arm == "untrained" else None,
            ),
            tokenizer,
            texts,
            {original} if arm == "original" else set(),
            [] if arm == "untrained" else other,
        )
        for arm in specification.models
    ]
    return RunEvaluation(specification, plan_subjects(specification, subjects, console).subjects, recipe)


def planned(recipe: Recipe, original: int, target: int) -> Iterator[Workload]:
    """Yield the largest workloads of a recipe, before its texts are known; lengths are in tokens."""
    rule = specification_of(recipe, original, target, "float32")
    arms, steps = rule.models, recipe.measured_steps
    document, texts = np.empty(rule.tokens_read(rule.windows[-1])), len(rule.texts)
    readings = Counter({length: len(arms) * texts * rule.documents for length in rule.windows})
    if "original" in arms and original <= rule.windows[-1] and original not in readings:
        readings[original] = texts * rule.documents
    readings[rule.windows[-1]] += len(steps) * rule.documents
    for length, documents in readings.items():
        yield Workload("windows", length, documents * fed_tokens([document], length, rule.stride_of(length)))
    segments = Counter({length: len(arms) * texts * rule.segments for length in rule.segment_lengths})
    if rule.save_best:
        segments[target] += len(steps) * rule.segments
    if rule.other_texts:
        length = longest_segment(original)
        segments[length] += len({*arms} - {"untrained"}) * len(KINDS) * most_segments(length)
    for length, number in segments.items():
        yield Workload("windows", length, number * length)
    for task, length in product(rule.tasks, rule.prompt_lengths):
        yield Workload(f"{task} prompts", length, len(arms) * rule.num_prompts * length, scored=False)


def measuring_seconds(parts: Iterable[Workload], cost: ForwardCost, speed: Speed) -> dict[str, float]:
    """Return the seconds by kind and length, without the decoding of answers."""
    seconds = defaultdict[str, float](float)
    for part in parts:
        seconds[str(part)] += part.tokens * cost.token_seconds(part.length, speed, scored=part.scored)
    return seconds


def seconds_here(batches: Iterable[Batch], config: PretrainedConfig, precision: str) -> dict[str, float]:
    """Return the seconds of batches on this machine, from a short timing of the model's layers."""
    cost, speed = ForwardCost.of(meta_model(config)), Speed.measured(config, precision, default_device())
    return measuring_seconds((batch.workload for batch in batches), cost, speed)


def time_here(plan: Plan) -> str:
    """Return how long a plan takes on this machine, without benchmarks, as a phrase."""
    precision = plan.specification.precision
    models = [seconds_here(each.batches, load_config(each.model.name), precision) for each in plan.subjects]
    return time_of({part: sum(seconds.get(part, 0.0) for seconds in models) for part in chain(*models)})


def time_of(seconds: dict[str, float]) -> str:
    """Return how long measuring takes, and what takes longest, as a phrase."""
    if not seconds:
        return "measuring nothing"
    longest = max(seconds, key=lambda part: seconds[part])
    total, most = (timedelta(seconds=round(each)) for each in (sum(seconds.values()), seconds[longest]))
    return f"measuring about {total}, of which {longest} {most}"


def print_planned(recipe: Recipe, rate: float, memory: float, console: Console) -> None:
    """Print time and memory of measuring on a GPU of ``rate`` FLOP/s and ``memory`` bytes."""
    config = load_config(recipe.model)
    extension = extension_of(config, recipe)
    parts = list(planned(recipe, extension.rope.original_length, extension.target_length))
    seconds = measuring_seconds(parts, ForwardCost.of(meta_model(config)), Speed(rate, rate))
    console.print(f"After training: {time_of(seconds)}, on one GPU.", soft_wrap=True)
    if text := too_long(parts, config, "bf16", memory, four_bits=recipe.evaluation.load_in_4bit):
        console.print(f"Measuring does not fit: {text}", style="yellow", soft_wrap=True)


def require_measurable(evaluation: RunEvaluation, device: torch.device) -> None:
    """Require this machine's memory to hold every window and prompt of a run, before training."""
    config, parts = load_config(evaluation.recipe.model), [batch.workload for batch in evaluation.batches]
    memory, rule = machine_memory(device), evaluation.specification
    if memory and (text := too_long(parts, config, rule.precision, memory, four_bits=rule.load_in_4bit)):
        raise EvaluationError(text)


def too_long(
    parts: Sequence[Workload], config: PretrainedConfig, precision: str, memory: float, *, four_bits: bool = False
) -> str:
    """Return which length certainly exceeds ``memory`` bytes next to the weights; empty if none."""
    itemsize, model = dtype_of(precision).itemsize, meta_model(config)
    weights: float = itemsize * model.num_parameters()
    if four_bits:
        weights -= (itemsize - FOUR_BITS) * sum(layer.weight.numel() for layer in inner_linear(model))
    each = {scored: token_bytes(config, itemsize, cached=not scored) for scored in {part.scored for part in parts}}
    part = max(parts, key=lambda part: part.length * each[part.scored], default=None)
    if part is None or (needed := weights + part.length * each[part.scored]) <= memory:
        return ""
    way = "a larger GPU" if four_bits else "evaluation.load_in_4bit=true or a larger GPU"
    if weights > memory:
        return f"the weights take {weights / 1e9:,.1f} GB, and there are {memory / 1e9:,.1f} GB; choose {way}"
    most = int((memory - weights) // each[part.scored])
    return (
        f"{part} take {needed / 1e9:,.1f} GB or more, and there are {memory / 1e9:,.1f} GB; at most {most:,} tokens may fit. Lower "
        f"{'evaluation.windows' if part.scored else 'evaluation.prompt_lengths'} (--lengths of evaluate), or choose {way}"
    )
