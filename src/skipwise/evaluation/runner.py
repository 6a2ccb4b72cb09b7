"""A specification and a model -> requests -> records, one by one, with a progress bar over all of them.

A request is a record whose answer is still empty. What is there already is known by its key and not measured again.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle, groupby
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from skipwise.data.ruler import read_ruler_data, repeats
from skipwise.data.store import TokenStore, check_vocabulary
from skipwise.data.tokenising import tokenise
from skipwise.errors import EvaluationError, TooShortError, out_of_memory
from skipwise.evaluation.batches import Batch, Prompts, Readings, Request
from skipwise.evaluation.models import EvaluatedModel
from skipwise.evaluation.questions import first_request
from skipwise.evaluation.server import Server
from skipwise.evaluation.specification import RULER, Specification, is_ruler
from skipwise.evaluation.texts import (
    EvaluationText,
    Segment,
    fair_documents,
    filled_windows,
    longest_documents,
    spread_segments,
)
from skipwise.evaluation.windows import position_buckets
from skipwise.evaluation.workload import READ, beyond_memory, workload_of
from skipwise.model.config import load_config
from skipwise.model.forward_cost import ForwardCost
from skipwise.model.loading import load_tokenizer
from skipwise.model.memory import machine_memory
from skipwise.model.origin import Origin
from skipwise.model.precision import dtype_of
from skipwise.progress import progress
from skipwise.results.files import short_digest
from skipwise.results.records import Measured, ReadingRecord, Record, append_record, read_records

_PREFIXES = 16  # lengths of the curve of perplexity over the first tokens


def read_texts(
    specification: Specification,
    name: str,
    origins: Sequence[Origin],
    console: Console,
    stores: dict[str, TokenStore] | None = None,
) -> list[EvaluationText]:
    """Tokenise the texts for model ``name``, choose the documents that are read of each, and say which they are.

    ``origins`` say what models were trained on; those documents are not measured on. ``stores`` holds tokens that are
    there already, by source; those that are tokenised here are added.
    """
    if not specification.documents:
        return []
    tokenizer, config = load_tokenizer(name), load_config(name)
    texts, stores = [], {} if stores is None else stores
    for text in specification.texts:
        if text.source not in stores:
            stores[text.source] = tokenise(text, tokenizer, console)
        store = stores[text.source]
        check_vocabulary(store, config.get_text_config().vocab_size)
        among = fair_documents(store, text, origins, console)
        windows = filled_windows(store, among, specification.windows, console)
        limit = specification.tokens_read(windows[-1])
        documents = longest_documents(store, among, at_least=windows[-1], most=specification.documents, limit=limit)
        segments = {
            length: spread_segments(store, among, length, specification.segments)
            for length in specification.segment_lengths
        }
        texts.append(EvaluationText(text.source, documents, windows, segments, store.fingerprint))
        console.print(texts[-1].described, soft_wrap=True)
    return texts


def plan_readings(
    specification: Specification, model: EvaluatedModel, texts: Iterable[EvaluationText], windows: Sequence[int] = ()
) -> Iterator[Readings]:
    """Plan what ``model`` reads: every text at ``windows`` (or else at all that it fills), and its segments."""
    for text in texts:
        how = ReadingRecord(model.label, text.source, "", "sliding", 0, 1, 1, [], specification.precision, digest="")
        for window in windows or text.windows:
            sliding = replace(how, window=window, stride=specification.stride_of(window))
            for tokens, documents in groupby(text.documents, key=lambda one: len(one.tokens)):
                edges = bucket_edges(tokens, text.windows, specification.original)
                yield _readings(replace(sliding, edges=edges), model, list(documents))
        for length, segments in text.segments.items():
            if segments:  # else no document is as long, which the windows have said
                edges = position_buckets(length, specification.original)
                segment = replace(how, mode="segment", window=length, stride=length, edges=edges)
                yield _readings(segment, model, segments)


def plan_prompts(
    specification: Specification,
    model: EvaluatedModel,
    tokenizer: PreTrainedTokenizerBase,
    console: Console | None = None,
    *,
    required: bool = False,
) -> Iterator[Prompts]:
    """Plan what ``model`` is asked: every task at every length.

    The console is told which lengths are too short for a task; without it they are an error, and also where no length is long
    enough for any task, if prompts are ``required``. It is also told where the essays
    or documents of RULER are fewer than a prompt holds.
    """
    data = read_ruler_data(specification.ruler_data) if any(map(is_ruler, specification.tasks)) else None
    planned, short, repeated = [], dict[int, list[str]](), dict[int, list[str]]()
    for task in specification.tasks:
        for length in specification.prompt_lengths:
            try:
                planned.append(first_request(specification, model, tokenizer, task, length, data))
            except TooShortError as error:
                short.setdefault(length, []).append(f"{task} (from {error.shortest:,} tokens)")
            else:
                if data and is_ruler(task) and repeats(tokenizer, task.removeprefix(RULER), length, data):
                    repeated.setdefault(length, []).append(task)
    too_short = [
        f"{length:,} tokens are too few for prompts of {', '.join(tasks)}" for length, tasks in sorted(short.items())
    ]
    if too_short and (console is None or (required and not planned)):
        raise TooShortError(
            f"{'; '.join(too_short)}; give longer prompts (--lengths, evaluation.prompt_lengths), or leave these tasks out "
            "(evaluation.tasks)"
        )
    for words in too_short:
        assert console is not None
        console.print(f"{words}: left out at this length for {model.label}", style="yellow", soft_wrap=True)
    for length, tasks in sorted(repeated.items()):
        if console:
            told = f"prompts of {length:,} tokens repeat their essays or documents, which are fewer: {', '.join(tasks)}"
            console.print(
                f"{told}, for {model.label}; a longer text is read by --ruler-data", style="yellow", soft_wrap=True
            )
    for first, ask in planned:
        yield Prompts([replace(first, trial=trial) for trial in range(specification.trials)], ask, tokenizer)


def missing(batches: Iterable[Batch], known: Collection[str], shard: tuple[int, int] = (1, 1)) -> list[Batch]:
    """Keep the requests that no record answers yet and that belong to ``shard``, part i of n."""
    part, parts = shard
    turn, rest = cycle(range(1, parts + 1)), []  # over all batches, for many of them hold a single request
    for batch in batches:
        ours = {request.key for request in batch.requests if next(turn) == part}
        rest.append(batch.only(ours.difference(known)))
    return [batch for batch in rest if batch.requests]


def measure(
    model: PreTrainedModel, batches: Sequence[Batch], console: Console, on_record: Callable[[Record], None]
) -> None:
    """Answer every request in turn under one progress bar, and hand each record on as soon as it is made."""
    if not batches:
        return
    label = batches[0].requests[0].arm
    itemsize = min(model.dtype.itemsize, dtype_of(batches[0].requests[0].precision).itemsize)
    require_memory(model.config, model.device, itemsize, batches, model.get_memory_footprint())
    cost = ForwardCost.of(model)
    operations = [sum(cost.of_token(batch.length, scored=isinstance(batch, Readings))) for batch in batches]
    total = sum(batch.tokens * each for batch, each in zip(batches, operations, strict=True))
    with progress(f"measuring {label}", total, console) as work:
        for batch, each in zip(batches, operations, strict=True):

            def advance(tokens: int, each: float = each) -> None:
                work.advance(tokens * each)

            for record in explained_answers(model, batch, advance):
                on_record(record)


def ask(server: Server, batches: Sequence[Batch], console: Console, on_record: Callable[[Record], None]) -> None:
    """Let a server answer every prompt, under one progress bar, and hand each record on as soon as it is made."""
    prompts = [batch for batch in batches if isinstance(batch, Prompts)]
    if not prompts:
        return
    doing = f"asking {prompts[0].requests[0].arm} at {server.url}"
    with progress(doing, sum(batch.tokens for batch in prompts), console) as work:
        for batch in prompts:
            for record in batch.served(server, work.advance):
                on_record(record)


def require_memory(
    config: PretrainedConfig, device: torch.device, itemsize: int, batches: Sequence[Batch], weights: int
) -> None:
    """Refuse, before the first is read, windows and prompts that are certain not to fit beside ``weights`` bytes.

    Raises:
        EvaluationError: names the length, the most that may fit, and the setting.
    """
    memory = machine_memory(device)
    if memory is None:
        return
    for lengths in beyond_memory([workload_of(batch) for batch in batches], config, itemsize, weights, memory):
        shorter = f"those of {lengths.fitting[-1]:,} may" if lengths.fitting else f"at most {lengths.most:,} may"
        instead = lengths.instead or f"--set evaluation.{lengths.setting}=..."
        raise EvaluationError(
            f"{READ[lengths.setting]} of {lengths.longest:,} tokens do not fit: reading one takes {lengths.needed / 1e9:,.0f} GB at "
            f"the least, and this {'machine' if device.type == 'cpu' else 'GPU'} has {memory / 1e9:,.0f} GB; {shorter}. Leave the "
            f"longer ones out ({instead} of a recipe, --lengths or --windows of other commands)"
        )


def answered(
    model: Callable[[], PreTrainedModel],
    batches: Sequence[Batch],
    results: Path | None,
    console: Console,
    server: Server | None = None,
    shard: tuple[int, int] = (1, 1),
) -> list[Record]:
    """Answer the requests of ``shard`` that the file ``results`` does not answer yet; return the records of all answered ones.

    Each record is appended to it as soon as it is made; None keeps them in memory alone. ``model`` loads the model, and
    is called only if something is left to measure. A ``server`` answers prompts in its place.
    """
    made: dict[str, Record] = {r.key: r for r in read_records(results) if isinstance(r, Measured)} if results else {}

    def keep(record: Record) -> None:
        assert isinstance(record, Measured)
        made[record.key] = record
        if results is not None:
            append_record(results, record)

    left = missing(batches, made.keys(), shard)
    if server:
        ask(server, left, console, keep)
        left = [batch for batch in left if not isinstance(batch, Prompts)]
    if left:
        measure(model(), left, console, keep)
    return [made[request.key] for batch in batches for request in batch.requests if request.key in made]


def _readings(how: ReadingRecord, model: EvaluatedModel, read: Sequence[Segment]) -> Readings:
    """Requests to read documents or segments as ``how`` says."""
    requests = [replace(how, document=one.document, begin=one.begin, digest=_digest(model, one)) for one in read]
    return Readings(requests, [one.tokens for one in read])


def _digest(model: EvaluatedModel, read: Segment) -> str:
    """16 hex digits of a model's weights and the tokens that it reads."""
    tokens = np.asarray(read.tokens, dtype=np.int64).tobytes()
    return short_digest(model.digest.encode() + tokens)


def bucket_edges(tokens: int, windows: Sequence[int], original: int) -> list[int]:
    """The bucket edges of a document: positions doubling from a quarter of the original length, the windows, and 16
    even parts of the longest window."""
    parts = {windows[-1] * k // _PREFIXES for k in range(1, _PREFIXES + 1)}
    inner = {*position_buckets(tokens, original), *windows, *parts}
    return sorted({1, tokens} | {edge for edge in inner if 1 < edge < tokens})


def explained_answers(
    model: PreTrainedModel, batch: Batch, on_progress: Callable[[int], None] | None = None
) -> Iterator[ReadingRecord | Request]:
    """Answer a batch; of a want of memory, or a position beyond the model's, say the way out.

    Raises:
        EvaluationError: it says the length, and the setting.
    """
    first, length = batch.requests[0], batch.length
    label = first.arm
    try:
        yield from batch.answers(model, on_progress)
    except EvaluationError as error:
        raise EvaluationError(f"{label}: {error}") from error
    except (MemoryError, RuntimeError, IndexError) as error:
        if out_of_memory(error):
            again = (
                "Lower the lengths (evaluation.windows and evaluation.prompt_lengths of a recipe, --lengths of evaluate) and "
                "run the command again"
            )
            if isinstance(first, ReadingRecord) and first.step is not None:
                again = "Leave out evaluation.steps, and with it evaluation.keep=best: a step is measured beside its optimizer"
            raise EvaluationError(
                f"out of memory measuring {label} at {length:,} tokens: it held the model, the keys and values of that "
                f"many tokens and the logits of those scored. What was measured is kept. {again}"
            ) from error
        most = getattr(model.config, "max_position_embeddings", None)
        beyond = isinstance(error, IndexError) or "device-side assert" in str(error)
        if not beyond or not isinstance(most, int) or length <= most:
            raise
        raise EvaluationError(
            f"{label} cannot read {length:,} tokens: its positions end at {most:,} "
            "(config max_position_embeddings); lower the length"
        ) from error
