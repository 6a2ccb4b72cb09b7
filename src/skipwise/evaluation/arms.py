"""The arms of a run: which models its recipe measures, on which texts, after training and during it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from transformers import PreTrainedTokenizerBase

from skipwise.data.store import TokenStore
from skipwise.errors import DataError
from skipwise.evaluation.batches import Batch, Readings, keeping_losses
from skipwise.evaluation.models import EvaluatedModel
from skipwise.evaluation.other_text import other_text
from skipwise.evaluation.runner import answered, plan_prompts, plan_readings, read_texts
from skipwise.evaluation.specification import RULER, Specification, specification_of
from skipwise.evaluation.texts import EvaluationText, Segment, fair_documents, longest_first, spread_segments
from skipwise.model.extension import Extension
from skipwise.model.fingerprint import weights_fingerprint
from skipwise.model.origin import Origin
from skipwise.recipes.schema import Arm, Recipe
from skipwise.results import token_losses
from skipwise.results.records import ReadingRecord, Record
from skipwise.results.run_folder import RunFolder
from skipwise.results.statistics import loss


@dataclass(frozen=True)
class RunEvaluation:
    """What is measured of the arms of one run."""

    recipe: Recipe
    extension: Extension
    tokenizer: PreTrainedTokenizerBase
    specification: Specification
    texts: list[EvaluationText]
    far: list[Segment]  # of the target length, on which training steps are compared; empty if the last step is kept
    other: EvaluationText | None = None  # of other kinds, in segments of the original length

    @property
    def documents(self) -> dict[str, list[str]]:
        """Names of the documents that are read, by text."""
        return {text.source: [one.document for one in text.documents] for text in self.texts}

    @property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the texts, by which a resumed run knows that they are the same."""
        return {f"evaluation text {text.source}": text.fingerprint for text in self.texts}

    @property
    def facts(self) -> dict[str, object]:
        """What is measured, for ``run.json``: a resumed run may ask for less than its records hold."""
        asked = self.specification
        windows = {*asked.windows, self.extension.rope.original_length}
        return {
            "documents": self.documents,
            "tokens": {text.source: [len(one.tokens) for one in text.documents] for text in self.texts},
            "windows": asked.windows,
            "strides": {str(window): asked.stride_of(window) for window in sorted(windows)},
            "tasks": [task.removeprefix(RULER) for task in asked.tasks],  # as records name them
            "prompt_lengths": asked.prompt_lengths,
            "trials": asked.trials,
            "other": self.other is not None,
        }

    def label(self, arm: Arm) -> str:
        """The arm's name in the results: the trained one is called after its method or scheme."""
        return self.recipe.arm if arm == "trained" else arm

    def model(self, arm: Arm, trained: Path) -> EvaluatedModel:
        """The arm's model: the base as it is, the base with its positions interpolated, or the ``trained`` folder."""
        name = str(trained) if arm == "trained" else self.recipe.model
        extension = self.extension if arm == "pi-only" else None
        lengths = self.extension.rope.original_length, self.extension.target_length
        weights = weights_fingerprint(name)
        return EvaluatedModel(self.label(arm), name, *lengths, weights=weights, extension=extension)

    def batches(self, model: EvaluatedModel) -> list[Batch]:
        """What is measured of an arm; the original reads its own window too, to compare the others with.

        Other text shows what training costs, so the base with its positions interpolated does not read it.
        """
        own = {model.original} if model.label == "original" else set()
        batches: list[Batch] = []
        for text in self.texts:
            windows = sorted({*text.windows, *(window for window in own if window <= text.windows[-1])})
            batches += plan_readings(self.specification, model, [text], windows)
        if self.other and model.label != "pi-only":
            batches += plan_readings(self.specification, model, [self.other])
        return [*batches, *plan_prompts(self.specification, model, self.tokenizer, Console(quiet=True))]

    @property
    def steps(self) -> list[int]:
        """The training steps that are measured; where the best is kept, the last one too."""
        return self.recipe.measured_steps

    def step_batches(self, step: int) -> list[Readings]:
        """What is measured of the model in training: the first text at the longest window, and the far segments.

        Training waits for it, so it is less than what is measured afterwards.
        """
        first = self.texts[0]
        target = self.extension.target_length
        text = replace(first, segments={target: self.far})
        model = EvaluatedModel(self.label("trained"), "", self.extension.rope.original_length, target)
        return [
            Readings([replace(request, step=step) for request in batch.requests], batch.documents)
            for batch in plan_readings(self.specification, model, [text], [first.windows[-1]])
        ]

    def far_losses(self, records: Iterable[Record]) -> dict[int, float]:
        """By training step the mean loss in nats of the tokens beyond the original window, each read with all of its
        segment before it."""
        # By key, because after a kill one may have been measured twice.
        segments: dict[int, dict[str, ReadingRecord]] = {}
        for record in records:
            if isinstance(record, ReadingRecord) and record.mode == "segment" and record.step is not None:
                segments.setdefault(record.step, {})[record.key] = record
        original = self.extension.rope.original_length
        return {
            step: loss(list(read.values()), original).mean
            for step, read in segments.items()
            if len(read) == len(self.far)  # a kill may have left a part of a step's records
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
    """Plan every measurement of a run; settings that cannot be measured are refused here, before training.

    ``store`` holds the training text, and ``origin`` says which documents of it are trained on; these are not read.
    """
    original, target = extension.rope.original_length, extension.target_length
    specification = specification_of(recipe, original, target, precision)
    stores = {recipe.data.source: store}
    texts = read_texts(specification, recipe.model, [origin], console, stores)
    far: list[Segment] = []
    if recipe.evaluation.keep == "best":
        quiet = Console(quiet=True)
        first = specification.texts[0]
        known = stores[first.source]
        among = fair_documents(known, first, [origin], quiet)
        far = spread_segments(known, among, target, specification.segments)
        if not far:
            longest = longest_first(known, among)[0]
            raise DataError(
                f"evaluation.keep 'best' compares steps on documents of the target, {target:,} tokens; the longest of "
                f"{first.source} to measure on, {known.names[longest]}, has {known.lengths[longest]:,}: give longer "
                "text by evaluation.source, lower the target, or set evaluation.keep=last"
            )
    other = other_text(tokenizer, original, [origin], console) if recipe.evaluation.other else None
    planned = RunEvaluation(recipe, extension, tokenizer, specification, texts, far, other)
    extended = EvaluatedModel("the extended model", "", original, target)
    list(plan_prompts(specification, extended, tokenizer, console, required=True))  # says or refuses what is too short
    for warning in specification.warnings([extended], texts):
        console.print(warning, style="yellow", soft_wrap=True)
    return planned


def measure_arms(evaluation: RunEvaluation, run: RunFolder, console: Console) -> None:
    """Measure every arm; what the results hold already is not measured again. Losses of single tokens are kept for LongPPL."""
    for arm in evaluation.recipe.evaluation.arms:
        model = evaluation.model(arm, run.model)
        load = partial(model.load, evaluation.specification.precision)
        batches = keeping_losses(evaluation.batches(model), run.path / token_losses.FOLDER)
        answered(load, batches, run.results, console)
