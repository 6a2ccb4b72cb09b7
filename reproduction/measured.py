"""What an exhibit asks of a run, what its folder holds of that, and how the rest is trained and measured."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console

from reproduction.bases import make_base
from reproduction.runs import ArmRun
from skipwise.evaluation.evaluate import RunEvaluation, measure
from skipwise.evaluation.specification import Specification, specification_of
from skipwise.evaluation.texts import EvaluationText
from skipwise.extend import extend, plan_run_evaluation
from skipwise.results.records import ReadingRecord, Record, Results, TrialRecord, read_records
from skipwise.results.run_folder import TRAINING_TEXT, RunFolder
from skipwise.training.prepare import prepare
from skipwise.training.run import begin_run, open_run

# One cell of a table: (kind, text or retrieval task, window, segment length, prompt length or step).
Place = tuple[str, str, int]
SLIDING, SEGMENTS, PROMPTS, STEPS = KINDS = ("sliding", "segments", "prompts", "steps")


def asked_records(run: ArmRun, out: Path) -> dict[Place, list[Record]]:
    """Return the records that a run's evaluation asks for, by place.

    Exhibits share a folder, and a later command may measure more documents. A table must not mix the two, so of each place
    at most as many documents, segments or prompts are taken as the run asks for, the first ones, and no longer readings.
    """
    asked = specification_of(run.recipe, run.original, run.target, "float32")
    steps = run.recipe.measured_steps
    limit = asked.tokens_read(asked.windows[-1])
    most = {SLIDING: asked.documents, SEGMENTS: asked.segments, PROMPTS: asked.num_prompts, STEPS: asked.documents}
    found: dict[Place, dict[object, Record]] = {}
    for record in read_records(run.folder(out) / "results.jsonl"):
        place = _place(record, asked, steps)
        if place is None or (place[0] in (SLIDING, STEPS) and _tokens(record) >= limit):
            continue
        there = found.setdefault(place, {})
        name = (record.document, record.begin) if isinstance(record, ReadingRecord) else getattr(record, "trial", None)
        if name not in there or _tokens(record) >= _tokens(there[name]):
            there[name] = record
    return {place: list(records.values())[: most[place[0]]] for place, records in found.items()}


def _place(record: Record, asked: Specification, steps: Iterable[int]) -> Place | None:
    """The cell that a record belongs to; None for what the run does not ask for."""
    texts = [text.source for text in asked.texts]
    match record:
        case ReadingRecord(mode="sliding", data=text, window=window, step=None) if text in texts:
            right = window in asked.windows and record.stride == asked.stride_of(window)
            return (SLIDING, text, window) if right else None
        case ReadingRecord(mode="segment", data=text, window=length, step=None) if text in texts:
            return (SEGMENTS, text, length) if length in asked.segment_lengths else None
        case ReadingRecord(mode="sliding", data=text, step=int(step)) if text in texts and step in steps:
            return (STEPS, text, step)
        case TrialRecord(task=task, depths="random", length=length) if length in asked.prompt_lengths:
            right = task in asked.tasks and record.seed == asked.seed and record.trial < asked.num_prompts
            return (PROMPTS, task, length) if right else None
        case _:
            return None


def _tokens(record: Record) -> int:
    return record.tokens if isinstance(record, ReadingRecord) else 1


def size_of(records: Iterable[Record]) -> tuple[int, int]:
    """How much a place holds: documents, segments or prompts, and the tokens scored."""
    sizes = [_tokens(record) for record in records]
    return len(sizes), sum(sizes)


def is_complete(evaluation: RunEvaluation, found: Mapping[Place, list[Record]]) -> bool:
    """Whether ``found`` has all that ``evaluation`` measures. It needs no model."""
    asked, first = evaluation.specification, evaluation.texts[0]
    needed = {(PROMPTS, task, n): (asked.num_prompts, 0) for task in asked.tasks for n in asked.prompt_lengths}
    for text in evaluation.texts:
        needed |= {(SLIDING, text.source, window): _scored(text) for window in text.windows}
        needed |= {(SEGMENTS, text.source, n): (len(some), 0) for n, some in text.segments.items() if some}
    if evaluation.recipe.evaluation.models == ["trained"]:
        needed |= {(STEPS, first.source, step): _scored(first) for step in evaluation.recipe.measured_steps}
    sizes = {place: size_of(found.get(place, [])) for place in needed}
    return all(sizes[place][0] >= many and sizes[place][1] >= tokens for place, (many, tokens) in needed.items())


def _scored(text: EvaluationText) -> tuple[int, int]:
    """How many documents are read in windows, and how many of their tokens are scored: all but the first of each."""
    return len(text.documents), sum(len(document.tokens) - 1 for document in text.documents)


def make(run: ArmRun, out: Path, console: Console) -> None:
    """Train and measure what is missing of a run, and delete its checkpoints; one whose records are complete is left alone."""
    if run.base:
        make_base(run.base, run.recipe.data, out, console)
    prepared = prepare(run.recipe, Console(quiet=True))
    evaluation = plan_run_evaluation(prepared, console)
    folder = RunFolder(run.folder(out))
    trained_on = {TRAINING_TEXT: prepared.store.fingerprint} if run.trained else {}
    folder.require_same(trained_on | evaluation.fingerprints)
    if is_complete(evaluation, asked_records(run, out)):
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
