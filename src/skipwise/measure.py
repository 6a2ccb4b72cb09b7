"""Models + held-out documents or prompts -> records, one by one, with a progress bar over all of them."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from skipwise.data.harder_retrieval import keys_prompt, lines_prompt
from skipwise.data.passkey import Prompt, passkey_prompt
from skipwise.data.tokenising import build_token_store
from skipwise.data.tokens import TokenStore
from skipwise.errors import EvaluationError, ModelError, RecipeError
from skipwise.evaluation.by_position import bucket_sums, position_buckets, score_by_position
from skipwise.evaluation.perplexity import fed_tokens, sliding_perplexity, sliding_scores
from skipwise.evaluation.retrieval import passkey_accuracy, retrieve
from skipwise.evaluation.windows import sliding_windows
from skipwise.model.loading import load_config, load_model
from skipwise.recipe import nearest
from skipwise.results import (
    BenchmarkRecord,
    PasskeyRecord,
    PerplexityRecord,
    PositionRecord,
    ReadingRecord,
    Record,
    TrialRecord,
    tenth_of,
)
from skipwise.training_arguments import choose_precision

TASKS = {"passkey": passkey_prompt, "keys": keys_prompt, "lines": lines_prompt}
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "float32": None}


@dataclass(frozen=True)
class Measurement:
    """Records to be made, ``count`` of them: of the first its identity, the tokens they read, and how they are made."""

    identity: tuple[object, ...]
    tokens: int
    run: Callable[[PreTrainedModel, Callable[[int], None]], Iterator[Record]]
    count: int = 1


def identity(record: Record) -> tuple[object, ...]:
    """What a record measures, how, and on how much text, so that a resumed run does not measure it again."""
    if isinstance(record, PerplexityRecord):
        text = (record.data, record.documents, record.tokens)
        return (record.kind, record.arm, record.window, record.stride, *text)
    if isinstance(record, PasskeyRecord):
        return (record.kind, record.arm, record.length, record.trials, record.seed)
    if isinstance(record, PositionRecord):
        return (record.kind, record.arm, record.length, record.data, len(record.documents))
    if isinstance(record, ReadingRecord):
        place = (record.data, record.document, tuple(record.edges))
        return (record.kind, record.arm, record.window, record.stride, *place, record.precision, record.key)
    if isinstance(record, TrialRecord):
        trial = (record.task, record.seed, record.trial, record.precision, record.key)
        return (record.kind, record.arm, record.length, *trial)
    if isinstance(record, BenchmarkRecord):
        asked = (record.task, record.metric, record.fewshot, record.target, record.limit, record.precision)
        return (record.kind, record.arm, *asked)
    return (record.kind,)


def perplexity_measurement(
    arm: str, documents: Sequence[np.ndarray], window: int, stride: int, precision: str, data: str
) -> Measurement:
    """Sliding-window perplexity of ``arm`` over ``documents`` at one window."""
    sliding_windows(window, window, stride)  # a stride that the window cannot take is said before any work

    def run(model: PreTrainedModel, on_progress: Callable[[int], None]) -> Iterator[Record]:
        score = sliding_perplexity(
            model,
            documents,
            window=window,
            stride=stride,
            precision=AUTOCAST[precision],
            on_progress=on_progress,
        )
        if math.isnan(score.nll):
            raise not_finite(arm)
        yield PerplexityRecord(
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

    def run(model: PreTrainedModel, on_progress: Callable[[int], None]) -> Iterator[Record]:
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
        yield PasskeyRecord(
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

    def run(model: PreTrainedModel, on_progress: Callable[[int], None]) -> Iterator[Record]:
        score = score_by_position(
            model, segments, edges, precision=AUTOCAST[precision], on_progress=on_progress
        )
        if np.isnan(score.nll).any():
            raise not_finite(arm)
        yield PositionRecord(
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


def reading_measurement(
    arm: str,
    documents: Mapping[str, np.ndarray],
    window: int,
    stride: int,
    edges: list[int],
    precision: str,
    data: str,
    weights: str,
) -> Measurement:
    """A record a document, by name, read in windows of ``window``; each as soon as it is read.

    Args:
        arm: the model's label.
        documents: token ids, int [edges[-1]] each.
        window: tokens fed at once.
        stride: tokens by which windows advance.
        edges: of the buckets of positions, rising from 1.
        precision: bf16, fp16 or float32.
        data: the text's name.
        weights: the model's fingerprint.
    """

    def run(model: PreTrainedModel, on_progress: Callable[[int], None]) -> Iterator[Record]:
        scores = sliding_scores(
            model,
            list(documents.values()),
            window=window,
            stride=stride,
            precision=AUTOCAST[precision],
            on_progress=on_progress,
        )
        for (name, tokens), score in zip(documents.items(), scores, strict=True):
            nll, hits = bucket_sums(score, edges)
            if np.isnan(nll).any():
                raise not_finite(arm)
            yield ReadingRecord(
                arm=arm,
                data=data,
                document=name,
                window=window,
                stride=stride,
                edges=edges,
                nll=nll.round(4).tolist(),
                hits=hits.tolist(),
                precision=precision,
                seconds=round(score.seconds, 3),
                key=reading_key(weights, tokens),
            )

    fed = fed_tokens(documents.values(), window, stride)
    return Measurement((ReadingRecord.kind, arm, window), fed, run, len(documents))


def reading_key(weights: str, tokens: np.ndarray) -> str:
    """What a reading depends on beside its settings: the weights' fingerprint and the document's tokens."""
    digest = hashlib.sha256(weights.encode() + np.asarray(tokens, dtype=np.int64).tobytes())
    return digest.hexdigest()[:16]


def retrieval_measurement(
    arm: str,
    tokenizer: PreTrainedTokenizerBase,
    task: str,
    length: int,
    trials: Sequence[int],
    seed: int,
    precision: str,
    weights: str,
) -> Measurement:
    """A record a prompt of a task, as soon as it is answered.

    Trial i is drawn from ``np.random.default_rng([seed, length, i])``; its depth lies in tenth ``tenth_of(i)`` of the
    prompt, so that every ten trials cover it evenly.

    Raises:
        DataError: the length is too short for a prompt, or the tokenizer does not suit; said before any work.
    """
    draw = TASKS[task]
    draw(tokenizer, length, np.random.default_rng(0), 0.5)

    def prompt(trial: int) -> Prompt:
        rng = np.random.default_rng([seed, length, trial])
        return draw(tokenizer, length, rng, (tenth_of(trial) + rng.random()) / 10)

    def run(model: PreTrainedModel, on_progress: Callable[[int], None]) -> Iterator[Record]:
        prompts = [prompt(trial) for trial in trials]
        with _finite_logits(model, arm):
            for answer in retrieve(model, tokenizer, prompts, precision=AUTOCAST[precision]):
                drawn = prompts[answer.number]
                yield TrialRecord(
                    arm=arm,
                    task=task,
                    length=length,
                    seed=seed,
                    trial=trials[answer.number],
                    depth=drawn.depth,
                    prompt_tokens=len(drawn.ids),
                    hit=answer.hit,
                    answer=answer.text,
                    precision=precision,
                    seconds=round(answer.seconds, 3),
                    key=weights[:16],
                )
                on_progress(length)

    return Measurement((TrialRecord.kind, arm, length), len(trials) * length, run, len(trials))


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
                for record in measurement.run(model, advance):
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
        raise not_finite(label)


def not_finite(label: str) -> EvaluationError:
    """The error of a measurement that came to no number."""
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


def precision_of(requested: str) -> str:
    """Of a measurement here: as asked for, or what the device is fast in.

    Raises:
        RecipeError: it is unknown, or cannot be had on this device.
    """
    valid = ("auto", *AUTOCAST)
    if requested not in valid:
        raise RecipeError(
            f"precision {requested!r} is unknown{nearest(requested, valid)}; choose one of {', '.join(valid)}"
        )
    return choose_precision(requested, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def loaded(name: str, precision: str) -> PreTrainedModel:
    """The model, ready to be measured: on a GPU held in the precision it computes in, else in float32 under autocast.

    Raises:
        ModelError: it cannot be loaded, or what it answers depends on what it read before.
    """
    rope = getattr(load_config(name).get_text_config(), "rope_parameters", None) or {}
    if rope.get("rope_type") == "dynamic":
        raise ModelError(
            f"model {name!r} has rope_type dynamic, whose frequencies are those of the longest text read so far: what it "
            "answers depends on the order of questions. Write another into its config (rope_parameters), as yarn"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = AUTOCAST[precision] if device.type == "cuda" else None
    return load_model(name, dtype=dtype or torch.float32, device=device).eval()
