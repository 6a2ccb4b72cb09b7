"""The records that an exhibit needs of a run, which of them its folder has, and how the rest is trained and measured."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console

from reproduction.bases import make_base
from reproduction.runs import ArmRun
from skipwise.evaluation.evaluate import RunEvaluation, measure
from skipwise.evaluation.specification import EvaluationText, Specification, specification_of
from skipwise.extend import extend, plan_run_evaluation
from skipwise.results.records import ReadingRecord, Record, Results, TrialRecord, read_records
from skipwise.results.run_folder import TRAINING_TEXT, RunFolder
from skipwise.training.prepare import prepare
from skipwise.training.run import begin_run, open_run

# One cell of a table: (kind, text or retrieval task, window, segment length, prompt length or step).
Place = tuple[str, str, int]
SLIDING, SEGMENTS, PROMPTS, STEPS = KINDS = ("sliding", "segments", "prompts", "steps")


def requested_records(run: ArmRun, out: Path) -> dict[Place, list[Record]]:
    """Return the records that a run's evaluation requests, by place.

    Exhibits share a folder, and a later command may measure more documents. A table must not mix the two, so each place has
    at most the requested number of documents, segments or prompts, the first of them, and no longer readings.
    """
    spec = specification_of(run.recipe, run.original, run.target, "float32")
    steps = run.recipe.measured_steps
    limit = spec.tokens_read(spec.windows[-1])
    most = {SLIDING: spec.documents, SEGMENTS: spec.segments, PROMPTS: spec.num_prompts, STEPS: spec.documents}
    kept: dict[Place, dict[object, Record]] = {}
    for record in read_records(run.folder(out) / "results.jsonl"):
        place = _place(record, spec, steps)
        if place is None or (place[0] in (SLIDING, STEPS) and _tokens(record) >= limit):
            continue
        there = kept.setdefault(place, {})
        name = (record.document, record.begin) if isinstance(record, ReadingRecord) else getattr(record, "trial", None)
        if name not in there or _tokens(record) >= _tokens(there[name]):
            there[name] = record
    return {place: list(records.values())[: most[place[0]]] for place, records in kept.items()}


def _place(record: Record, spec: Specification, steps: Iterable[int]) -> Place | None:
    """Return the cell that a record belongs to; None for a record that the run does not request."""
    texts = [text.source for text in spec.texts]
    match record:
        case ReadingRecord(mode="sliding", data=text, window=window, step=None) if text in texts:
            right = window in spec.windows and record.stride == spec.stride_of(window)
            return (SLIDING, text, window) if right else None
        case ReadingRecord(mode="segment", data=text, window=length, step=None) if text in texts:
            return (SEGMENTS, text, length) if length in spec.segment_lengths else None
        case ReadingRecord(mode="sliding", data=text, step=int(step)) if text in texts and step in steps:
            return (STEPS, text, step)
        case TrialRecord(task=task, depths="random", length=length) if length in spec.prompt_lengths:
            right = task in spec.tasks and record.seed == spec.seed and record.trial < spec.num_prompts
            return (PROMPTS, task, length) if right else None
        case _:
            return None


def _tokens(record: Record) -> int:
    return record.tokens if isinstance(record, ReadingRecord) else 1


def size_of(records: Iterable[Record]) -> tuple[int, int]:
    """Return the documents, segments or prompts of a place, and the tokens scored."""
    sizes = [_tokens(record) for record in records]
    return len(sizes), sum(sizes)


def is_complete(evaluation: RunEvaluation, records: Mapping[Place, list[Record]]) -> bool:
    """Return True if ``records`` has all that ``evaluation`` measures. It needs no model."""
    spec, first = evaluation.specification, evaluation.texts[0]
    needed = {(PROMPTS, task, n): (spec.num_prompts, 0) for task in spec.tasks for n in spec.prompt_lengths}
    for text in evaluation.texts:
        needed |= {(SLIDING, text.source, window): _scored(text) for window in text.windows}
        needed |= {(SEGMENTS, text.source, n): (len(segments), 0) for n, segments in text.segments.items() if segments}
    if evaluation.recipe.evaluation.models == ["trained"]:
        needed |= {(STEPS, first.source, step): _scored(first) for step in evaluation.recipe.measured_steps}
    sizes = {place: size_of(records.get(place, [])) for place in needed}
    return all(sizes[place][0] >= many and sizes[place][1] >= tokens for place, (many, tokens) in needed.items())


def _scored(text: EvaluationText) -> tuple[int, int]:
    """Return the number of documents read in windows, and of their tokens that are scored: all but the first of each."""
    return len(text.documents), sum(len(document.tokens) - 1 for document in text.documents)


def make(run: ArmRun, out: Path, console: Console) -> None:
    """Train and measure what is missing of a run, and delete its checkpoints; a complete run is left alone."""
    if run.base:
        make_base(run.base, run.recipe.data, out, console)
    prepared = prepare(run.recipe, Console(quiet=True))
    evaluation = plan_run_evaluation(prepared, console)
    folder = RunFolder(run.folder(out))
    trained_on = {TRAINING_TEXT: prepared.store.fingerprint} if run.trained else {}
    folder.require_same(trained_on | evaluation.fingerprints)
    if is_complete(evaluation, requested_records(run, out)):
        return
    resume = folder.recipe.exists()
    if run.trained:
        extend(run.recipe, out=folder.path, resume=resume, console=console)
        shutil.rmtree(folder.checkpoints, ignore_errors=True)
        return
    folder = open_run(run.recipe, folder.path, prepared.name, resume=resume)
    begin_run(folder, run.recipe, resume=resume)
    known = folder.read().get("fingerprints", {})
    folder.record(evaluation=evaluation.facts, fingerprints=known | evaluation.fingerprints)
    measure(evaluation.plan_trained(folder.model), Results(folder.results), console)
