"""One model and one kind of measurement: what ``skipwise perplexity``, ``passkey`` and ``benchmark`` ask.

Each writes a specification and hands it to the runner. With a file of results, what it holds is not measured again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast, get_args

from rich.console import Console

from skipwise.data.retrieval_prompts import TASKS
from skipwise.errors import RecipeError, RunError, at_least, one_of
from skipwise.evaluation.batches import Batch
from skipwise.evaluation.benchmarks import Benchmarks
from skipwise.evaluation.models import EvaluatedModel
from skipwise.evaluation.runner import answered, plan_prompts, plan_readings, read_texts
from skipwise.evaluation.same_model import require_served
from skipwise.evaluation.server import Server
from skipwise.evaluation.specification import Specification, doubled_windows
from skipwise.model.loading import load_tokenizer
from skipwise.model.origin import read_origin
from skipwise.recipes.schema import Data
from skipwise.results.files import keep_for_this_process
from skipwise.results.records import (
    BenchmarkRecord,
    ReadingRecord,
    Record,
    TrialRecord,
    append_record,
    read_records,
    require_results,
)
from skipwise.results.run_folder import RunFolder

Mode = Literal["sliding", "truncated", "by-position"]


@dataclass(frozen=True)
class PerplexitySettings:
    """How ``skipwise perplexity`` reads."""

    mode: Mode  # sliding windows; the first tokens of each document, by one pass; or loss by position
    specification: Specification  # in the last two modes its windows are the ends of the parts that are shown


_K = 1024
_Settings = tuple[Mode, tuple[int, ...], int | None, int]  # mode, windows, stride, documents
PAPER_SETTINGS: dict[str, _Settings] = {
    # The main table: GovReport and Proof-pile, 50 documents of more than 32,768 tokens each.
    "paper": ("sliding", tuple(_K * 2**i for i in range(1, 6)), _K, 50),
    # 96k and 128k: Books3 and PG-19, 20 documents of more than 128k tokens.
    "paper-far": ("sliding", (32 * _K, 64 * _K, 96 * _K, 128 * _K), 16 * _K, 20),
    # The families' figure: GovReport, no sliding windows.
    "paper-truncated": ("truncated", tuple(_K * i for i in range(1, 17)), None, 50),
}


def perplexity_settings(
    settings: str | None,
    model: EvaluatedModel,
    *,
    mode: str | None,
    windows: Sequence[int],
    stride: int | None,
    documents: int | None,
    tokens_per_document: int | None,
    precision: str,
    text: Data,
) -> PerplexitySettings:
    """Return how to read: what is given here, and for the rest what ``settings``, a name of ``PAPER_SETTINGS``, says.

    Sliding windows read whole documents. The other modes read as many tokens of each as the longest window has.
    """
    known: _Settings = ("sliding", tuple(doubled_windows(model.original, model.target)), None, 8)
    if settings is not None:
        known = PAPER_SETTINGS[one_of("settings", settings, PAPER_SETTINGS)]
    chosen = cast(Mode, one_of("mode", mode or known[0], get_args(Mode)))
    if chosen != "sliding" and (stride is not None or tokens_per_document is not None):
        given = "--stride" if stride is not None else "--tokens-per-document"
        raise RecipeError(f"{given} belongs to sliding windows, and mode {chosen} has none; leave it out")
    if documents is not None:
        at_least("documents", documents, 1)
    ends = tuple(sorted(set(windows or known[1])))
    if ends[0] < 2:
        raise RecipeError(f"window {ends[0]} must be at least 2 tokens; widen it")
    specification = Specification(
        texts=(text,),
        windows=ends,
        original=model.original,
        target=ends[-1],
        stride=stride or (known[2] if chosen == "sliding" else None),
        documents=documents or known[3],
        tokens_per_document=tokens_per_document,
        windows_per_document=None if chosen == "sliding" else 1,
        precision=precision,
    )
    return PerplexitySettings(chosen, specification)


def measure_perplexity(
    model: EvaluatedModel, how: PerplexitySettings, out: Path | None, console: Console
) -> tuple[list[ReadingRecord], list[int]]:
    """Read the longest documents that the model was not trained on; return also the windows that the text fills."""
    _keep(out)
    _warn(how.specification, model, console)
    trained = [origin] if (origin := read_origin(model.name)) else []
    [text] = read_texts(how.specification, model.name, trained, console)
    ends = text.windows
    windows = {"sliding": ends, "truncated": ends[-1:], "by-position": sorted({ends[0], ends[-1]})}[how.mode]
    specification = how.specification
    if how.mode != "sliding":
        # The longest window is read in one pass; by position the shortest one slides, by half of it.
        specification = replace(specification, stride=max(1, ends[0] // 2))
    batches: list[Batch] = list(plan_readings(specification, model, [text], windows))
    records = answered(lambda: model.load(specification.precision), batches, out, console)
    return [record for record in records if isinstance(record, ReadingRecord)], ends


def measure_retrieval(
    model: EvaluatedModel,
    specification: Specification,
    out: Path | None,
    console: Console,
    server: Server | None = None,
) -> list[TrialRecord]:
    """Ask every prompt of the specification, whose tasks are of retrieval; RULER's belong to ``skipwise evaluate``.

    A ``server`` that serves the model answers in its place.
    """
    for task in specification.tasks:
        one_of("task", task, TASKS)
    _keep(out)
    _warn(specification, model, console)
    batches = list(plan_prompts(specification, model, load_tokenizer(model.name), console, required=True))
    if server:
        require_served(server, model, specification)
    records = answered(lambda: model.load(specification.precision), batches, out, console, server)
    return [record for record in records if isinstance(record, TrialRecord)]


def run_benchmarks(
    model: EvaluatedModel,
    benchmarks: Benchmarks,
    target: int | None,
    precision: str,
    out: Path | None,
    console: Console,
) -> list[BenchmarkRecord]:
    """Run tasks of lm-evaluation-harness at the extended length; no request may be longer than ``target`` tokens."""
    _keep(out)
    known = read_records(out) if out is not None else []

    def keep(*records: Record) -> None:
        if out is not None:
            append_record(out, *records)

    with benchmarks.found(model, target) as found:
        return found.run(precision, known, keep, console)


def _warn(specification: Specification, model: EvaluatedModel, console: Console) -> None:
    """Print before any work what a command on one model is warned of."""
    for warning in specification.beyond(model):
        console.print(warning, style="yellow", soft_wrap=True)


def _keep(out: Path | None) -> None:
    """Require that records can be appended to a file of results, by this process alone."""
    if out is not None:
        folder = RunFolder(out.resolve().parent)
        if folder.facts.exists() and out.resolve() == folder.results.resolve():
            raise RunError(
                f"{out} holds the records of a run or an evaluation, whose report would take these for its own; give "
                "another --out"
            )
        require_results(out)
        keep_for_this_process(out)
