"""Plan and measure the models of ``skipwise evaluate``, and the arms of a run.

``run.json`` has the settings, ``results.jsonl`` the records. The same command continues a stopped evaluation.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from skipwise.data.ruler import read_ruler_data
from skipwise.data.store import TokenStore
from skipwise.errors import DataError, RunError, counted
from skipwise.evaluation.measure import answered, missing, require_memory, seconds_here, time_of, workloads
from skipwise.evaluation.plan import Batch, Readings, plan_model, plan_prompts, plan_readings, read_texts
from skipwise.evaluation.server import Server
from skipwise.evaluation.specification import (
    RULER,
    EvaluatedModel,
    Specification,
    assumed_length,
    is_ruler,
    specification_of,
)
from skipwise.evaluation.texts import (
    EvaluationText,
    Segment,
    fair_documents,
    longest_segment,
    other_text,
    spread_segments,
)
from skipwise.model.config import Origin, load_config, read_origin, weights_fingerprint
from skipwise.model.cost import meta_model
from skipwise.model.extension import Extension
from skipwise.model.loading import load_tokenizer
from skipwise.model.precision import dtype_of
from skipwise.recipes.schema import Baseline, Recipe
from skipwise.results.records import BenchmarkRecord, Measured, ReadingRecord, Record, append_record, read_records
from skipwise.results.run_folder import RunFolder
from skipwise.results.statistics import loss

if TYPE_CHECKING:
    from skipwise.evaluation.benchmarks import Benchmarks

QUIET = Console(quiet=True)


@dataclass(frozen=True)
class Plan:
    """The requests of each model, by its label."""

    models: Sequence[EvaluatedModel]
    batches: dict[str, list[Batch]]
    fingerprints: dict[str, str]  # of the texts

    @property
    def requests(self) -> int:
        """Number of records."""
        return sum(len(batch.requests) for batches in self.batches.values() for batch in batches)

    def only(self, shard: tuple[int, int]) -> "Plan":
        """Return part i of n of each model's requests."""
        return replace(self, batches={label: missing(batches, (), shard) for label, batches in self.batches.items()})

    def time(self, precision: str) -> str:
        """Return how long measuring takes on this machine, without benchmarks, as a phrase."""
        seconds: Counter[str] = Counter()
        for model in self.models:
            seconds.update(seconds_here(self.batches[model.label], load_config(model.name), precision))
        return time_of(dict(seconds))


def plan_models(models: Sequence[EvaluatedModel], specification: Specification, console: Console) -> Plan:
    """Plan what is measured of every model and base; print what it can and cannot show.

    Raises:
        DataError: a model and its base read other tokens.
    """
    for model in models:
        if model.control:
            console.print(f"base: {model.name} is measured too (--base none leaves it out)", soft_wrap=True)
        if warning := assumed_length(model):
            console.print(warning, style="yellow", soft_wrap=True)
    origins = [origin for model in models if (origin := read_origin(model.name))]
    texts: dict[str, list[EvaluationText]] = {}
    batches: dict[str, list[Batch]] = {}
    for model in models:
        shown = console if model is models[0] else QUIET
        texts[model.label] = read_texts(specification, model.name, origins, shown)
        tokenizer, others = load_tokenizer(model.name), []
        windows = {other.original for other in models if other.base == model.label}
        if specification.documents and specification.other_texts:  # a base reads other text as its models do
            inside = windows | (set() if model.control else {model.original})
            lengths = sorted({longest_segment(window) for window in inside})
            others = [other_text(tokenizer, length, origins, shown) for length in lengths]
        more = windows | {model.original}
        batches[model.label] = plan_model(
            specification, model, tokenizer, texts[model.label], console, more=more, other=others
        )
    digests = {label: [text.digest for text in read] for label, read in texts.items()}
    for model in models:
        if model.base and digests[model.label] != digests[model.base]:
            raise DataError(
                f"{model.label} and {model.base} tokenise the text differently, so losses do not compare; give the model's own "
                "base, or --base none"
            )
        if not model.control and digests[model.label] != digests[models[0].label]:
            console.print(
                f"{model.label} reads other tokens than {models[0].label}: perplexities do not compare", style="yellow"
            )
    if specification.power:
        console.print(specification.power, soft_wrap=True)
    for warning in specification.warnings(models, texts[models[0].label]):
        console.print(warning, style="yellow", soft_wrap=True)
    fingerprints = {f"text {text.source} for {label}": text.digest for label, read in texts.items() for text in read}
    if any(map(is_ruler, specification.tasks)):
        fingerprints["text of RULER"] = read_ruler_data(specification.ruler_data).fingerprint
    return Plan(models, batches, fingerprints)


def evaluate(
    models: Sequence[EvaluatedModel],
    specification: Specification,
    *,
    shard: tuple[int, int] = (1, 1),
    benchmarks: "Benchmarks | None" = None,
    server: Server | None = None,
    earlier: Sequence[Path] = (),
    out: Path | None = None,
    console: Console,
) -> RunFolder:
    """Measure every model and base into the folder ``out``, or continue there.

    ``shard`` is (i, n): part i of n of the requests is measured; part 1 runs the benchmarks too. Records of the folders
    ``earlier`` are taken over. A ``server`` answers the prompts of the first model.

    Raises:
        RunError: ``out`` has another evaluation, or a text changed.
        DataError: there is nothing to measure.
    """
    settings = specification.facts | {"models": [model.as_dict() for model in models]}
    folder = _folder(out or Path("evaluations") / models[0].label.replace("/", "-"), settings)
    plan = plan_models(models, specification, console)
    if not benchmarks and not plan.only(shard).requests:
        raise DataError(
            f"part {shard[0]} of {shard[1]} has no records; give longer --lengths, other --tasks, or fewer parts"
        )
    if benchmarks and shard[0] == 1:
        _ = benchmarks.found  # refuses before any work
    if server:
        server.require_window(max(specification.prompt_lengths, default=0))
        console.print(f"{server.engine} answers the prompts with its model {server.name}", soft_wrap=True)
    facts = {"evaluation": settings, "fingerprints": plan.fingerprints, "records": plan.requests}
    folder.begin(**facts)
    folder.require_same(plan.fingerprints)
    folder.record(**facts)
    console.print(f"folder: {folder.path}", soft_wrap=True)
    _take_over(earlier, folder, plan, console)
    for model in models:
        load = partial(model.load, specification.precision)
        answered(load, plan.batches[model.label], folder.results, console, None if model.control else server, shard)
        if benchmarks and shard[0] == 1:
            keep = partial(append_record, folder.results)
            benchmarks.run(model, specification.precision, read_records(folder.results), keep, console)
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


def _take_over(earlier: Iterable[Path], folder: RunFolder, plan: Plan, console: Console) -> None:
    """Append the records of other folders that this evaluation needs and lacks."""
    wanted = {request.key for batches in plan.batches.values() for batch in batches for request in batch.requests}
    models = {(model.label, model.digest) for model in plan.models}
    known = {record.key for record in read_records(folder.results) if isinstance(record, Measured)}
    for path in earlier:
        if not (results := RunFolder(path).results).is_file():
            raise RunError(f"{path} has no results.jsonl; give the folder of an evaluation")
        taken = {}
        for record in read_records(results):
            benchmark = isinstance(record, BenchmarkRecord) and (record.arm, record.digest) in models
            if isinstance(record, Measured) and record.key not in known and (benchmark or record.key in wanted):
                taken[record.key] = record
        append_record(folder.results, *taken.values())
        known |= taken.keys()
        console.print(f"{path}: {counted(len(taken), 'record')} taken over", soft_wrap=True)


@dataclass(frozen=True)
class RunEvaluation:
    """What is measured of the arms of one run."""

    recipe: Recipe
    extension: Extension
    tokenizer: PreTrainedTokenizerBase
    specification: Specification
    texts: list[EvaluationText]
    far: list[Segment]  # of the target length, to compare training steps; empty if the last step is kept
    other: EvaluationText | None = None  # of other kinds, in segments of the original length

    @property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the texts."""
        return {f"evaluation text {text.source}": text.fingerprint for text in self.texts}

    @property
    def facts(self) -> dict[str, object]:
        """What is measured, for ``run.json``: a resumed run may need fewer records than there are."""
        rule = self.specification
        windows = {*rule.windows, self.extension.rope.original_length}
        return {
            "documents": {text.source: [one.document for one in text.documents] for text in self.texts},
            "tokens": {text.source: [len(one.tokens) for one in text.documents] for text in self.texts},
            "windows": rule.windows,
            "strides": {str(window): rule.stride_of(window) for window in sorted(windows)},
            "tasks": [task.removeprefix(RULER) for task in rule.tasks],  # as in records
            "prompt_lengths": rule.prompt_lengths,
            "trials": rule.num_prompts,
            "other": self.other is not None,
        }

    def label(self, arm: Baseline) -> str:
        """Return the arm's name in the results: the trained model has the name of its method or scheme."""
        return self.recipe.arm if arm == "trained" else arm

    def model(self, arm: Baseline, trained: Path) -> EvaluatedModel:
        """Return the arm's model: the base, the base with its interpolation, or the folder ``trained``."""
        name = str(trained) if arm == "trained" else self.recipe.model
        extension = self.extension if arm == "untrained" else None
        lengths = self.extension.rope.original_length, self.extension.target_length
        return EvaluatedModel(self.label(arm), name, *lengths, weights=weights_fingerprint(name), extension=extension)

    def batches(self, model: EvaluatedModel) -> list[Batch]:
        """Plan an arm: the original also reads the original window; untrained reads no other text."""
        more = [model.original] if model.label == "original" else []
        other = [self.other] if self.other and model.label != "untrained" else []
        return plan_model(self.specification, model, self.tokenizer, self.texts, QUIET, more=more, other=other)

    @property
    def all_batches(self) -> list[Batch]:
        """All requests, those during training included, without the fingerprints of the weights."""
        lengths = self.extension.rope.original_length, self.extension.target_length
        models = [EvaluatedModel(self.label(arm), "", *lengths) for arm in self.specification.models]
        during = [batch for step in self.recipe.measured_steps for batch in self.step_batches(step)]
        return [*during, *(batch for model in models for batch in self.batches(model))]

    def step_batches(self, step: int) -> list[Readings]:
        """Plan the model at a training step: the first text at the longest window, and the far segments."""
        first, target = self.texts[0], self.extension.target_length
        text = replace(first, segments={target: self.far})
        model = EvaluatedModel(self.label("trained"), "", self.extension.rope.original_length, target)
        return [
            Readings([replace(request, step=step) for request in batch.requests], batch.documents)
            for batch in plan_readings(self.specification, model, [text], [first.windows[-1]])
        ]

    def far_losses(self, records: Iterable[Record]) -> dict[int, float]:
        """Return the mean loss in nats beyond the original window, over the far segments, by training step."""
        segments: dict[int, dict[str, ReadingRecord]] = {}  # by key: after a kill one may be there twice
        for record in records:
            if isinstance(record, ReadingRecord) and record.mode == "segment" and record.step is not None:
                segments.setdefault(record.step, {})[record.key] = record
        original = self.extension.rope.original_length
        return {
            step: loss(list(read.values()), original).mean
            for step, read in segments.items()
            if len(read) == len(self.far)  # a kill may leave a part of a step's records
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
    """Plan every measurement of a run, before training.

    ``store`` holds the training text; the documents of ``origin`` are trained on and not read.

    Raises:
        DataError, RecipeError: a setting cannot be measured.
    """
    original, target = extension.rope.original_length, extension.target_length
    specification = specification_of(recipe, original, target, precision)
    stores = {recipe.data.source: store}
    texts = read_texts(specification, recipe.model, [origin], console, stores)
    far: list[Segment] = []
    if recipe.evaluation.save_best:
        first = specification.texts[0]
        known = stores[first.source]
        among = fair_documents(known, first, [origin], QUIET)
        far = spread_segments(known, among, target, specification.segments)
        if not far:
            raise DataError(
                f"evaluation.save_best=true needs documents of the target length, and {first.source} has none of {target:,} tokens; "
                "give longer text by evaluation.source, or set evaluation.save_best=false"
            )
    other = other_text(tokenizer, original, [origin], console) if recipe.evaluation.other_texts else None
    extended = EvaluatedModel("the extended model", "", original, target)
    list(plan_prompts(specification, extended, tokenizer, console, required=True))  # prints or refuses short lengths
    for warning in specification.warnings([extended], texts):
        console.print(warning, style="yellow", soft_wrap=True)
    return RunEvaluation(recipe, extension, tokenizer, specification, texts, far, other)


def require_measurable(evaluation: RunEvaluation, device: torch.device) -> None:
    """Require this machine's memory to hold every window and prompt of a run, before training.

    Raises:
        EvaluationError: a length is certain not to fit.
    """
    config, itemsize = load_config(evaluation.recipe.model), dtype_of(evaluation.specification.precision).itemsize
    weights = itemsize * meta_model(config).num_parameters()
    require_memory(workloads(evaluation.all_batches), config, itemsize, weights, device)


def measure_arms(evaluation: RunEvaluation, run: RunFolder, console: Console) -> None:
    """Measure every arm; existing records are not measured again."""
    for arm in evaluation.specification.models:
        model = evaluation.model(arm, run.model)
        load = partial(model.load, evaluation.specification.precision)
        answered(load, evaluation.batches(model), run.results, console)
