"""A job -> its arms: which models are measured, what is measured of each on which text, and the doing of it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from transformers import PreTrainedModel

from skipwise.data.tokens import TokenStore, check_vocabulary
from skipwise.job import Job, tokenise_source
from skipwise.measure import (
    EvaluationText,
    Measurement,
    identity,
    longest_documents,
    measure,
    passkey_measurement,
    perplexity_measurement,
)
from skipwise.model.loading import load_config, load_model
from skipwise.recipe import Arm, Evaluation
from skipwise.results import append_record, read_records
from skipwise.run_folder import RunFolder


@dataclass(frozen=True)
class EvaluationPlan:
    """What is measured, of each arm, on which text.

    Attributes:
        documents: names of the documents, by text.
        fingerprints: of the token stores that they come from, by text.
        measurements: by arm, in the order in which they are made.
    """

    documents: dict[str, list[str]]
    fingerprints: dict[str, str]
    measurements: dict[Arm, list[Measurement]]


def plan_evaluation(job: Job, console: Console) -> EvaluationPlan:
    """Plan every measurement; settings that cannot be measured are refused here, before training.

    The documents are what training held out, or all of each ``evaluation.source``, the longest first, each cut
    to ``tokens_per_document``.

    Raises:
        DataError: nothing is held out, no document fills a window, or a length too short to ask for a passkey.
        RecipeError: a stride that its window cannot take, or documents cut below a window.
    """
    rule = job.recipe.evaluation
    windows = evaluation_windows(rule, job.extension.rope.original_length, job.extension.target_length)
    texts, fingerprints = {}, {}
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
    names = {source: text.names for source, text in texts.items()}
    return EvaluationPlan(names, fingerprints, {arm: _measurements(job, arm, texts) for arm in rule.arms})


def _evaluation_sources(job: Job, console: Console) -> Iterator[tuple[str, TokenStore, np.ndarray]]:
    """Each text to measure on: its name, its tokens, and which of its documents may be taken."""
    sources = job.recipe.evaluation.source
    if sources is None:
        yield job.recipe.data.source, job.store, job.held_out
        return
    vocabulary = load_config(job.recipe.model).vocab_size
    for source in dict.fromkeys(sources):
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


def _label(job: Job, arm: Arm) -> str:
    """The arm's name in the results: a trained one is called after its scheme."""
    return job.recipe.positions.scheme if arm == "trained" else arm


def _measurements(job: Job, arm: Arm, texts: dict[str, EvaluationText]) -> list[Measurement]:
    """What is measured of one arm: perplexity on every text, then passkeys."""
    rule, target = job.recipe.evaluation, job.extension.target_length
    original = job.extension.rope.original_length
    label = _label(job, arm)
    plan = []
    windows = evaluation_windows(rule, original, target)
    for source, text in texts.items():
        for window in text.windows:
            stride = rule.stride or min(max(original // 2, target // 16), window // 2)
            plan.append(perplexity_measurement(label, text.documents, window, stride, job.precision, source))
    if rule.passkey_trials:
        for length in rule.passkey_lengths or windows:
            plan.append(
                passkey_measurement(
                    label, job.tokenizer, length, rule.passkey_trials, job.recipe.seed, job.precision
                )
            )
    return plan


def evaluation_windows(rule: Evaluation, original: int, target: int) -> list[int]:
    """The windows asked for, else the original length doubled up to the target, itself included."""
    if rule.windows:
        return sorted(set(rule.windows))
    doubled = [original * 2**k for k in range(32) if original * 2**k < target]
    return [*doubled, target]


def _arm_model(job: Job, run: RunFolder, arm: Arm) -> PreTrainedModel:
    if arm == "original":
        return load_model(job.recipe.model, device=job.device)
    if arm == "pi-only":
        return load_model(job.recipe.model, job.extension, device=job.device)
    return load_model(str(run.model), device=job.device)
