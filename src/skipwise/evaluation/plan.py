"""Plan what is measured of one model: specification and texts -> batches of requests.

A request is a record with empty result fields. A batch holds requests that are answered together: documents under one window, or
prompts of one task and length.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from skipwise.data.ruler import RulerData, read_ruler_data, ruler_prompt
from skipwise.data.store import TokenStore, check_vocabulary
from skipwise.data.tokenising import tokenise
from skipwise.errors import TooShortError
from skipwise.evaluation.perplexity import fed_tokens, sliding_scores
from skipwise.evaluation.retrieval import Answer, Question, answers, ask_number, ask_ruler, draw_prompt
from skipwise.evaluation.specification import RULER, EvaluatedModel, Specification, is_ruler
from skipwise.evaluation.texts import (
    EvaluationText,
    Segment,
    fair_documents,
    filled_windows,
    longest_documents,
    spread_segments,
)
from skipwise.evaluation.windows import position_buckets
from skipwise.model.config import Origin, load_config
from skipwise.model.loading import load_tokenizer
from skipwise.results.files import short_digest
from skipwise.results.records import ReadingRecord, RulerRecord, TrialRecord

if TYPE_CHECKING:
    from skipwise.evaluation.server import Server

_PREFIXES = 16  # lengths of the curve of perplexity over the first tokens
_LONG_ENOUGH = 2**14  # tokens; every task has a prompt this short

OnProgress = Callable[[int], None]
Request = TrialRecord | RulerRecord
Drawn = TypeVar("Drawn")


@dataclass(frozen=True)
class Readings:
    """Requests to read documents or segments under one window and stride."""

    requests: Sequence[ReadingRecord]
    documents: Sequence[np.ndarray]  # the tokens of each request, int [tokens]

    @property
    def tokens(self) -> int:
        """Tokens that are fed to the model."""
        return fed_tokens(self.documents, self.length, self.requests[0].stride)

    @property
    def length(self) -> int:
        """Tokens of each window."""
        return self.requests[0].window

    def only(self, keys: Collection[str]) -> "Readings":
        """Return the requests with these keys."""
        kept = [i for i, request in enumerate(self.requests) if request.key in keys]
        return replace(self, requests=[self.requests[i] for i in kept], documents=[self.documents[i] for i in kept])

    def answers(self, model: PreTrainedModel, on_progress: OnProgress | None = None) -> Iterator[ReadingRecord]:
        """Read each document and yield its record."""
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
    ask: Callable[[Any], tuple[Question, dict[str, Any]]]
    tokenizer: PreTrainedTokenizerBase

    @property
    def tokens(self) -> int:
        """Tokens of the prompts, at most."""
        return len(self.requests) * self.length

    @property
    def length(self) -> int:
        """Tokens of each prompt and its answer."""
        return self.requests[0].length

    def only(self, keys: Collection[str]) -> "Prompts":
        """Return the requests with these keys."""
        return replace(self, requests=[request for request in self.requests if request.key in keys])

    def answers(self, model: PreTrainedModel, on_progress: OnProgress | None = None) -> Iterator[Request]:
        """Answer each prompt and yield its record."""
        read = partial(answers, model, self.tokenizer, precision=self.requests[0].precision)
        return self._records(read, on_progress)

    def served(self, server: "Server", on_progress: OnProgress | None = None) -> Iterator[Request]:
        """Answer each prompt by a server and yield its record."""
        return self._records(partial(server.answers, self.tokenizer), on_progress)

    def _records(
        self, read: Callable[[Sequence[Question]], Iterator[Answer]], on_progress: OnProgress | None
    ) -> Iterator[Request]:
        questions = [self.ask(request) for request in self.requests]
        for answer in read([question for question, _ in questions]):
            request, about = self.requests[answer.number], questions[answer.number][1]
            score = {"hit": answer.hit} if isinstance(request, TrialRecord) else {"score": answer.score}
            yield replace(request, **about, **score, answer=answer.text, seconds=round(answer.seconds, 3))
            if on_progress:
                on_progress(request.length)


Batch = Readings | Prompts


def plan_model(
    specification: Specification,
    model: EvaluatedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[EvaluationText],
    console: Console,
    *,
    more: Collection[int] = (),
    other: Iterable[EvaluationText] = (),
) -> list[Batch]:
    """Plan what one model reads and answers.

    ``more`` are windows beyond the texts' own. A base reads in these alone, and answers passkeys at the longest length inside
    its window, and RULER at every length inside. ``other`` are texts of other kinds.
    """
    batches: list[Batch] = []
    for text in texts:
        windows = set() if model.control else set(text.windows)
        windows |= {min(window, text.windows[-1]) for window in more}
        batches += plan_readings(specification, model, [text], sorted(windows))
    batches += plan_readings(specification, model, other)
    parts = [specification]
    if model.control:
        inside = sorted(length for length in specification.prompt_lengths if length <= model.original)
        passkey = [task for task in specification.tasks if task == "passkey"]
        ruler = list(filter(is_ruler, specification.tasks))
        parts = [
            specification.model_copy(update={"tasks": tasks, "prompt_lengths": lengths, "server": None})
            for tasks, lengths in ((passkey, inside[-1:]), (ruler, inside))
        ]
    for part in parts:
        if part.tasks and part.prompt_lengths:
            batches += plan_prompts(part, model, tokenizer, console)
    return batches


def read_texts(
    specification: Specification,
    name: str,
    origins: Sequence[Origin],
    console: Console,
    stores: dict[str, TokenStore] | None = None,
) -> list[EvaluationText]:
    """Tokenise the texts for model ``name``, and choose the documents that are read of each.

    ``origins`` have the documents that models were trained on; these are not read. ``stores`` are token stores by source;
    new ones are added.
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
    """Plan to read every text at ``windows``, by default at all that it fills, and its segments."""
    for text in texts:
        how = ReadingRecord(model.label, text.source, "", "sliding", 0, 1, 1, [], specification.precision, digest="")
        for window in windows or text.windows:
            sliding = replace(how, window=window, stride=specification.stride_of(window))
            for tokens, documents in groupby(text.documents, key=lambda one: len(one.tokens)):
                edges = bucket_edges(tokens, text.windows, specification.original)
                yield _readings(replace(sliding, edges=edges), model, list(documents))
        for length, segments in text.segments.items():
            if segments:
                edges = position_buckets(length, specification.original)
                segment = replace(how, mode="segment", window=length, stride=length, edges=edges)
                yield _readings(segment, model, segments)


def _readings(how: ReadingRecord, model: EvaluatedModel, segments: Sequence[Segment]) -> Readings:
    def digest(segment: Segment) -> str:
        """Return 16 hex digits of the model's weights and the tokens."""
        return short_digest(model.digest.encode() + np.asarray(segment.tokens, dtype=np.int64).tobytes())

    requests = [replace(how, document=one.document, begin=one.begin, digest=digest(one)) for one in segments]
    return Readings(requests, [one.tokens for one in segments])


def bucket_edges(tokens: int, windows: Sequence[int], original: int) -> list[int]:
    """Return the bucket edges of a document: positions doubling from original / 4, windows, and 16ths of the longest."""
    parts = {windows[-1] * k // _PREFIXES for k in range(1, _PREFIXES + 1)}
    inner = {*position_buckets(tokens, original), *windows, *parts}
    return sorted({1, tokens} | {edge for edge in inner if 1 < edge < tokens})


def plan_prompts(
    specification: Specification,
    model: EvaluatedModel,
    tokenizer: PreTrainedTokenizerBase,
    console: Console,
    *,
    required: bool = False,
) -> Iterator[Prompts]:
    """Plan the prompts of every task at every length; print which lengths are too short.

    Raises:
        TooShortError: prompts are ``required``, and no length is long enough.
    """
    data = read_ruler_data(specification.ruler_data) if any(map(is_ruler, specification.tasks)) else None
    planned, short = [], dict[int, list[str]]()
    for task in specification.tasks:
        for length in specification.prompt_lengths:
            try:
                planned.append(_first_request(specification, model, tokenizer, task, length, data))
            except TooShortError as error:
                short.setdefault(length, []).append(f"{task} (from {error.shortest:,} tokens)")
    too_short = "; ".join(
        f"{length:,} tokens are too few for {', '.join(tasks)}" for length, tasks in sorted(short.items())
    )
    if too_short and required and not planned:
        raise TooShortError(f"{too_short}; give longer prompts (--lengths, evaluation.prompt_lengths), or other tasks")
    if too_short:
        console.print(f"{model.label}: {too_short}; left out", style="yellow", soft_wrap=True)
    for first, ask in planned:
        requests = [replace(first, trial=trial) for trial in range(specification.num_prompts)]
        yield Prompts(requests, ask, tokenizer)


def _first_request(
    specification: Specification,
    model: EvaluatedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: str,
    length: int,
    data: RulerData | None,
) -> tuple[Request, Callable[[Any], tuple[Question, dict[str, Any]]]]:
    """Return the request for the first prompt of a task, and the function that makes a prompt of a request.

    Raises:
        TooShortError: the task has no prompt of so few tokens.
    """
    how, precision = specification, specification.prompt_precision
    if not is_ruler(task):
        _require_room(
            lambda n, trial: draw_prompt(task, tokenizer, n, how.seed, trial, how.depths), length, how.num_prompts
        )
        request = TrialRecord(model.label, task, length, how.seed, 0, how.depths, precision, model.digest)
        return request, partial(ask_number, tokenizer)
    assert data is not None
    name = task.removeprefix(RULER)
    prompt = _require_room(
        lambda n, trial: ruler_prompt(tokenizer, name, length=n, trial=trial, seed=how.seed, data=data),
        length,
        how.num_prompts,
        alike=not name.startswith("qa_"),  # the documents of questions differ in length
    )
    digest = short_digest(f"{model.digest} {data.fingerprint}".encode())
    ruler_request = RulerRecord(model.label, name, length, how.seed, 0, prompt.real_data, precision, digest)
    return ruler_request, partial(ask_ruler, tokenizer, data)


def _require_room(drawn: Callable[[int, int], Drawn], length: int, trials: int, *, alike: bool = True) -> Drawn:
    """Return the first prompt; require every trial to have one, because training may come first.

    ``drawn`` makes the prompt of a length and a trial. One prompt with an eighth of the length to spare represents all trials
    that are ``alike``: they differ by a few tokens.
    """
    tokens = min(length, _LONG_ENOUGH)
    first = drawn(tokens, 0)
    try:
        if tokens < _LONG_ENOUGH:
            drawn(tokens * 7 // 8, 0)
    except TooShortError:
        alike = False
    for trial in range(1, 1 if alike else trials):
        drawn(tokens, trial)
    return first
