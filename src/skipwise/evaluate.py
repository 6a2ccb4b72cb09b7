"""Models + text -> readings and trials, each appended as it is made -> how far every model reads, and what that cost.

A folder holds one evaluation: run.json says what was asked, results.jsonl what was answered. The same command goes on with
it; two machines take a share each (``share``), and ``merge`` puts them together.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from skipwise.arms import evaluation_windows, stride_of
from skipwise.data.tokens import TokenStore, check_vocabulary, split_by_name
from skipwise.errors import DataError, RecipeError, RunError, TooShortError
from skipwise.evaluation.by_position import position_buckets
from skipwise.evaluation.texts import EvaluationText, longest_documents
from skipwise.evaluation.windows import sliding_windows
from skipwise.exam import Exam
from skipwise.intervals import wilson_interval
from skipwise.measure import (
    TASKS,
    Measurement,
    identity,
    loaded,
    measure,
    reading_key,
    reading_measurement,
    retrieval_measurement,
    tokenise,
)
from skipwise.model.loading import load_config, load_tokenizer
from skipwise.recipe import Data, Evaluation, nearest
from skipwise.report.effective_length import FOUND
from skipwise.report.evaluation import evaluation_terminal
from skipwise.report.evaluation_page import write_evaluation
from skipwise.results import Record, append_record, drop_torn_record, read_records
from skipwise.run_folder import RunFolder, recipe_of
from skipwise.subjects import Subject

_PREFIXES = 16  # lengths of the truncated curve


@dataclass(frozen=True)
class Question:
    """What is asked of every model.

    Attributes:
        data: the text's source.
        reading: the field, split and subset that are read of it.
        lengths: in tokens, rising: windows of perplexity, and lengths of prompts.
        stride: of the windows; None: half the original length, for far targets a sixteenth of them.
        documents: how many at the most, the longest first; 0 leaves reading out.
        tasks: of retrieval; none leaves it out.
        trials: prompts a task and length.
        seed: of the prompts.
        precision: bf16, fp16 or float32.
        held_out: the share of documents, by name, that is read; None for all.
    """

    data: str
    reading: dict[str, Any]
    lengths: tuple[int, ...]
    stride: int | None
    documents: int
    tasks: tuple[str, ...]
    trials: int
    seed: int
    precision: str
    held_out: float | None

    def as_dict(self) -> dict[str, Any]:
        """For ``run.json``."""
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()
        }


def ask(
    models: Sequence[Subject],
    text: Data,
    *,
    lengths: Sequence[int] | None,
    target: int | None,
    stride: int | None,
    documents: int,
    tasks: Sequence[str],
    trials: int,
    seed: int,
    precision: str,
    console: Console,
) -> Question:
    """Settle what is asked: lengths from the shortest original to the farthest target, and which documents are fair.

    Of text that one of the models was trained on, and of the standard library, only what is held out by name is read.

    Raises:
        RecipeError: a number or a name that breaks its rule.
    """
    for name, value, least in (("documents", documents, 0), ("trials", trials, 1), ("seed", seed, 0)):
        if value < least:
            raise RecipeError(f"{name} {value} must be at least {least}; raise it")
    for task in tasks:
        if task not in TASKS:
            raise RecipeError(
                f"task {task!r} is unknown{nearest(task, TASKS)}; choose of {', '.join(TASKS)}, or none"
            )
    if lengths and target:
        raise RecipeError("--lengths says the farthest already, and --target another: give one of them")
    original, farthest = min(m.original for m in models), target or max(m.target for m in models)
    chosen = sorted(set(lengths)) if lengths else evaluation_windows(Evaluation(), original, farthest)
    for window in chosen:
        sliding_windows(window, window, stride_of(Evaluation(stride=stride), original, chosen[-1], window))
    if "passkey" in tasks and wilson_interval(trials, trials)[0] < FOUND:
        console.print(
            f"{trials} trials cannot show that {FOUND:.0%} are found, even where all are: the effective length will be 0. "
            "Take 35 at least",
            style="yellow",
        )
    for model in models:
        if not model.control and chosen[-1] > model.target:
            console.print(
                f"{model.label} was made for {model.target:,} tokens: what lies beyond is expected to fail, and shows how",
                style="yellow",
            )
    return Question(
        text.source,
        text.reading,
        tuple(chosen),
        stride,
        documents,
        tuple(tasks),
        trials,
        seed,
        precision,
        _held_out(models, text, console),
    )


def evaluate(
    models: Sequence[Subject],
    question: Question,
    *,
    share: tuple[int, int],
    exam: Exam | None,
    out: Path | None,
    console: Console,
) -> RunFolder:
    """Measure every model, or go on where a stopped evaluation ended, and write its report.

    Args:
        models: as of ``subjects``.
        question: as of ``ask``.
        share: which part of how many of the documents and trials is measured here; benchmarks are the first part's.
        exam: benchmarks that every model and base sits besides.
        out: the folder; None: evaluations/ and the first model's label.
        console: told what happens.

    Raises:
        SkipwiseError: what the models, the text or the folder cannot do.
    """
    folder = _folder(out, models, question)
    records = read_records(folder.results)
    known = {identity(record) for record in records}
    texts = _texts(models, question, console) if question.documents else {}

    def plan_of(
        model: Subject, share: tuple[int, int], known: set[tuple[object, ...]], console: Console
    ) -> list[Measurement]:
        readings = _readings(model, models, question, texts, share, known)
        return [*readings, *_retrievals(model, question, share, known, console)]

    plans = {model.label: plan_of(model, share, known, console) for model in models}
    quiet = Console(quiet=True)
    whole = sum(m.count for model in models for m in plan_of(model, (1, 1), set(), quiet))
    folder.begin(None)
    prints = {f"text of {label}": _print(text) for label, text in texts.items()}
    folder.require_same(**prints)
    folder.record(evaluation=_asked(models, question), fingerprints=prints, records=whole)
    if drop_torn_record(folder.results):
        console.print("the last record was cut off by a kill; it is measured again", style="yellow")
    console.print(f"folder: {folder.path}", soft_wrap=True)

    def keep(*made: Record) -> None:
        append_record(folder.results, *made)

    for model in models:
        if plan := plans[model.label]:
            measure(loaded(model.name, question.precision), plan, model.label, console, keep)
        if exam and share[0] == 1:
            exam.sit(model.name, model.label, None, question.precision, records, keep, console)
    show(folder, console)
    return folder


def show(folder: RunFolder, console: Console) -> None:
    """Write the report of a folder, and print what it says."""
    page = write_evaluation(folder.path)
    console.print(evaluation_terminal(folder.path))
    console.print(f"report: {page}", soft_wrap=True)


def merge(parts: Sequence[Path], out: Path, console: Console) -> RunFolder:
    """Put the shares of one evaluation together in a new folder.

    Raises:
        RunError: a part is no evaluation, asks something else than the first, or two answer the same differently.
    """
    folders = [RunFolder(part) for part in parts]
    facts = [folder.read() for folder in folders]
    for folder, its in zip(folders, facts, strict=True):
        if "models" not in (its.get("evaluation") or {}):
            raise RunError(
                f"{folder.path} holds no evaluation (run.json); give folders that skipwise evaluate wrote"
            )
        for key in ("evaluation", "fingerprints", "records"):
            if its.get(key) != facts[0].get(key):
                raise RunError(
                    f"{folder.path} and {folders[0].path} differ in {_first_difference(its.get(key), facts[0].get(key))}; "
                    "only shares of the same evaluation can be merged"
                )
    records: dict[tuple[object, ...], Record] = {}
    for folder in folders:
        for record in read_records(folder.results):
            known = records.setdefault(identity(record), record)
            if _answer(known) != _answer(record):
                raise RunError(
                    f"{folder.path} answers {identity(record)} otherwise than an earlier part; measure that part again"
                )
    whole = RunFolder(out)
    if whole.path.exists() and (not whole.path.is_dir() or any(whole.path.iterdir())):
        raise RunError(f"{out} exists; give another --out, in which nothing is")
    whole.begin(None)
    whole.record(**{key: facts[0].get(key) for key in ("evaluation", "fingerprints", "records")})
    for record in records.values():
        append_record(whole.results, record)
    console.print(f"{len(records):,} records of {len(parts)} parts: {whole.path}", soft_wrap=True)
    show(whole, console)
    return whole


def _answer(record: Record) -> dict[str, Any]:
    """A record without how long it took."""
    return {key: value for key, value in asdict(record).items() if key != "seconds"}


def _first_difference(ours: Any, theirs: Any) -> str:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in {**theirs, **ours}:
            if ours.get(key) != theirs.get(key):
                return f"{key} ({ours.get(key)!r}, {theirs.get(key)!r})"
    return f"({ours!r}, {theirs!r})"


def _folder(out: Path | None, models: Sequence[Subject], question: Question) -> RunFolder:
    """The folder of this evaluation: new, or one that asked the same.

    Raises:
        RunError: it holds something else.
    """
    folder = RunFolder(out or Path("evaluations") / models[0].label.replace("/", "-"))
    if not folder.path.exists():
        return folder
    if not folder.path.is_dir() or (not folder.facts.exists() and any(folder.path.iterdir())):
        raise RunError(f"{folder.path} exists and is no evaluation of skipwise; give another --out")
    asked = folder.read().get("evaluation")
    if folder.facts.exists() and not (isinstance(asked, dict) and "models" in asked):
        raise RunError(f"{folder.path} holds a run, and no evaluation; give another --out")
    if asked is not None and asked != _asked(models, question):
        raise RunError(
            f"{folder.path} was begun with another question: {_first_difference(_asked(models, question), asked)}, now and "
            "then; ask the same to go on, or give another --out"
        )
    return folder


def _asked(models: Sequence[Subject], question: Question) -> dict[str, Any]:
    return {**question.as_dict(), "models": [model.as_dict() for model in models]}


def _held_out(models: Sequence[Subject], text: Data, console: Console) -> float | None:
    """The share of ``text`` that no model was trained on, where that is by name; None where all may be read."""
    data = text.source
    shares = [Data().held_out] if data == "stdlib" else []
    for model in models:
        folder = Path(model.name).resolve()
        if folder.name == "model" and (folder.parent / "recipe.yaml").exists():
            trained = recipe_of(folder.parent).data
            ours, theirs = Path(data).resolve(), Path(trained.source).resolve()
            if trained.source == data or (ours == theirs and ours.exists()):
                if trained.split != text.split:  # another part of a data set
                    continue
                shares.append(trained.held_out)
            elif ours.exists() and (ours in theirs.parents or theirs in ours.parents):
                console.print(
                    f"{model.label} was trained on {trained.source}, of which {data} is a part or a whole: what was held out is "
                    "not known by these names, and numbers may flatter it",
                    style="yellow",
                )
    return min(shares, default=None)  # whatever is held out at a share is at every larger one


def _texts(models: Sequence[Subject], question: Question, console: Console) -> dict[str, EvaluationText]:
    """What each model reads: the longest documents, in its own tokens, each cut to the greatest length that is filled.

    Raises:
        DataError: no document is long enough, or a base reads other tokens than the model that came of it.
    """
    texts: dict[str, EvaluationText] = {}
    for number, model in enumerate(models):
        tokenizer = load_tokenizer(model.name)
        store = tokenise(question.data, tokenizer, console, **question.reading)
        check_vocabulary(store, load_config(model.name).get_text_config().vocab_size)
        among = (
            np.arange(len(store)) if question.held_out is None else split_by_name(store, question.held_out)[1]
        )
        told = console if number == 0 else Console(quiet=True)
        if question.held_out is not None:
            told.print(f"of {len(store):,} documents the {len(among):,} held out by name may be read")
        text = longest_documents(
            store, among, windows=question.lengths, most=question.documents, limit=None, console=told
        )
        text = replace(text, documents=[document[: text.windows[-1]] for document in text.documents])
        told.print(_chosen(store, among, text))
        texts[model.label] = text
    if len({_print(texts[model.label]) for model in models if not model.control}) > 1:
        console.print(
            "the models read different tokens (tokenizers or lengths): their perplexities are not comparable",
            style="yellow",
        )
    for model in models:
        if model.base and _print(texts[model.label]) != _print(texts[model.base]):
            raise DataError(
                f"{model.label} and {model.base} read the text as different tokens, so that their losses cannot be "
                "compared; give the model's own base by --base, or none by --base none"
            )
    return texts


def _chosen(store: TokenStore, among: np.ndarray, text: EvaluationText) -> str:
    longest = text.windows[-1]
    long = int((store.lengths[among] >= longest).sum())
    names = ", ".join(text.names[:3]) + (" ..." if len(text.names) > 3 else "")
    said = f"read: {len(text.names)} documents ({names}), the first {longest:,} tokens of each"
    if long < len(among):
        rest = among[store.lengths[among] < longest]
        nearest_miss = rest[store.lengths[rest].argmax()]
        said += (
            f"; {len(rest):,} are shorter and left out, the longest of them {store.names[nearest_miss]} "
            f"({store.lengths[nearest_miss]:,})"
        )
    return said


def _print(text: EvaluationText) -> str:
    """A fingerprint of what is read: names and tokens."""
    digest = hashlib.sha256()
    for name, document in zip(text.names, text.documents, strict=True):
        digest.update(name.encode() + b"\0" + np.asarray(document, dtype=np.int64).tobytes())
    return digest.hexdigest()


def _readings(
    model: Subject,
    models: Sequence[Subject],
    question: Question,
    texts: Mapping[str, EvaluationText],
    share: tuple[int, int],
    known: set[tuple[object, ...]],
) -> Iterator[Measurement]:
    """Every window of a model, over the documents of this share that it has not read so; of a base the original alone."""
    if model.label not in texts:
        return
    text = texts[model.label]
    longest, original = text.windows[-1], min(m.original for m in models)
    bases = {m.original for m in models if m.base == model.label}
    own = {model.original} | bases if model.control else {*text.windows, model.original} | bases
    given = {min(window, longest) for window in own}
    edges = sorted(
        {edge for m in models for edge in position_buckets(longest, m.original)}
        | set(text.windows)
        | {longest * k // _PREFIXES for k in range(1, _PREFIXES + 1)} - {0, 1}
    )
    for window in sorted(given):
        stride = stride_of(Evaluation(stride=question.stride), original, longest, window)
        documents = {}
        for number, (name, tokens) in enumerate(zip(text.names, text.documents, strict=True)):
            place = (question.data, name, tuple(edges), question.precision)
            key = ("reading", model.label, window, stride, *place, reading_key(model.weights, tokens))
            if number % share[1] == share[0] - 1 and key not in known:
                documents[name] = np.asarray(tokens)
        if documents:
            yield reading_measurement(
                model.label,
                documents,
                window,
                stride,
                edges,
                question.precision,
                question.data,
                model.weights,
            )


def _retrievals(
    model: Subject,
    question: Question,
    share: tuple[int, int],
    known: set[tuple[object, ...]],
    console: Console,
) -> Iterator[Measurement]:
    """Every task and length of a model, the trials of this share that it has not answered; of a base none."""
    if model.control:
        return
    tokenizer, weighed = load_tokenizer(model.name), (question.precision, model.weights[:16])
    for task in question.tasks:
        for length in question.lengths:
            trials = [
                trial
                for trial in range(question.trials)
                if trial % share[1] == share[0] - 1
                and ("trial", model.label, length, task, question.seed, trial, *weighed) not in known
            ]
            try:
                measurement = retrieval_measurement(
                    model.label,
                    tokenizer,
                    task,
                    length,
                    trials,
                    question.seed,
                    question.precision,
                    model.weights,
                )
            except TooShortError as error:
                console.print(
                    f"{task} at {length:,} tokens is left out of {model.label}: {error}", style="yellow"
                )
                continue
            if trials:
                yield measurement
