"""Records: everything that is measured is one JSON object a line in ``results.jsonl``.

There is one kind of record for a document that was read and one for a prompt that was answered. Sums, means and
intervals are computed from them (``skipwise.results.statistics``) and never stored.

A record is appended whole and flushed, so that a killed run keeps what it had measured. A last line that was cut off
is dropped on reading, with a warning. What is read is validated against the types below, and a file that holds
something else is never changed.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
from pydantic import Field, Strict, TypeAdapter, ValidationError

from skipwise.errors import CutOffWarning, RunError
from skipwise.results import schema_1

SCHEMA = 2
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
        return hashlib.sha256(json.dumps([self.kind, about], sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class TrainingRecord:
    """One logged training step: the mean next-token loss in nats since the last log, and the speed."""

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
        depth: share of the haystack before the one needle that was asked for; None if it has not one place.
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
    """

    kind: ClassVar[str] = "benchmark"
    ANSWER: ClassVar[tuple[str, ...]] = ("samples", "value", "standard_error", "seconds", "scores", "questions")
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
_ADAPTERS: dict[str, TypeAdapter[Record]] = {kind.kind: TypeAdapter(kind) for kind in get_args(Record)}
_BEGINNING = f'{{"schema": {SCHEMA}, "kind": "'.encode()  # every record begins so


def append_record(path: Path, *records: Any) -> None:
    """Append a record, or several that belong together, to the JSON Lines file ``path``, and flush it to the disk."""
    drop_cut_off_record(path)
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(f"{json.dumps(_as_dict(record))}\n" for record in records))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _unusable(path, error) from None


def _as_dict(record: Any) -> dict[str, Any]:
    key = {"key": record.key} if isinstance(record, Measured) else {}
    values = {"schema": SCHEMA, "kind": record.kind, **key, **asdict(record)}
    return values | {"check": _check(values)}


def _check(values: dict[str, Any]) -> str:
    """8 hex digits of a line's content: a changed digit would still be a number."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def read_records(path: Path) -> list[Record]:
    """Read every record of ``path``, in order; a missing file gives no records.

    Records of skipwise 0.1 (schema 1) are read too. What they have only as a sum over documents becomes one record.
    """
    *lines, cut_off = _read(path).decode(errors="replace").split("\n")
    if cut_off:
        warnings.warn(f"{path}: the last line was cut off by a kill and is left out", CutOffWarning, stacklevel=2)
    return [record for number, line in enumerate(lines, 1) if line for record in _parse(path, number, line)]


def require_results(path: Path) -> None:
    """Require, before any work, that records can be appended to ``path``; make its folder if it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch()
            path.unlink()  # a measurement that fails leaves no empty file
        else:
            _require_records(path, _read(path).splitlines(keepends=True))
            open(path, "ab").close()
    except OSError as error:
        raise _unusable(path, error) from None


def drop_cut_off_record(path: Path) -> bool:
    """Cut off an unfinished last line, so that the next record starts a line of its own; say whether there was one.

    A file that does not end in a record of this schema is refused and left as it is.
    """
    data = _read(path)
    whole, lines = data.rfind(b"\n") + 1, data.splitlines(keepends=True)
    _require_records(path, lines, max(0, len(lines) - 2))
    if whole < len(data):
        try:
            os.truncate(path, whole)
        except OSError as error:
            raise _unusable(path, error) from None
    return whole < len(data)


def _read(path: Path) -> bytes:
    """The bytes of a file; none where there is no file."""
    if path.exists() and not path.is_file():
        raise RunError(f"{path} is no file; results are one file of JSON Lines, as results.jsonl")
    try:
        return path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error}; change its permissions") from None


def _require_records(path: Path, lines: list[bytes], begin: int = 0) -> None:
    """Require lines from number ``begin`` on to be records of this schema; an unfinished last one must begin as one.

    What begins as a record and is none was one of ours, and is named by its number.
    """
    foreign = RunError(f"{path} holds no results of skipwise; give another --out; nothing was changed")
    for number, line in enumerate(lines[begin:], begin + 1):
        whole, ours = line.endswith(b"\n"), _BEGINNING.startswith(line[: len(_BEGINNING)])
        if not line.strip() or (ours and not whole):
            continue
        if ours:
            list(_parse(path, number, line.decode(errors="replace")))
            continue
        if not whole:
            raise foreign
        try:
            old = json.loads(line)["schema"] == schema_1.SCHEMA
            list(_parse(path, number, line.decode()))
        except (RunError, ValueError, KeyError, TypeError, RecursionError):
            raise foreign from None
        if old:
            raise RunError(
                f"{path} holds records of skipwise 0.1 (schema 1), to which none of schema {SCHEMA} can be added: "
                "skipwise report still reads them; give another --out, or delete the file to measure again"
            )


def _unusable(path: Path, error: OSError) -> RunError:
    return RunError(f"results cannot be written to {path}: {error}; give another --out")


def _parse(path: Path, number: int, line: str) -> Iterator[Record]:
    """The record of a line; of a line of schema 1 the records that say the same."""
    try:
        raw: dict[str, Any] = json.loads(line)
        if not isinstance(raw, dict):
            raise ValueError("it has no fields")
        unchanged = raw.pop("check", None) in (None, _check(raw))
        if (schema := raw.pop("schema")) == schema_1.SCHEMA:
            found = list(schema_1.upgraded(raw))
        elif schema == SCHEMA:
            found = [raw]
        else:
            raise RunError(
                f"{path}, line {number}: schema {schema!r}, and this skipwise reads schemas 1 and {SCHEMA}; "
                "read it with the version that run.json names"
            )
        records = [_validated(one) for one in found]
        if not unchanged:
            raise ValueError("its content is not what was written: the check differs")
        yield from records
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        if isinstance(error, ValidationError):
            told = error.errors()[0]
            why = f"{'.'.join(map(str, told['loc']))}: {told['msg']}"
        raise RunError(
            f"{path}, line {number}: not a result record ({why}); restore the file, or delete that line: the command "
            "that wrote it measures it again, unless it is a step of training"
        ) from error


def _validated(raw: dict[str, Any]) -> Record:
    """Build a record from JSON, without fields that it does not know.

    Raises:
        ValueError: a field is of another type or range, or the stored key is another record's.
    """
    kind, key = raw.pop("kind"), raw.get("key")
    if kind not in _ADAPTERS:
        raise ValueError(f"its kind {kind!r} is unknown")
    record = _ADAPTERS[kind].validate_python(raw)
    if problem := getattr(record, "problem", str)():
        raise ValueError(problem)
    if key is not None and isinstance(record, Measured) and key != record.key:
        raise ValueError(f"its key {key!r} does not belong to what it says it measured")
    return record
