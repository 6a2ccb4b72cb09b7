"""Requests that are answered together: documents to read under one window, and prompts of one task and length.

A request is a record whose answer is still empty. A batch answers its requests by a model, and yields the records.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from skipwise.data.ruler import ruler_task
from skipwise.evaluation.perplexity import fed_tokens, sliding_scores
from skipwise.evaluation.questions import AskedPrompt
from skipwise.evaluation.retrieval import Answer, Question, answers
from skipwise.evaluation.server import Server
from skipwise.results.records import ReadingRecord, RulerRecord, TrialRecord

OnProgress = Callable[[int], None]


@dataclass(frozen=True)
class Readings:
    """Requests to read documents or segments under one window and stride."""

    requests: Sequence[ReadingRecord]
    documents: Sequence[np.ndarray]  # the tokens for each request, int [tokens]

    @property
    def tokens(self) -> int:
        """How many tokens will be fed to the model."""
        return fed_tokens(self.documents, self.length, self.requests[0].stride)

    @property
    def length(self) -> int:
        """Tokens of each window."""
        return self.requests[0].window

    @property
    def data(self) -> str:
        """The name of the text."""
        return self.requests[0].data

    @property
    def slides(self) -> bool:
        """Whether windows slide over whole documents; else segments are read."""
        return self.requests[0].mode == "sliding"

    def only(self, keys: Collection[str]) -> "Readings":
        """The requests that have one of these keys."""
        kept = [i for i, request in enumerate(self.requests) if request.key in keys]
        return replace(self, requests=[self.requests[i] for i in kept], documents=[self.documents[i] for i in kept])

    def answers(self, model: PreTrainedModel, on_progress: OnProgress | None = None) -> Iterator[ReadingRecord]:
        """Read each document and yield its record as soon as it is read."""
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


Request = TrialRecord | RulerRecord


@dataclass(frozen=True)
class Prompts:
    """Requests to answer prompts of one task and length."""

    requests: Sequence[Request]
    ask: Callable[[Request], AskedPrompt]
    tokenizer: PreTrainedTokenizerBase

    @property
    def tokens(self) -> int:
        """How many tokens the prompts have, about."""
        return len(self.requests) * self.length

    @property
    def length(self) -> int:
        """Tokens of each prompt and its answer."""
        return self.requests[0].length

    @property
    def written(self) -> int:
        """How many ids the model writes at the most; an answer of one number is read with its prompt."""
        return sum(ruler_task(one.task)[0].answer_tokens for one in self.requests if isinstance(one, RulerRecord))

    def only(self, keys: Collection[str]) -> "Prompts":
        """The requests that have one of these keys."""
        return replace(self, requests=[request for request in self.requests if request.key in keys])

    def answers(self, model: PreTrainedModel, on_progress: OnProgress | None = None) -> Iterator[Request]:
        """Answer each prompt and yield its record."""
        how = self.requests[0]
        read = partial(answers, model, self.tokenizer, precision=how.precision)
        return self._records(read, on_progress)

    def served(self, server: Server, on_progress: OnProgress | None = None) -> Iterator[Request]:
        """Let a server answer each prompt, and yield its record."""
        return self._records(partial(server.answers, self.tokenizer), on_progress)

    def _records(
        self, read: Callable[[Sequence[Question]], Iterator[Answer]], on_progress: OnProgress | None
    ) -> Iterator[Request]:
        asked = [self.ask(one) for one in self.requests]
        for answer in read([one.question for one in asked]):
            request, told = self.requests[answer.number], asked[answer.number].told
            score = {"hit": answer.hit} if isinstance(request, TrialRecord) else {"score": answer.score}
            yield replace(request, **told, **score, answer=answer.text, seconds=round(answer.seconds, 3))
            if on_progress:
                on_progress(request.length)


Batch = Readings | Prompts
