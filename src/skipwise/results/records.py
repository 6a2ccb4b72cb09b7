"""Records: everything that is measured, as types.

There is one kind of record for a document that was read and one for a prompt that was answered. Sums, means and
intervals are computed from them (``skipwise.results.statistics``) and never stored.
"""

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, Strict

from skipwise.results.files import content_hash

OTHER_TEXT = "skipwise:other"  # ``data`` of a reading of the text that ships with the package; the document is its kind

Natural = Annotated[int, Field(ge=0, lt=2**63), Strict()]
Count = Annotated[int, Field(ge=1, lt=2**63), Strict()]
Real = Annotated[float, Strict()]
Amount = Annotated[float, Field(ge=0), Strict()]
Share = Annotated[float, Field(ge=0, le=1), Strict()]
Flag = Annotated[bool, Strict()]
Rights = Annotated[str, Field(pattern="^[01]*$"), Strict()]


class Measured:
    """A record with an answer: what was measured, and what came out.

    ``ANSWER`` names the fields that came out. All others say what was measured, and together they make the key: a
    request is a record whose answer is still empty, and has the same key as the record that answers it.
    """

    ANSWER: ClassVar[tuple[str, ...]] = ()
    kind: ClassVar[str]

    @cached_property
    def key(self) -> str:
        """16 hex digits of what the record measures, whatever came out."""
        about = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.ANSWER}  # type: ignore[arg-type]
        return content_hash([self.kind, about])


@dataclass(frozen=True)
class TrainingRecord:
    """One logged training step: the mean of what is minimised since the last log, in nats, and the speed."""

    kind: ClassVar[str] = "training"
    arm: str
    step: Natural
    loss: Real
    learning_rate: Real
    grad_norm: Real | None
    tokens: Natural
    tokens_per_second: Real


@dataclass(frozen=True)
class ReadingRecord(Measured):
    """How well one model predicts one document, or the segment of it that begins at ``begin``.

    Attributes:
        arm: label of the model.
        data: name of the text.
        document: name of the document.
        mode: ``sliding`` windows over the document, or one ``segment`` read from its beginning.
        begin: index in the document of the first token that is read.
        window: tokens fed at once.
        stride: tokens by which windows advance.
        edges: bucket i holds the targets at positions ``edges[i] .. edges[i + 1] - 1``, counted from ``begin``.
        precision: of the forward pass.
        digest: 16 hex digits of the model's weights and the document's tokens.
        step: training steps after which the model was measured; None for a finished model.
        nll: negative log-likelihood in nats, summed over each bucket.
        hits: targets to which the model gives the highest probability, counted in each bucket.
        seconds: of wall time.
    """

    kind: ClassVar[str] = "reading"
    ANSWER: ClassVar[tuple[str, ...]] = ("nll", "hits", "seconds")
    arm: str
    data: str
    document: str
    mode: Literal["sliding", "segment"]
    begin: Natural
    window: Count
    stride: Count
    edges: list[Count]
    precision: str
    digest: str
    step: Natural | None = None
    nll: list[Amount] = field(default_factory=list)
    hits: list[Natural] = field(default_factory=list)
    seconds: Amount = 0.0

    @property
    def tokens(self) -> int:
        """How many targets are scored."""
        return self.edges[-1] - self.edges[0]

    def problem(self) -> str:
        """What contradicts itself in the record; empty if nothing does."""
        rising = all(low < high for low, high in zip(self.edges, self.edges[1:], strict=False))
        if len(self.edges) < 2 or not rising:
            return f"edges {self.edges} must be two or more and rise"
        if not len(self.nll) == len(self.hits) == len(self.edges) - 1:
            return f"nll and hits must have {len(self.edges) - 1} buckets, not {len(self.nll)} and {len(self.hits)}"
        return ""


@dataclass(frozen=True)
class TrialRecord(Measured):
    """One answered prompt of a retrieval task.

    Attributes:
        arm: label of the model.
        task: a name of ``skipwise.data.retrieval_prompts.TASKS``.
        length: tokens of prompt and answer together, at the most.
        seed: of the prompts.
        trial: number of the prompt.
        depths: how the hidden place is drawn: ``random``, or ``spread`` over the tenths of the prompt.
        precision: of the forward pass.
        digest: 16 hex digits of the model's weights.
        depth: where the number was hidden, from 0 (it stands first) to 1.
        prompt_tokens: length of the prompt in the model's own tokens.
        hit: whether the whole number was right.
        answer: what the model wrote.
        seconds: of wall time.
    """

    kind: ClassVar[str] = "trial"
    ANSWER: ClassVar[tuple[str, ...]] = ("depth", "prompt_tokens", "hit", "answer", "seconds")
    arm: str
    task: str
    length: Count
    seed: Natural
    trial: Natural
    depths: Literal["random", "spread"]
    precision: str
    digest: str
    depth: Share = 0.0
    prompt_tokens: Natural = 0
    hit: Flag = False
    answer: str = ""
    seconds: Amount = 0.0


@dataclass(frozen=True)
class RulerRecord(Measured):
    """One answered prompt of RULER (``skipwise.data.ruler``).

    Attributes:
        arm: label of the model.
        task: a name of ``skipwise.data.ruler.TASKS``, perhaps with settings: ``vt:hops=2``.
        length: tokens of the prompt and the tokens that the model may write, together, at the most.
        seed: of the prompts.
        trial: number of the prompt.
        real_data: False if a text stood in for RULER's essays.
        precision: of the forward pass.
        digest: 16 hex digits of the model's weights and RULER's texts.
        prompt_tokens: length of the prompt in the model's own tokens.
        depth: share of the haystack before the needle that was asked for; None if there is no single one.
        score: share of the answers that were written, or 1 where any of them was enough.
        answer: what the model wrote, up to where its score was full.
        seconds: of wall time.
    """

    kind: ClassVar[str] = "ruler"
    ANSWER: ClassVar[tuple[str, ...]] = ("prompt_tokens", "depth", "score", "answer", "seconds")
    arm: str
    task: str
    length: Count
    seed: Natural
    trial: Natural
    real_data: Flag
    precision: str
    digest: str
    prompt_tokens: Natural = 0
    depth: Share | None = None
    score: Share = 0.0
    answer: str = ""
    seconds: Amount = 0.0


@dataclass(frozen=True)
class CoverageRecord:
    """The probability that one example trains each relative distance ``distances[i]``.

    ``standard_error`` is all zeros where the probability is in closed form.
    """

    kind: ClassVar[str] = "coverage"
    label: str
    train_length: Count
    target_length: Count
    distances: list[Count]
    probability: list[Share]
    standard_error: list[Amount]

    @classmethod
    def of(cls, curve: Any, label: str, points: int = 1024) -> "CoverageRecord":
        """Make the record of a ``skipwise.method.coverage.Coverage``.

        At most about ``points`` distances are kept: evenly spread ones, and the two beside each bend of the two-chunk
        curve, at the train length and at the target less the train length.
        """
        last = len(curve.distances)
        bends = np.array([curve.train_length, last + 2 - curve.train_length])
        even = np.linspace(1, last, min(points, last)).astype(np.int64)
        distances = np.unique(np.concatenate([even, bends - 1, bends]))
        kept = distances[(distances >= 1) & (distances <= last)] - 1
        columns = (curve.distances, curve.probability, curve.standard_error)
        return cls(label, curve.train_length, curve.target_length, *(column[kept].tolist() for column in columns))

    def problem(self) -> str:
        """What contradicts itself in the record; empty if nothing does."""
        lengths = {len(self.distances), len(self.probability), len(self.standard_error)}
        return "" if len(lengths) == 1 and 0 not in lengths else f"its lists have {sorted(lengths)} items"


@dataclass(frozen=True)
class BenchmarkRecord(Measured):
    """What lm-evaluation-harness gives for one metric of one task.

    Attributes:
        arm: label of the model.
        task: name of the task.
        metric: name of the metric.
        fewshot: examples before each question.
        target: tokens that a request could fill.
        limit: questions asked for; None for all.
        precision: of the forward pass.
        harness: version of lm-evaluation-harness.
        digest: 16 hex digits of the model's weights.
        samples: questions that there were.
        value: of the metric.
        standard_error: None where the harness has none.
        seconds: of the whole task.
        scores: of each question in order, where ``value`` is their mean: a digit each if all are 0 or 1, and numbers
            otherwise. Empty where the metric is no mean, and in records of version 0.2 and earlier.
        questions: 16 hex digits of the task's version, and of the questions with their prompts and right answers.
        metrics: how many the task has, each in a record of its own; 0 in records of version 0.2 and earlier.
    """

    kind: ClassVar[str] = "benchmark"
    ANSWER: ClassVar[tuple[str, ...]] = (
        *("samples", "value", "standard_error", "seconds", "scores", "questions", "metrics"),
    )
    arm: str
    task: str
    metric: str
    fewshot: Natural
    target: Count
    limit: Count | None
    precision: str
    harness: str
    digest: str = ""
    samples: Natural = 0
    value: Real = 0.0
    standard_error: Amount | None = None
    seconds: Amount = 0.0
    scores: Rights | list[Real] = ""
    questions: str = ""
    metrics: Natural = 0

    def problem(self) -> str:
        """What contradicts itself in the record; empty if nothing does."""
        wrong = len(self.scores) not in (0, self.samples)
        return f"it has {len(self.scores)} scores of {self.samples} questions" if wrong else ""


@dataclass(frozen=True)
class CostRecord:
    """What training costs: the seconds of each timed step, and the peak memory of a process that takes such steps.

    A step is ``examples`` windows of ``window`` tokens, one in memory at a time. ``base_bytes`` is what the process
    held before its first step, weights included; on a GPU both count its memory alone. ``key`` stands for the model's
    shape and for what else of the recipe decides the cost.
    """

    kind: ClassVar[str] = "cost"
    arm: str
    target: Count
    window: Count
    examples: Count
    step_seconds: list[Amount]
    peak_bytes: Natural
    base_bytes: Natural
    device: str
    key: str = ""


Record = TrainingRecord | ReadingRecord | TrialRecord | RulerRecord | CoverageRecord | BenchmarkRecord | CostRecord
