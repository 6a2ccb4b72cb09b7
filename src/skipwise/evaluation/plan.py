"""Plan what is measured: models, specification and texts -> batches of requests.

A request is a record with empty result fields. A batch holds requests that are answered together: documents under one window, or
prompts of one task and length.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import cycle, groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from skipwise.data.ruler import RulerData, read_ruler_data, ruler_prompt
from skipwise.errors import DataError, RecipeError, TooShortError, pip_install
from skipwise.evaluation.perplexity import fed_tokens, sliding_scores
from skipwise.evaluation.retrieval import answers, ask, draw_prompt
from skipwise.evaluation.specification import (
    RULER,
    EvaluatedModel,
    EvaluationText,
    Segment,
    Specification,
    assumed_length,
    is_ruler,
    longest_segment,
    other_text,
    read_texts,
)
from skipwise.evaluation.windows import position_buckets
from skipwise.model.config import read_origin
from skipwise.model.loading import load_tokenizer
from skipwise.results.files import short_digest
from skipwise.results.records import ReadingRecord, RulerRecord, TrialRecord

if TYPE_CHECKING:
    from skipwise.evaluation.server import Server

_PREFIXES = 16  # lengths of the curve of perplexity over the first tokens
_LONG_ENOUGH = 2**14  # tokens; every task has a prompt this short
QUIET = Console(quiet=True)

OnProgress = Callable[[int], None]
Request = TrialRecord | RulerRecord


@dataclass(frozen=True)
class Workload:
    """The tokens that one kind of measurement reads at one length."""

    what: str
    length: int  # tokens
    tokens: int  # in all
    scored: bool = True  # whether every token has logits; prompts have a KV cache instead

    def __str__(self) -> str:
        return f"{self.what} of {self.length:,} tokens"


@dataclass(frozen=True)
class Readings:
    """Requests to read documents or segments under one window and stride."""

    requests: Sequence[ReadingRecord]
    documents: Sequence[np.ndarray]  # the tokens of each request, int [tokens]

    @property
    def workload(self) -> Workload:
        window = self.requests[0].window
        return Workload("windows", window, fed_tokens(self.documents, window, self.requests[0].stride))

    def only(self, keys: Collection[str]) -> "Readings":
        kept = [i for i, request in enumerate(self.requests) if request.key in keys]
        return replace(self, requests=[self.requests[i] for i in kept], documents=[self.documents[i] for i in kept])

    def answers(self, model: PreTrainedModel, on_progress: OnProgress | None = None) -> Iterator[ReadingRecord]:
        how = self.requests[0]
        scores = sliding_scores(
            model,
            self.documents,
            window=how.window,
            stride=how.stride,
            precision=how.precision,
            on_progress=on_progress,
        )
        for request, score in zip(self.requests, scores, strict=True):
            nll, hits = score.buckets(request.edges)
            yield replace(request, nll=nll.round(4).tolist(), hits=hits.tolist(), seconds=round(score.seconds, 3))


@dataclass(frozen=True)
class Prompts:
    """Requests to answer prompts of one task and length."""

    requests: Sequence[Request]
    tokenizer: PreTrainedTokenizerBase
    data: RulerData | None  # of RULER's tasks

    @property
    def workload(self) -> Workload:
        first = self.requests[0]
        return Workload(f"{first.task} prompts", first.length, len(self.requests) * first.length, scored=False)

    def only(self, keys: Collection[str]) -> "Prompts":
        return replace(self, requests=[request for request in self.requests if request.key in keys])

    def answers(self, model: "PreTrainedModel | Server", on_progress: OnProgress | None = None) -> Iterator[Request]:
        """Answer each prompt by a model, or by a server, and yield its record."""
        questions, about = zip(*(ask(self.tokenizer, request, self.data) for request in self.requests), strict=True)
        if isinstance(model, torch.nn.Module):
            made = answers(model, self.tokenizer, questions, precision=self.requests[0].precision)
        else:
            made = model.answers(self.tokenizer, questions)
        for answer in made:
            request = self.requests[answer.number]
            score = {"hit": answer.hit} if isinstance(request, TrialRecord) else {"score": answer.score}
            yield replace(
                request, **about[answer.number], **score, answer=answer.text, seconds=round(answer.seconds, 3)
            )
            if on_progress:
                on_progress(request.length)


Batch = Readings | Prompts


@dataclass(frozen=True)
class Subject:
    """A model and what it reads."""

    model: EvaluatedModel
    tokenizer: PreTrainedTokenizerBase
    texts: list[EvaluationText]
    windows: set[int] = field(default_factory=set)  # beyond the texts' own; a base reads in these alone
    other: list[EvaluationText] = field(default_factory=list)  # of other kinds
    batches: list[Batch] = field(default_factory=list)  # that are planned


@dataclass(frozen=True)
class Plan:
    """The requests of each model."""

    specification: Specification
    subjects: list[Subject]

    @property
    def requests(self) -> list[Request | ReadingRecord]:
        return [request for subject in self.subjects for batch in subject.batches for request in batch.requests]

    @property
    def fingerprints(self) -> dict[str, str]:
        prints = {
            f"text {text.source} for {subject.model.label}": text.digest
            for subject in self.subjects
            for text in subject.texts
        }
        if any(map(is_ruler, self.specification.tasks)):
            prints["text of RULER"] = read_ruler_data(self.specification.ruler_data).fingerprint
        return prints

    def only(self, shard: tuple[int, int]) -> "Plan":
        """Return part i of n of each model's requests."""
        parts = [replace(subject, batches=missing(subject.batches, (), shard)) for subject in self.subjects]
        return replace(self, subjects=parts)


def missing(batches: Iterable[Batch], known: Collection[str], shard: tuple[int, int] = (1, 1)) -> list[Batch]:
    """Keep the requests without a record that belong to ``shard``, part i of n."""
    part, parts = shard
    turn, rest = cycle(range(1, parts + 1)), []  # over all batches: many hold a single request
    for batch in batches:
        ours = {request.key for request in batch.requests if next(turn) == part}
        rest.append(batch.only(ours.difference(known)))
    return [batch for batch in rest if batch.requests]


def plan_subjects(specification: Specification, subjects: list[Subject], console: Console) -> Plan:
    """Plan what every subject reads and answers; print what that cannot show."""
    planned, short = [], dict[str, None]()
    if specification.load_in_4bit and find_spec("bitsandbytes") is None:
        raise RecipeError(
            f"evaluation.load_in_4bit needs the package bitsandbytes: {pip_install('qlora')}. Or leave it out"
        )
    for subject in subjects:
        subject = replace(subject, model=replace(subject.model, four_bits=specification.load_in_4bit))
        batches, text = plan_model(specification, subject)
        planned.append(replace(subject, batches=batches))
        short[text] = None
    targets = {subject.model.target for subject in subjects if not subject.model.control}
    warnings = [f"{text}; left out" for text in short if text]
    for warning in [*warnings, *specification.warnings(targets, subjects[0].texts)]:
        console.print(warning, style="yellow", soft_wrap=True)
    return Plan(specification, planned)


def plan_models(models: Sequence[EvaluatedModel], specification: Specification, console: Console) -> Plan:
    """Plan what is measured of every model and base of ``skipwise evaluate``."""
    for model in models:
        if model.control:
            console.print(f"base: {model.name} is measured too (--base none leaves it out)", soft_wrap=True)
        if warning := assumed_length(model):
            console.print(warning, style="yellow", soft_wrap=True)
    origins = [origin for model in models if (origin := read_origin(model.name))]
    subjects = dict[str, Subject]()  # by label
    for model in models:
        shown = console if model is models[0] else QUIET
        tokenizer, other = load_tokenizer(model.name), []
        windows = {each.original for each in models if each.base == model.label}
        if specification.documents and specification.other_texts:  # a base reads other text as its models do
            inside = windows | (set() if model.control else {model.original})
            lengths = sorted({longest_segment(window) for window in inside})
            other = [other_text(tokenizer, length, origins, shown) for length in lengths]
        texts = read_texts(specification, tokenizer, origins, shown)
        subjects[model.label] = Subject(model, tokenizer, texts, windows | {model.original}, other)
    digests = {label: [text.digest for text in subject.texts] for label, subject in subjects.items()}
    for model in models:
        if model.base and digests[model.label] != digests[model.base]:
            raise DataError(
                f"{model.label} and {model.base} tokenise the text differently, so losses do not compare; give the model's own "
                "base, or --base none"
            )
        if not model.control and digests[model.label] != digests[models[0].label]:
            console.print(
                f"{model.label} reads other tokens than {models[0].label}: perplexities do not compare", style="yellow"
            )
    if specification.tasks:
        console.print(specification.power, soft_wrap=True)
    return plan_subjects(specification, [*subjects.values()], console)


def plan_model(specification: Specification, subject: Subject) -> tuple[list[Batch], str]:
    """Plan what one model reads and answers; also return which lengths are too short for prompts.

    A base answers passkeys at the longest length inside its window, and RULER at every length inside.
    """
    model, batches = subject.model, list[Batch]()
    for text in subject.texts:
        windows = set() if model.control else set(text.windows)
        windows |= {min(window, text.windows[-1]) for window in subject.windows}
        batches += plan_readings(specification, model, [text], sorted(windows))
    batches += plan_readings(specification, model, subject.other)
    if not model.control:
        prompts, short = plan_prompts(specification, model, subject.tokenizer)
        return batches + prompts, short
    inside = sorted(length for length in specification.prompt_lengths if length <= model.original)
    passkey = [task for task in specification.tasks if task == "passkey"]
    for tasks, lengths in ((passkey, inside[-1:]), (list(filter(is_ruler, specification.tasks)), inside)):
        part = specification.model_copy(update={"tasks": tasks, "prompt_lengths": lengths, "server": None})
        batches += plan_prompts(part, model, subject.tokenizer)[0]
    return batches, ""


def plan_readings(
    specification: Specification, model: EvaluatedModel, texts: Iterable[EvaluationText], windows: Sequence[int] = ()
) -> Iterator[Readings]:
    """Plan to read every text in ``windows`` (default: its own) and segments."""
    weights = model.digest.encode()

    def readings(how: ReadingRecord, segments: Sequence[Segment]) -> Readings:
        digests = [short_digest(weights + segment.bytes) for segment in segments]
        parts = zip(segments, digests, strict=True)
        requests = [replace(how, document=s.document, begin=s.begin, digest=digest) for s, digest in parts]
        return Readings(requests, [segment.tokens for segment in segments])

    for text in texts:
        how = ReadingRecord(model.label, text.source, "", "sliding", 0, 1, 1, [], specification.precision, digest="")
        for window in windows or text.windows:
            sliding = replace(how, window=window, stride=specification.stride_of(window))
            for tokens, documents in groupby(text.documents, key=lambda segment: len(segment.tokens)):
                edges = bucket_edges(tokens, text.windows, specification.original)
                yield readings(replace(sliding, edges=edges), list(documents))
        for length, segments in text.segments.items():
            if segments:
                edges = position_buckets(length, specification.original)
                segment = replace(how, mode="segment", window=length, stride=length, edges=edges)
                yield readings(segment, segments)


def bucket_edges(tokens: int, windows: Sequence[int], original: int) -> list[int]:
    """Return bucket edges: doubled from original / 4, windows, 16ths of the longest."""
    parts = {windows[-1] * k // _PREFIXES for k in range(1, _PREFIXES + 1)}
    inner = {*position_buckets(tokens, original), *windows, *parts}
    return sorted({1, tokens} | {edge for edge in inner if 1 < edge < tokens})


def plan_prompts(
    specification: Specification, model: EvaluatedModel, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[Prompts], str]:
    """Plan the prompts of every task at every length; also return which lengths are too short."""
    data = read_ruler_data(specification.ruler_data) if any(map(is_ruler, specification.tasks)) else None
    planned, short = [], dict[int, list[str]]()
    for task in specification.tasks:
        for length in specification.prompt_lengths:
            try:
                first = _first_request(specification, model, tokenizer, task, length, data)
            except TooShortError as error:
                short.setdefault(length, []).append(f"{task} (from {error.shortest:,} tokens)")
                continue
            requests = [replace(first, trial=trial) for trial in range(specification.num_prompts)]
            planned.append(Prompts(requests, tokenizer, data))
    return planned, "; ".join(
        f"{length:,} tokens are too few for {', '.join(tasks)}" for length, tasks in sorted(short.items())
    )


def _first_request(
    how: Specification,
    model: EvaluatedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: str,
    length: int,
    data: RulerData | None,
) -> Request:
    """Return the request for the first prompt of a task; require every trial to have a prompt.

    One prompt with an eighth of the length to spare represents all trials, which differ by a few tokens. RULER's questions
    have documents of any length, so each is drawn.

    Raises:
        TooShortError: the task has no prompt of so few tokens.
    """
    name, tokens = task.removeprefix(RULER), min(length, _LONG_ENOUGH)

    def draw(tokens: int, trial: int) -> Any:
        if not is_ruler(task):
            return draw_prompt(task, tokenizer, tokens, how.seed, trial, how.depths)
        assert data is not None
        return ruler_prompt(tokenizer, name, tokens, how.seed, trial, data)

    first, alike = draw(tokens, 0), not name.startswith("qa_")
    try:
        if tokens < _LONG_ENOUGH:
            draw(tokens * 7 // 8, 0)
    except TooShortError:
        alike = False
    for trial in range(1, 1 if alike else how.num_prompts):
        draw(tokens, trial)
    precision = how.precision if how.server is None else f"chosen by {how.server}"  # it does not state its own
    if data is None or not is_ruler(task):
        return TrialRecord(model.label, task, length, how.seed, 0, how.depths, precision, model.digest)
    digest = short_digest(f"{model.digest} {data.fingerprint}".encode())
    return RulerRecord(model.label, name, length, how.seed, 0, first.real_data, precision, digest)
