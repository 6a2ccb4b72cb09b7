"""What was measured: schema-versioned records, one JSON object a line in ``results.jsonl``.

A record is appended whole and flushed, so a killed run keeps what it had measured; a last line that was cut
off is dropped on reading and said. What is read is checked against the types below, and a file that is not
ours is never changed.
"""

import json
import math
import os
import warnings
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from skipwise.errors import RunError

SCHEMA = 1

# Numbers with the least, and the largest where there is one, that a record may hold.
Natural = Annotated[int, 0]
Count = Annotated[int, 1]
Amount = Annotated[float, 0]
Share = Annotated[float, 0, 1]


@dataclass(frozen=True)
class TrainingRecord:
    """One logged step: mean next-token loss in nats since the last log, and the speed."""

    kind: ClassVar[str] = "training"
    arm: str
    step: Natural
    loss: float
    learning_rate: float
    grad_norm: float | None
    tokens: Natural
    tokens_per_second: float


@dataclass(frozen=True)
class PerplexityRecord:
    """Sliding-window perplexity of one arm at one window.

    ``nll`` is the sum of negative log-likelihoods in nats over the ``tokens`` scored.
    """

    kind: ClassVar[str] = "perplexity"
    arm: str
    window: Count
    stride: Count
    documents: Count
    tokens: Count
    nll: Amount
    precision: str
    seconds: Amount
    data: str = ""

    @property
    def perplexity(self) -> float:
        """exp(nll / tokens); infinite where a float cannot hold it."""
        mean = self.nll / self.tokens
        return math.exp(mean) if mean < 700 else math.inf


@dataclass(frozen=True)
class PasskeyRecord:
    """Passkey retrieval of one arm at one prompt length, trial by trial.

    ``depths`` are in [0, 1] (0 = the key stands first), ``prompt_tokens`` count the model's own tokens,
    ``hits`` say whether all five digits were right.
    """

    kind: ClassVar[str] = "passkey"
    arm: str
    length: Count
    seed: int
    depths: list[Share]
    prompt_tokens: list[Count]
    hits: list[bool]
    seconds: Amount
    answers: list[str] = field(default_factory=list)

    @property
    def trials(self) -> int:
        """How many prompts were asked."""
        return len(self.hits)

    @property
    def accuracy(self) -> float:
        """The share of prompts whose five digits were all right."""
        return sum(self.hits) / len(self.hits)


@dataclass(frozen=True)
class PositionRecord:
    """Loss by token position of one arm: segments of ``length`` tokens, each read from its beginning.

    Bucket i holds the targets at positions ``edges[i] .. edges[i + 1] - 1``; ``nll`` (in nats) and ``hits`` (targets
    given the highest probability) are sums over a bucket, [segments][buckets]; ``documents`` names where each segment
    is from, since segments of one document are not independent.
    """

    kind: ClassVar[str] = "by-position"
    arm: str
    length: Count
    data: str
    edges: list[Count]
    documents: list[str]
    nll: list[list[Amount]]
    hits: list[list[Natural]]
    precision: str
    seconds: Amount


def tenth_of(trial: int) -> int:
    """The tenth of a prompt for trial 0, 1, 2, ...: 0, 3, 6, 9, 2, 5, 8, 1, 4, 7, and again."""
    return 3 * trial % 10


@dataclass(frozen=True)
class ReadingRecord:
    """How well one model predicts one document, read in windows of ``window`` by ``stride`` tokens.

    Bucket i holds the targets at positions ``edges[i] .. edges[i + 1] - 1`` of the document; ``nll`` (in nats) and ``hits``
    (targets given the highest probability) are sums over a bucket. A window as long as the document reads all of it
    before each token.
    """

    kind: ClassVar[str] = "reading"
    arm: str
    data: str
    document: str
    window: Count
    stride: Count
    edges: list[Count]
    nll: list[Amount]
    hits: list[Natural]
    precision: str
    seconds: Amount
    key: str = ""


@dataclass(frozen=True)
class TrialRecord:
    """One prompt of a retrieval task: where its number was hidden (0 = it stands first), and whether it was found.

    ``key`` is of the weights; that of a reading, of weights and document.
    """

    kind: ClassVar[str] = "trial"
    arm: str
    task: str
    length: Count
    seed: Natural
    trial: Natural
    depth: Share
    prompt_tokens: Count
    hit: bool
    answer: str
    precision: str
    seconds: Amount
    key: str = ""

    @property
    def tenth(self) -> int:
        """Which tenth of the prompt the number is hidden in: every ten trials cover all, and fewer are spread."""
        return tenth_of(self.trial)


@dataclass(frozen=True)
class StepRecord:
    """Sliding-window perplexity of one arm in the middle of its training, after ``step`` steps.

    ``far_loss``, where a run keeps its best step, is the mean negative log-likelihood in nats of the tokens beyond the
    original window, each with all of its segment before it (``evaluation.by_position.far_loss``).
    """

    kind: ClassVar[str] = "perplexity-by-step"
    arm: str
    step: Natural
    window: Count
    stride: Count
    documents: Count
    tokens: Count
    nll: Amount
    data: str
    far_loss: Amount | None = None


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


@dataclass(frozen=True)
class CostRecord:
    """What training costs: the seconds of each timed step, and the peak memory of a process that takes such steps.

    A step is ``examples`` windows of ``window`` tokens, one in memory at a time. ``base_bytes`` is what the process
    held before its first step, weights included; on a GPU both count its memory alone. ``key`` is of the model and what of
    the recipe decides the cost.
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


@dataclass(frozen=True)
class BenchmarkRecord:
    """What lm-evaluation-harness gives one metric of one task; ``harness`` is its version.

    ``fewshot`` examples stood before each question; ``target`` is the length in tokens that a request could fill;
    ``limit`` the questions asked for, None for all; ``samples`` those there were. ``standard_error`` is None where
    the harness has none. ``seconds`` are those of the whole task.
    """

    kind: ClassVar[str] = "benchmark"
    arm: str
    task: str
    metric: str
    fewshot: Natural
    target: Count
    limit: Count | None
    samples: Count
    value: float
    standard_error: Amount | None
    precision: str
    seconds: Amount
    harness: str


Record = (
    TrainingRecord
    | PerplexityRecord
    | PasskeyRecord
    | PositionRecord
    | ReadingRecord
    | TrialRecord
    | StepRecord
    | CoverageRecord
    | CostRecord
    | BenchmarkRecord
)
_KINDS: dict[str, type] = {kind.kind: kind for kind in get_args(Record)}


_HEAD = f'{{"schema": {SCHEMA}, "kind": "'.encode()  # every record begins so


def append_record(path: Path, *records: Record) -> None:
    """Append a record, or several that belong together, to the JSON Lines file ``path``, and flush it to the disk.

    Raises:
        RunError: the file holds something else, or cannot be written.
    """
    drop_torn_record(path)
    lines = [json.dumps({"schema": SCHEMA, "kind": record.kind, **asdict(record)}) for record in records]
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _unusable(path, error) from None


def read_records(path: Path) -> list[Record]:
    """Read every record of ``path``, in order; no file gives no records.

    Raises:
        RunError: it is no file, or a line is not a record of this schema.
    """
    *lines, torn = _read(path).decode(errors="replace").split("\n")
    if torn:
        warnings.warn(f"{path}: the last line was cut off by a kill and is left out", stacklevel=2)
    return [_parse(path, number, line) for number, line in enumerate(lines, 1) if line]


def require_results(path: Path) -> None:
    """Require, before any work, that records can be appended to ``path``; its folder is made if missing.

    Raises:
        RunError: it holds something else than records, or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch()
            path.unlink()  # a measurement that fails leaves no empty file
        else:
            data = _read(path)
            _require_records(path, data, data.splitlines())
            open(path, "ab").close()
    except OSError as error:
        raise _unusable(path, error) from None


def drop_torn_record(path: Path) -> bool:
    """Cut an unfinished last line off, so that the next record starts a line of its own; say if there was one.

    Raises:
        RunError: the file does not end in a record; it is left as it is.
    """
    data = _read(path)
    whole = data.rfind(b"\n") + 1
    _require_records(path, data, data.splitlines()[-2:])
    if whole < len(data):
        try:
            os.truncate(path, whole)
        except OSError as error:
            raise _unusable(path, error) from None
    return whole < len(data)


def _read(path: Path) -> bytes:
    """The bytes of a file; of none where there is no file."""
    if path.exists() and not path.is_file():
        raise RunError(f"{path} is no file; results are one file of JSON Lines, as results.jsonl")
    try:
        return path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error}; mend its permissions") from None


def _require_records(path: Path, data: bytes, lines: list[bytes]) -> None:
    """Require ``lines``, the last of ``data``, to be records; the very last may be the beginning of one."""
    torn = lines.pop() if lines and not data.endswith(b"\n") else _HEAD
    try:
        for line in filter(None, lines):
            _parse(path, 0, line.decode())
        ours = torn.startswith(_HEAD) or _HEAD.startswith(torn)
    except (RunError, UnicodeDecodeError):
        ours = False
    if not ours:
        raise RunError(f"{path} holds no results of skipwise; give another --out; nothing was changed")


def _unusable(path: Path, error: OSError) -> RunError:
    return RunError(f"results cannot be written to {path}: {error}; give another --out")


def _parse(path: Path, number: int, line: str) -> Record:
    try:
        raw: dict[str, Any] = json.loads(line)
        schema, kind = raw.pop("schema"), raw.pop("kind")
        if schema != SCHEMA:
            raise RunError(
                f"{path}, line {number}: schema {schema}, this skipwise reads schema {SCHEMA}; "
                "read it with the version named in run.json"
            )
        cls = _KINDS[kind]
        known = {f.name for f in fields(cls)}
        record: Record = cls(**{key: value for key, value in raw.items() if key in known})
        _check(record)
        return record
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{path}, line {number}: not a result record ({error!r}); "
            "delete that line, or the file to measure again"
        ) from error


def _check(record: Record) -> None:
    """Require every field to be of its type and range, and the lists to be of one length.

    Raises:
        ValueError: names the field, its value and the rule.
    """
    counts = {}
    for name, kind in get_type_hints(type(record), include_extras=True).items():
        value = getattr(record, name)
        if get_origin(kind) is ClassVar:
            continue
        if not _fits(value, kind):
            raise ValueError(f"{name} = {str(value)[:40]!r} must be {_rule(kind)}")
        if isinstance(value, list) and name not in ("answers", "edges"):
            counts[name] = len(value)
    if counts and (len(set(counts.values())) > 1 or 0 in counts.values()):
        raise ValueError(f"{', '.join(counts)} must be lists of one length, not {list(counts.values())}")


def _fits(value: Any, kind: Any) -> bool:
    """Whether ``value``, read from JSON, is of the annotated type ``kind``; NaN is in no range."""
    inner = get_args(kind)
    if get_origin(kind) is Annotated:
        return _fits(value, inner[0]) and inner[1] <= value <= (inner[2] if inner[2:] else math.inf)
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
    if inner:
        return any(_fits(value, one) for one in inner)
    if kind in (int, float) and isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, kind)


def _rule(kind: Any) -> str:
    """An annotated type in words."""
    inner = get_args(kind)
    if get_origin(kind) is Annotated:
        return f"{_rule(inner[0])} from {inner[1]}" + (f" to {inner[2]}" if inner[2:] else "")
    if get_origin(kind) is list:
        return f"a list, each {_rule(inner[0])}"
    if inner:
        return " or ".join(map(_rule, inner))
    names = {int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}
    return names.get(kind, "text")
