"""Models + held-out documents or benchmarks -> records: what ``extend`` measures, and the commands of their own."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from skipwise.data.passkey import passkey_prompt
from skipwise.data.tokenising import build_token_store
from skipwise.data.tokens import TokenStore, check_vocabulary
from skipwise.errors import EvaluationError, RecipeError
from skipwise.evaluation.benchmarks import Benchmarks, parse_tasks, require_installed
from skipwise.evaluation.by_position import position_buckets, score_by_position
from skipwise.evaluation.passkey import passkey_accuracy
from skipwise.evaluation.perplexity import fed_tokens, sliding_perplexity
from skipwise.evaluation.texts import longest_documents
from skipwise.evaluation.windows import sliding_windows
from skipwise.model.loading import load_config, load_model, load_tokenizer
from skipwise.recipe import nearest
from skipwise.report.summary import benchmark_table, summary_table
from skipwise.results import (
    BenchmarkRecord,
    PasskeyRecord,
    PerplexityRecord,
    PositionRecord,
    Record,
    append_record,
    read_records,
    require_results,
)
from skipwise.training_arguments import choose_precision

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "float32": None}


@dataclass(frozen=True)
class Measurement:
    """One record to be made: its identity, the tokens it reads, and how it is made."""

    identity: tuple[object, ...]
    tokens: int
    run: Callable[[PreTrainedModel, Callable[[int], None]], Record]


def identity(record: Record) -> tuple[object, ...]:
    """What a record measures, how, and on how much text, so that a resumed run does not measure it again."""
    if isinstance(record, PerplexityRecord):
        text = (record.data, record.documents, record.tokens)
        return (record.kind, record.arm, record.window, record.stride, *text)
    if isinstance(record, PasskeyRecord):
        return (record.kind, record.arm, record.length, record.trials, record.seed)
    if isinstance(record, PositionRecord):
        return (record.kind, record.arm, record.length, record.data, len(record.documents))
    return (record.kind,)


def perplexity_measurement(
    arm: str, documents: Sequence[np.ndarray], window: int, stride: int, precision: str, data: str
) -> Measurement:
    """Sliding-window perplexity of ``arm`` over ``documents`` at one window."""
    sliding_windows(window, window, stride)  # a stride that the window cannot take is said before any work

    def run(model: PreTrainedModel, on_progress: Callable[[int], None]) -> Record:
        score = sliding_perplexity(
            model,
            documents,
            window=window,
            stride=stride,
            precision=AUTOCAST[precision],
            on_progress=on_progress,
        )
        if math.isnan(score.nll):
            raise _not_finite(arm)
        return PerplexityRecord(
            arm=arm,
            window=window,
            stride=stride,
            documents=score.documents,
            tokens=score.tokens,
            nll=score.nll,
            precision=precision,
            seconds=round(score.seconds, 3),
            data=data,
        )

    scored = [len(document) - 1 for document in documents if len(document) > 1]
    key = (PerplexityRecord.kind, arm, window, stride, data, len(scored), sum(scored))
    return Measurement(key, fed_tokens(documents, window, stride), run)


def passkey_measurement(
    arm: str, tokenizer: PreTrainedTokenizerBase, length: int, trials: int, seed: int, precision: str
) -> Measurement:
    """Passkey accuracy of ``arm`` at one prompt length."""
    passkey_prompt(tokenizer, length, np.random.default_rng(0))  # a length too short is said before any work

    def run(model: PreTrainedModel, on_progress: Callable[[int], None]) -> Record:
        with _finite_logits(model, arm):
            score = passkey_accuracy(
                model,
                tokenizer,
                length=length,
                trials=trials,
                seed=seed,
                precision=AUTOCAST[precision],
                on_progress=lambda prompts: on_progress(prompts * length),
            )
        return PasskeyRecord(
            arm=arm,
            length=length,
            seed=seed,
            depths=score.depths,
            prompt_tokens=score.prompt_tokens,
            hits=score.hits,
            answers=score.answers,
            seconds=round(score.seconds, 3),
        )

    return Measurement((PasskeyRecord.kind, arm, length, trials, seed), trials * length, run)


def position_measurement(
    arm: str, names: Sequence[str], segments: np.ndarray, original: int, precision: str, data: str
) -> Measurement:
    """Loss by position of ``arm`` over ``segments``, int [segments, length]; ``names`` are of their documents."""
    length = segments.shape[1]
    edges = position_buckets(length, original)

    def run(model: PreTrainedModel, on_progress: Callable[[int], None]) -> Record:
        score = score_by_position(
            model, segments, edges, precision=AUTOCAST[precision], on_progress=on_progress
        )
        if np.isnan(score.nll).any():
            raise _not_finite(arm)
        return PositionRecord(
            arm=arm,
            length=length,
            data=data,
            edges=edges,
            documents=list(names),
            nll=score.nll.round(4).tolist(),
            hits=score.hits.tolist(),
            precision=precision,
            seconds=round(score.seconds, 3),
        )

    return Measurement((PositionRecord.kind, arm, length, data, len(segments)), segments.size, run)


def measure(
    model: PreTrainedModel,
    measurements: Sequence[Measurement],
    label: str,
    console: Console,
    on_record: Callable[[Record], None],
) -> None:
    """Make each record in turn, with one progress bar over all of them; hand it on as soon as it is made."""
    with measuring_progress(console) as bar:
        line = bar.add_task(f"measuring {label}", total=sum(m.tokens for m in measurements))

        def advance(tokens: int) -> None:
            bar.advance(line, tokens)

        for measurement in measurements:
            with _positions_explained(model, label, measurement), _memory_explained(label, measurement):
                record = measurement.run(model, advance)
            on_record(record)


@contextmanager
def _memory_explained(label: str, measurement: Measurement) -> Iterator[None]:
    """Turn a want of memory into what was being held and the way out."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "allocate memory" not in str(
            error
        ):
            raise
        kind, _, length = measurement.identity[:3]
        raise EvaluationError(
            f"out of memory measuring the {kind} of {label} at {length:,} tokens: the model, the keys and values of "
            "that many tokens and the logits of those scored; what was measured is kept. Lower the windows "
            "(evaluation.windows, evaluation.passkey_lengths) and go on with --resume"
        ) from error


@contextmanager
def _positions_explained(model: PreTrainedModel, label: str, measurement: Measurement) -> Iterator[None]:
    """Turn a position that the model has no embedding for into its limit."""
    try:
        yield
    except (IndexError, RuntimeError) as error:
        if not isinstance(error, IndexError) and "device-side assert" not in str(error):
            raise
        most, length = getattr(model.config, "max_position_embeddings", None), measurement.identity[2]
        if not isinstance(most, int) or not isinstance(length, int) or length <= most:
            raise
        raise EvaluationError(
            f"{label} cannot read {length:,} tokens: its positions end at {most:,} "
            "(config max_position_embeddings); lower the length"
        ) from error


@contextmanager
def _finite_logits(model: PreTrainedModel, label: str) -> Iterator[None]:
    """Refuse what was written from logits that are not numbers: greedy decoding takes any of them."""
    broken: list[torch.Tensor] = []
    head = model.get_output_embeddings()
    assert isinstance(head, torch.nn.Module)
    hook = head.register_forward_hook(lambda _module, _inputs, logits: broken.append(logits.isnan().any()))
    try:
        yield
    finally:
        hook.remove()
    if any(broken):
        raise _not_finite(label)


def _not_finite(label: str) -> EvaluationError:
    return EvaluationError(
        f"logits are not finite measuring {label}: its weights are damaged, or overflow in this precision; "
        "try precision float32, or train again"
    )


def measuring_progress(console: Console) -> Progress:
    """Build the bar of a measurement: share done, time taken, time left."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )


def tokenise(
    source: str,
    tokenizer: PreTrainedTokenizerBase,
    console: Console,
    **options: Any,
) -> TokenStore:
    """Build or find the token store of ``source``, by the ``options`` of ``build_token_store``, and show how far it is."""
    with Progress(
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bar:
        line = bar.add_task(f"tokenising {source}", total=None)

        def show(documents: int, tokens: int) -> None:
            bar.update(line, description=f"tokenising {source}: {documents:,} documents, {tokens:,} tokens")

        return build_token_store(source, tokenizer, on_progress=show, **options)


def perplexity_command(
    name: str,
    data: str,
    windows: list[int],
    stride: int,
    documents: int,
    precision: str,
    out: Path | None,
    console: Console,
) -> None:
    """``skipwise perplexity``: measure a model on the longest documents of ``data``.

    Raises:
        SkipwiseError: model, text or lengths cannot be used.
    """
    _require_least("documents", documents, 1)
    for window in windows:
        sliding_windows(window, window, stride)
    device, precision = _prepare(precision, out)
    config = load_config(name)
    tokenizer = load_tokenizer(name)
    store = tokenise(data, tokenizer, console)
    check_vocabulary(store, config.vocab_size)
    text = longest_documents(
        store, np.arange(len(store)), windows=windows, most=documents, limit=None, console=console
    )
    shown = ", ".join(text.names[:3]) + (" ..." if len(text.names) > 3 else "")
    console.print(f"{len(text.documents)} documents: {shown}")
    plan = [perplexity_measurement(name, text.documents, w, stride, precision, data) for w in text.windows]
    _measure_and_show(name, plan, device, out, console)


def passkey_command(
    name: str, lengths: list[int], trials: int, seed: int, precision: str, out: Path | None, console: Console
) -> None:
    """``skipwise passkey``: hide a key at random depths and ask for it.

    Raises:
        SkipwiseError: model or lengths cannot be used.
    """
    _require_least("trials", trials, 1)
    _require_least("seed", seed, 0)
    device, precision = _prepare(precision, out)
    load_config(name)  # a model that is not there is said to be missing, not to lack a tokenizer
    tokenizer = load_tokenizer(name)
    plan = [passkey_measurement(name, tokenizer, n, trials, seed, precision) for n in lengths]
    _measure_and_show(name, plan, device, out, console)


def benchmark_command(
    name: str,
    tasks: str,
    *,
    data_dir: Path | None,
    include_path: Path | None,
    limit: int | None,
    target: int | None,
    batch_size: str,
    precision: str,
    out: Path | None,
    console: Console,
) -> None:
    """``skipwise benchmark``: tasks of lm-evaluation-harness at the extended length, those not yet in ``out``.

    Raises:
        SkipwiseError: model, tasks or data cannot be used, or a request is longer than ``target``.
    """
    require_installed()
    if batch_size != "auto" and not (batch_size.isdecimal() and int(batch_size)):
        raise RecipeError(f"--batch-size {batch_size!r} must be auto or a number of requests from 1")
    asked = parse_tasks(tasks)
    device, precision = _prepare(precision, out)
    target = target or getattr(load_config(name).get_text_config(), "max_position_embeddings", None)
    if target is None:
        raise RecipeError(
            f"the config of {name} says no length; give --target, the longest request in tokens"
        )
    tokenizer = load_tokenizer(name)
    benchmarks = Benchmarks(asked, tokenizer, target=target, include_path=include_path, data_dir=data_dir)
    made: dict[tuple[str, int], list[BenchmarkRecord]] = {}
    for record in read_records(out) if out else []:
        if isinstance(record, BenchmarkRecord) and (
            (record.arm, record.target, record.limit, record.precision) == (name, target, limit, precision)
        ):
            made.setdefault((record.task, record.fewshot), []).append(record)
    left = [one for one in benchmarks.tasks if one.key not in made]
    if len(left) < len(benchmarks.tasks):
        console.print(
            f"{len(benchmarks.tasks) - len(left)} of {len(benchmarks.tasks)} tasks are in {out} already",
            soft_wrap=True,
        )
    if left:
        from skipwise.evaluation.harness import Reader

        reader = Reader(
            load_model(name, device=device),
            tokenizer,
            max_length=target,
            batch_size="1" if batch_size == "auto" and device.type == "cpu" else batch_size,
            precision=AUTOCAST[precision],
        )
        if reader.endless:
            console.print("no BOS or EOS token: token 0 stands before texts that have no context")
        for one in left:
            console.print(f"{one.task}, {one.fewshot}-shot, up to {target:,} tokens")
            made[one.key] = benchmarks.run(reader, one, arm=name, limit=limit, precision=precision)
            if out is not None:
                append_record(out, *made[one.key])
    shown = [r for one in benchmarks.tasks for r in made[one.key] if one.metric in (None, r.metric)]
    console.print(benchmark_table(shown))


def _measure_and_show(
    name: str, plan: list[Measurement], device: torch.device, out: Path | None, console: Console
) -> None:
    records: list[Record] = []

    def keep(record: Record) -> None:
        records.append(record)
        if out is not None:
            append_record(out, record)

    measure(load_model(name, device=device).eval(), plan, name, console, keep)
    console.print(summary_table(records))


def _require_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise RecipeError(f"{name} {value} must be at least {least}; raise it")


def _prepare(precision: str, out: Path | None) -> tuple[torch.device, str]:
    """Choose device and precision, and make sure that the results have a place."""
    valid = ("auto", *AUTOCAST)
    if precision not in valid:
        raise RecipeError(
            f"precision {precision!r} is unknown{nearest(precision, valid)}; choose one of {', '.join(valid)}"
        )
    if out is not None:
        require_results(out)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return device, choose_precision(precision, device)
