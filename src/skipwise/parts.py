"""``skipwise perplexity``, ``passkey`` and ``benchmark``: the parts of an evaluation, one model at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from skipwise.data.tokens import check_vocabulary
from skipwise.errors import RecipeError
from skipwise.evaluation.texts import longest_documents
from skipwise.evaluation.windows import sliding_windows
from skipwise.exam import Exam
from skipwise.intervals import wilson_interval
from skipwise.lengths import format_length
from skipwise.measure import (
    TASKS,
    Measurement,
    identity,
    loaded,
    measure,
    precision_of,
    reading_key,
    reading_measurement,
    retrieval_measurement,
    tokenise,
)
from skipwise.model.loading import load_config, load_tokenizer, weights_fingerprint
from skipwise.recipe import Data, nearest
from skipwise.report.evaluation import bucket_difference, bucket_mean, perplexity_interval
from skipwise.report.summary import benchmark_table, format_number, format_share
from skipwise.results import (
    ReadingRecord,
    Record,
    TrialRecord,
    append_record,
    read_records,
    require_results,
)

Mode = Literal["sliding", "truncated", "by-position"]
_MODES = ("sliding", "truncated", "by-position")


@dataclass(frozen=True)
class Reading:
    """How documents are read.

    Attributes:
        mode: sliding windows; the first tokens of each document, by one pass; or loss by position.
        windows: in tokens, rising: of the sliding windows; else the ends of the parts.
        stride: of sliding windows.
        documents: how many at the most, the longest first.
    """

    mode: Mode
    windows: tuple[int, ...]
    stride: int
    documents: int


_K = 1024
SETTINGS = {
    # The main table: GovReport and Proof-pile, 50 documents of more than 32,768 tokens each.
    "paper": Reading("sliding", tuple(_K * 2**i for i in range(1, 6)), _K, 50),
    # 96k and 128k: Books3 and PG-19, 20 documents of more than 128k tokens.
    "paper-far": Reading("sliding", (32 * _K, 64 * _K, 96 * _K, 128 * _K), 16 * _K, 20),
    # The families' figure: GovReport, no windows.
    "paper-truncated": Reading("truncated", tuple(_K * i for i in range(1, 17)), _K, 50),
}
_DEFAULT = Reading("sliding", (256, 512, 1024, 2048), 128, 8)


def reading(
    settings: str | None,
    *,
    mode: str | None,
    windows: Sequence[int] | None,
    stride: int | None,
    documents: int | None,
) -> Reading:
    """Settle how to read, from a name of the paper's settings or from what is given.

    Raises:
        RecipeError: a name is unknown, or a number breaks its rule.
    """
    if settings is not None and settings not in SETTINGS:
        raise RecipeError(
            f"settings {settings!r} are unknown{nearest(settings, SETTINGS)}; choose of {', '.join(SETTINGS)}"
        )
    given: dict[str, object] = {"mode": mode, "stride": stride, "documents": documents}
    given["windows"] = tuple(sorted(set(windows))) if windows else None
    if mode is not None and mode not in _MODES:
        raise RecipeError(f"mode {mode!r} is unknown{nearest(mode, _MODES)}; choose of {', '.join(_MODES)}")
    if documents is not None and documents < 1:
        raise RecipeError(f"documents {documents} must be at least 1; raise it")
    if mode not in (None, "sliding") and stride is not None:
        raise RecipeError(f"--stride is of sliding windows, and {mode} has none; leave it out")
    chosen = SETTINGS[settings] if settings else _DEFAULT
    how = replace(chosen, **{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]
    if how.mode == "sliding":
        for window in how.windows:
            sliding_windows(window, window, how.stride)
    elif how.windows[0] < 2:
        raise RecipeError(f"window {how.windows[0]} must be at least 2 tokens; widen it")
    return how


def perplexity_command(
    name: str, source: Data, how: Reading, precision: str, out: Path | None, console: Console
) -> None:
    """Read the longest documents of ``source``; what ``out`` holds already is not read again.

    Raises:
        SkipwiseError: model, text or lengths cannot be used.
    """
    precision = precision_of(precision)
    known = _known(out)
    config = load_config(name)
    tokenizer = load_tokenizer(name)
    store = tokenise(source.source, tokenizer, console, **source.reading)
    check_vocabulary(store, config.get_text_config().vocab_size)
    text = longest_documents(
        store, np.arange(len(store)), windows=how.windows, most=how.documents, limit=None, console=console
    )
    longest = text.windows[-1]
    limit = 2 * longest if how.mode == "sliding" else longest
    weights = weights_fingerprint(name)
    documents = {n: np.asarray(d[:limit]) for n, d in zip(text.names, text.documents, strict=True)}
    shown = ", ".join(text.names[:3]) + (" ..." if len(text.names) > 3 else "")
    console.print(f"{len(documents)} documents: {shown}")
    windows = {"sliding": text.windows, "truncated": [longest], "by-position": [text.windows[0], longest]}
    plan, records = [], []
    for window in windows[how.mode]:
        stride = how.stride if how.mode == "sliding" else max(1, window // 2)
        missing = {}
        for document, tokens in documents.items():
            edges = _edges(how, text.windows, len(tokens))
            key = (
                ReadingRecord.kind,
                name,
                window,
                stride,
                source.source,
                document,
                tuple(edges),
                precision,
                reading_key(weights, tokens),
            )
            if key in known:
                records.append(known[key])
            else:
                missing[document] = tokens
        for length in sorted(
            {len(tokens) for tokens in missing.values()}
        ):  # of one length, of the same buckets
            same = {document: tokens for document, tokens in missing.items() if len(tokens) == length}
            edges = _edges(how, text.windows, length)
            plan.append(
                reading_measurement(name, same, window, stride, edges, precision, source.source, weights)
            )
    records += _measured(name, plan, precision, out, console)
    console.print(_table(how, [r for r in records if isinstance(r, ReadingRecord)], text.windows))


def passkey_command(
    name: str,
    task: str,
    lengths: list[int],
    trials: int,
    seed: int,
    precision: str,
    out: Path | None,
    console: Console,
) -> None:
    """Hide a number at every depth and ask for it; what ``out`` holds already is not asked again.

    Raises:
        SkipwiseError: model or lengths cannot be used.
    """
    for what, value, least in (("trials", trials, 1), ("seed", seed, 0)):
        if value < least:
            raise RecipeError(f"{what} {value} must be at least {least}; raise it")
    if task not in TASKS:
        raise RecipeError(f"task {task!r} is unknown{nearest(task, TASKS)}; choose of {', '.join(TASKS)}")
    precision = precision_of(precision)
    known = _known(out)
    load_config(name)  # a model that is not there is said to be missing, not to lack a tokenizer
    tokenizer, weights = load_tokenizer(name), weights_fingerprint(name)
    plan, records = [], []
    for length in sorted(set(lengths)):
        asked = {
            (TrialRecord.kind, name, length, task, seed, trial, precision, weights[:16]): trial
            for trial in range(trials)
        }
        records += [known[key] for key in asked if key in known]
        missing = [trial for key, trial in asked.items() if key not in known]
        measurement = retrieval_measurement(name, tokenizer, task, length, missing, seed, precision, weights)
        if missing:
            plan.append(measurement)
    records += _measured(name, plan, precision, out, console)
    table = _grid(task, "length", "found", "share", "95% interval")
    for length in sorted(set(lengths)):
        hits = [r.hit for r in records if isinstance(r, TrialRecord) and r.length == length]
        low, high = wilson_interval(sum(hits), len(hits))
        share = format_share(sum(hits) / len(hits))
        table.add_row(
            format_length(length),
            f"{sum(hits)} of {len(hits)}",
            share,
            f"{100 * low:.0f} to {100 * high:.0f}%",
        )
    console.print(table)


def benchmark_command(
    name: str, exam: Exam, target: int | None, precision: str, out: Path | None, console: Console
) -> None:
    """``skipwise benchmark``: tasks of lm-evaluation-harness at the extended length, those not yet in ``out``.

    Raises:
        SkipwiseError: model, tasks or data cannot be used, or a request is longer than ``target``.
    """

    def keep(*records: Record) -> None:
        if out is not None:
            append_record(out, *records)

    known = list(_known(out).values())
    shown = exam.sit(name, name, target, precision_of(precision), known, keep, console)
    console.print(benchmark_table(shown))


def _edges(how: Reading, windows: list[int], length: int) -> list[int]:
    return [1, length] if how.mode == "sliding" else [1, *windows]


def _known(out: Path | None) -> dict[tuple[object, ...], Record]:
    """The records that are there, by what they measure; the file is one of ours."""
    if out is None:
        return {}
    require_results(out)
    return {identity(record): record for record in read_records(out)}


def _measured(
    name: str, plan: list[Measurement], precision: str, out: Path | None, console: Console
) -> list[Record]:
    """Measure, append each record to ``out``, and return them."""
    made: list[Record] = []

    def keep(record: Record) -> None:
        made.append(record)
        if out is not None:
            append_record(out, record)

    if plan:
        measure(loaded(name, precision), plan, name, console, keep)
    return made


def _table(how: Reading, records: list[ReadingRecord], windows: list[int]) -> Table:
    of = {
        window: [r for r in records if r.window == window] for window in sorted({r.window for r in records})
    }
    if how.mode == "sliding":
        table = _grid("perplexity", "window", "perplexity", "95% interval", "documents", "tokens")
        for window, rs in of.items():
            value, tokens = perplexity_interval(rs), sum(r.edges[-1] - 1 for r in rs)
            span = f"{format_number(value.low)} to {format_number(value.high)}"
            table.add_row(
                format_length(window),
                format_number(value.mean),
                span if len(rs) > 1 else "–",
                str(len(rs)),
                f"{tokens:,}",
            )
        return table
    whole = of[max(of)]
    if how.mode == "truncated":
        table = _grid("perplexity of the first tokens", "tokens", "perplexity", "95% interval")
        for end in windows:
            value = perplexity_interval(whole, end)
            span = f"{format_number(value.low)} to {format_number(value.high)}"
            table.add_row(format_length(end), format_number(value.mean), span if len(whole) > 1 else "–")
        return table
    title = f"loss by position; gain over windows of {min(of):,}"
    table = _grid(title, "position", "loss (nats)", "gain by far text")
    for begin, end in pairwise([1, *windows]):
        gain = bucket_difference(of[min(of)], whole, begin, end)
        table.add_row(f"{begin:,} .. {end - 1:,}", f"{bucket_mean(whole, begin, end):.3f}", str(gain))
    return table


def _grid(title: str, *columns: str) -> Table:
    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table
