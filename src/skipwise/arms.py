"""A job -> its arms: which models are measured, what is measured of each on which text, and the doing of it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from transformers import PreTrainedModel

from skipwise import kept
from skipwise.data.tokens import TokenStore, check_vocabulary
from skipwise.errors import DataError
from skipwise.evaluation.by_position import far_loss
from skipwise.evaluation.perplexity import sliding_perplexity
from skipwise.evaluation.texts import EvaluationText, Segments, longest_documents, spread_segments
from skipwise.job import Job, tokenise_source
from skipwise.measure import (
    AUTOCAST,
    Measurement,
    identity,
    measure,
    not_finite,
    passkey_measurement,
    perplexity_measurement,
    position_measurement,
)
from skipwise.model.loading import load_config, load_model
from skipwise.recipe import Arm, Evaluation, Recipe
from skipwise.results import Record, StepRecord, append_record, read_records
from skipwise.run_folder import RunFolder


@dataclass(frozen=True)
class EvaluationPlan:
    """What is measured, of each arm, on which text.

    Attributes:
        texts: the documents of each text.
        fingerprints: of the token stores that they come from, by text.
        measurements: by arm, in the order in which they are made.
        steps: of training, after which perplexity is measured too.
        far: where the best of these steps is kept, what they are compared on: int [segments, target length].
    """

    texts: dict[str, EvaluationText]
    fingerprints: dict[str, str]
    measurements: dict[Arm, list[Measurement]]
    steps: list[int]
    far: np.ndarray | None = None

    @property
    def documents(self) -> dict[str, list[str]]:
        """Names of the documents, by text."""
        return {source: text.names for source, text in self.texts.items()}

    def done(self, run: RunFolder) -> bool:
        """Whether every record that is asked for is there already."""
        records = read_records(run.results)
        known = {identity(record) for record in records}
        wanted = {(step, next(iter(self.texts))) for step in self.steps}
        return wanted <= _stepped(records) and all(
            m.identity in known for plan in self.measurements.values() for m in plan
        )


def plan_evaluation(job: Job, console: Console) -> EvaluationPlan:
    """Plan every measurement; settings that cannot be measured are refused here, before training.

    The documents are what training held out, or all of each ``evaluation.source``, the longest first, each cut
    to ``tokens_per_document``.

    Raises:
        DataError: nothing is held out, no document fills a window, or the target where the best step is kept, or a
            length too short to ask for a passkey.
        RecipeError: a stride that its window cannot take, or documents cut below a window.
    """
    rule = job.recipe.evaluation
    windows = evaluation_windows(rule, job.extension.rope.original_length, job.extension.target_length)
    texts: dict[str, EvaluationText] = {}
    fingerprints, segments = {}, {}
    far = None
    for source, store, candidates in _evaluation_sources(job, console):
        fingerprints[f"evaluation text {source}"] = store.fingerprint
        texts[source] = longest_documents(
            store,
            candidates,
            windows=windows,
            most=rule.documents,
            limit=rule.tokens_per_document,
            console=console,
        )
        segments[source] = [
            spread_segments(store, candidates, length, rule.segments) for length in rule.segment_lengths or []
        ]
        if rule.keep == "best" and far is None:  # of the first text alone, as what else is measured of a step
            far = _far_segments(job, source, store, candidates)
    plans = {arm: _measurements(job, arm, texts, segments) for arm in rule.arms}
    return EvaluationPlan(texts, fingerprints, plans, measured_steps(job.recipe), far)


def _far_segments(job: Job, source: str, store: TokenStore, candidates: np.ndarray) -> np.ndarray:
    """What training steps are compared on: held-out segments of the target's length."""
    target = job.extension.target_length
    names, segments = spread_segments(store, candidates, target, job.recipe.evaluation.segments)
    if not names:
        longest = max(candidates, key=lambda document: store.lengths[document])
        raise DataError(
            f"evaluation.keep 'best' compares steps on documents of the target, {target:,} tokens; the longest of "
            f"{source} to measure on, {store.names[longest]}, has {store.lengths[longest]:,}: give longer text by "
            "evaluation.source, lower the target, or set evaluation.keep=last"
        )
    return segments


def _evaluation_sources(job: Job, console: Console) -> Iterator[tuple[str, TokenStore, np.ndarray]]:
    """Each text to measure on: its name, its tokens, and which of its documents may be taken.

    Of the text that is trained on only what was held out.
    """
    trained_on = job.recipe.data.source
    vocabulary = load_config(job.recipe.model).vocab_size
    for source in dict.fromkeys(job.recipe.evaluation.source or [trained_on]):
        if source == trained_on:
            yield source, job.store, job.held_out
            continue
        store = tokenise_source(job.recipe, source, job.tokenizer, console)
        check_vocabulary(store, vocabulary)
        yield source, store, np.arange(len(store))


def evaluate(job: Job, evaluation: EvaluationPlan, run: RunFolder, console: Console) -> None:
    """Measure every arm; what the results hold already is not measured again."""
    known = {identity(record) for record in read_records(run.results)}
    for arm, plan in evaluation.measurements.items():
        missing = [m for m in plan if m.identity not in known]
        if missing:
            model = _arm_model(job, run, arm).eval()
            measure(model, missing, _label(job, arm), console, lambda r: append_record(run.results, r))


def evaluate_step(
    job: Job, evaluation: EvaluationPlan, run: RunFolder, model: PreTrainedModel, step: int
) -> None:
    """Measure the model in training after ``step`` steps, where the recipe asks for it and no record is there.

    Its weights are kept where the recipe keeps the best step's and it is that so far.

    On the first text alone: what is measured here is paid for while training waits.
    """
    source, text = next(iter(evaluation.texts.items()))
    if step not in evaluation.steps:
        return
    records = read_records(run.results)
    if (step, source) in _stepped(records):
        return
    window = text.windows[-1]
    stride = _stride(job, window)
    precision = AUTOCAST[job.precision]
    score = sliding_perplexity(model, text.documents, window=window, stride=stride, precision=precision)
    far = None
    if evaluation.far is not None:
        far = far_loss(model, evaluation.far, job.extension.rope.original_length, precision=precision)
    if math.isnan(score.nll) or (far is not None and math.isnan(far)):
        raise not_finite(f"step {step}")
    record = StepRecord(
        arm=_label(job, "trained"),
        step=step,
        window=window,
        stride=stride,
        documents=score.documents,
        tokens=score.tokens,
        nll=score.nll,
        data=source,
        far_loss=far,
    )
    best = far is not None and kept.best_step(kept.far_losses([*records, record])) == step
    if best:
        kept.keep(model, run.checkpoints, step)
    append_record(run.results, record)
    if best:
        kept.drop_others(run.checkpoints, step)


def _stepped(records: Sequence[Record]) -> set[tuple[int, str]]:
    return {(record.step, record.data) for record in records if isinstance(record, StepRecord)}


def _stride(job: Job, window: int) -> int:
    return stride_of(
        job.recipe.evaluation, job.extension.rope.original_length, job.extension.target_length, window
    )


def _label(job: Job, arm: Arm) -> str:
    """The arm's name in the results: a trained one is called after its scheme."""
    return job.recipe.positions.scheme if arm == "trained" else arm


def _measurements(
    job: Job, arm: Arm, texts: dict[str, EvaluationText], segments: dict[str, list[Segments]]
) -> list[Measurement]:
    """What is measured of one arm: perplexity and loss by position on every text, then passkeys."""
    rule, target = job.recipe.evaluation, job.extension.target_length
    original = job.extension.rope.original_length
    label = _label(job, arm)
    plan = []
    windows = evaluation_windows(rule, original, target)
    for source, text in texts.items():
        for window in text.windows:
            stride = _stride(job, window)
            plan.append(perplexity_measurement(label, text.documents, window, stride, job.precision, source))
        for names, rows in segments[source]:
            if len(rows):  # else no document is as long, which the windows have said
                plan.append(position_measurement(label, names, rows, original, job.precision, source))
    if rule.passkey_trials:
        for length in rule.passkey_lengths or windows:
            plan.append(
                passkey_measurement(
                    label, job.tokenizer, length, rule.passkey_trials, job.recipe.seed, job.precision
                )
            )
    return plan


def measured_steps(recipe: Recipe) -> list[int]:
    """The training steps that are measured: where the best is kept, the last too."""
    steps = recipe.evaluation.steps or []
    return steps if recipe.evaluation.keep == "last" else sorted({*steps, recipe.training.max_steps})


def evaluation_windows(rule: Evaluation, original: int, target: int) -> list[int]:
    """The windows asked for, else the original length doubled up to the target, itself included."""
    if rule.windows:
        return sorted(set(rule.windows))
    doubled = [original * 2**k for k in range(32) if original * 2**k < target]
    return [*doubled, target]


def stride_of(rule: Evaluation, original: int, target: int, window: int) -> int:
    """As asked for, else half the original length, coarser for far targets; at most half the window."""
    return rule.stride or min(max(original // 2, target // 16), window // 2)


def _arm_model(job: Job, run: RunFolder, arm: Arm) -> PreTrainedModel:
    if arm == "original":
        return load_model(job.recipe.model, dtype=job.base_dtype, device=job.device)
    if arm == "pi-only":
        return load_model(job.recipe.model, job.extension, dtype=job.base_dtype, device=job.device)
    return load_model(str(run.model), dtype=job.base_dtype, device=job.device)
