"""Records of measurements and ``results.jsonl``, which has one record per line.

A record is a document read, a prompt answered or a step trained. Sums, means and intervals are computed from records
(``skipwise.results.statistics``) and never stored. An appended record is flushed: a killed run keeps its measurements.
"""

import json
import os
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from skipwise.errors import RunError, reason
from skipwise.results.files import content_hash

OTHER_TEXT = "skipwise:other"  # ``data`` of a reading of the shipped texts; the document is the kind of text


class _Typed:
    """A record with type-checked fields when read from a file."""

    kind: ClassVar[str]
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True)


class Measured(_Typed):
    """A measurement: request fields and result fields (``ANSWER``).

    The key is a hash of the request fields. A request is a record with empty result fields; it has the key of its result.
    """

    ANSWER: ClassVar[tuple[str, ...]] = ()

    @cached_property
    def key(self) -> str:
        """16 hex digits of the request fields."""
        about = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.ANSWER}  # type: ignore[arg-type]
        return content_hash([self.kind, about])


@dataclass(frozen=True)
class TrainingRecord(_Typed):
    """A logged training step."""

    kind: ClassVar[str] = "training"
    arm: str
    step: int
    loss: float  # mean since the last log, nats
    learning_rate: float
    grad_norm: float | None
    tokens: int
    tokens_per_second: float


@dataclass(frozen=True)
class ReadingRecord(Measured):
    """The loss of a model on a document, or on its segment at ``begin``."""

    kind: ClassVar[str] = "reading"
    ANSWER: ClassVar[tuple[str, ...]] = ("nll", "hits", "seconds")
    arm: str  # label of the model
    data: str  # name of the text
    document: str
    mode: Literal["sliding", "segment"]  # windows over the document, or one segment
    begin: int  # index in the document of the first token read
    window: int  # tokens in one forward pass
    stride: int  # tokens
    edges: list[int]  # bucket i has the targets at positions edges[i] .. edges[i + 1] - 1, counted from ``begin``
    precision: str
    digest: str  # 16 hex digits of the weights and the document's tokens
    step: int | None = None  # training step; None for a finished model
    nll: list[float] = field(default_factory=list)  # negative log-likelihood summed over each bucket, nats
    hits: list[int] = field(default_factory=list)  # targets with the highest probability, per bucket
    seconds: float = 0.0

    @property
    def tokens(self) -> int:  # targets
        return self.edges[-1] - self.edges[0]


@dataclass(frozen=True)
class TrialRecord(Measured):
    """An answered prompt of a retrieval task (``skipwise.data.prompts.TASKS``)."""

    kind: ClassVar[str] = "trial"
    ANSWER: ClassVar[tuple[str, ...]] = ("depth", "prompt_tokens", "hit", "answer", "seconds")
    arm: str
    task: str
    length: int  # tokens of prompt and answer, at most
    seed: int
    trial: int  # number of the prompt
    depths: Literal["random", "spread"]  # spread: over the tenths of the prompt
    precision: str
    digest: str  # 16 hex digits of the weights
    depth: float = 0.0  # of the hidden number, from 0 (start) to 1
    prompt_tokens: int = 0
    hit: bool = False  # the whole number is right
    answer: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class RulerRecord(Measured):
    """An answered prompt of RULER (``skipwise.data.ruler``)."""

    kind: ClassVar[str] = "ruler"
    ANSWER: ClassVar[tuple[str, ...]] = ("prompt_tokens", "depth", "score", "answer", "seconds")
    arm: str
    task: str  # with its settings, e.g. ``vt:hops=2``
    length: int  # tokens of prompt and answer, at most
    seed: int
    trial: int
    real_data: bool  # False if another text replaces RULER's essays
    precision: str
    digest: str  # 16 hex digits of the weights and RULER's texts
    prompt_tokens: int = 0
    depth: float | None = None  # share of the haystack before the needle; None if there is no single needle
    score: float = 0.0  # share of the right answers, or 1 where one is enough
    answer: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class CoverageRecord(_Typed):
    """The probability that one example trains each relative distance ``distances[i]``."""

    kind: ClassVar[str] = "coverage"
    label: str
    train_length: int
    target_length: int
    distances: list[int]
    probability: list[float]
    standard_error: list[float]  # zeros if the probability is in closed form

    @classmethod
    def of(cls, curve: Any, label: str) -> "CoverageRecord":
        """Return the record of a ``skipwise.method.coverage.Coverage``.

        About 1,024 distances are kept: evenly spread ones, and the two at each bend of the two-chunk curve (train
        length, and target less train length).
        """
        last = len(curve.distances)
        bends = np.array([curve.train_length, last + 2 - curve.train_length])
        even = np.linspace(1, last, min(1024, last)).astype(np.int64)
        distances = np.unique(np.concatenate([even, bends - 1, bends]))
        kept = distances[(distances >= 1) & (distances <= last)] - 1
        columns = (curve.distances, curve.probability, curve.standard_error)
        return cls(label, curve.train_length, curve.target_length, *(column[kept].tolist() for column in columns))


@dataclass(frozen=True)
class BenchmarkRecord(Measured):
    """One metric of one task of lm-evaluation-harness."""

    kind: ClassVar[str] = "benchmark"
    ANSWER: ClassVar = ("samples", "value", "standard_error", "seconds", "scores", "questions", "metrics")
    arm: str
    task: str
    metric: str
    fewshot: int  # examples before each question
    target: int  # most tokens of a request
    limit: int | None  # questions; None for all
    precision: str
    harness: str  # its version
    digest: str = ""  # 16 hex digits of the weights
    samples: int = 0  # questions answered
    value: float = 0.0
    standard_error: float | None = None
    seconds: float = 0.0  # of the whole task
    # Of each question in order, if ``value`` is their mean: one digit each if all are 0 or 1.
    scores: str | list[float] = ""
    questions: str = ""  # 16 hex digits of the task's version, questions, prompts and right answers
    metrics: int = 0  # of the task, each in its own record


Record = TrainingRecord | ReadingRecord | TrialRecord | RulerRecord | CoverageRecord | BenchmarkRecord
_ADAPTERS: dict[str, TypeAdapter[Record]] = {kind.kind: TypeAdapter(kind) for kind in get_args(Record)}


def append_record(path: Path, *records: Any) -> None:
    """Append records to ``path`` together and flush them; cut off a torn line."""
    lines = []
    for record in records:
        key = {"key": record.key} if isinstance(record, Measured) else {}
        lines.append(json.dumps({"kind": record.kind, **key, **asdict(record)}) + "\n")
    with open(path, "ab+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        if file.read(1) not in (b"", b"\n"):  # a kill or a full disk left half a line
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        file.write("".join(lines).encode())
        file.flush()
        os.fsync(file.fileno())


def read_records(path: Path) -> list[Record]:
    """Read every record in order; a missing file and a torn line have none."""
    records = list[Record]()
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1] if path.exists() else [], 1):
        try:
            records.append(_ADAPTERS[json.loads(line)["kind"]].validate_json(line))
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path}, line {number}: not a result record ({reason(error)}); restore the file, or delete the line to measure it "
                "again"
            ) from error
    return records


class Results:
    """``results.jsonl`` of one folder: read once, and appended to by this process."""

    def __init__(self, path: Path) -> None:
        self.path, self.records = path, read_records(path)
        self.keys = {record.key for record in self.records if isinstance(record, Measured)}

    def append(self, *records: Record) -> None:
        if records:
            append_record(self.path, *records)
        self.records += records
        self.keys |= {record.key for record in records if isinstance(record, Measured)}
