"""What was measured: schema-versioned records, one JSON object a line in ``results.jsonl``.

A record is appended whole and flushed, so a killed run keeps what it had measured; a last line that was cut
off is dropped on reading and said.
"""

import json
import math
import os
import warnings
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from skipwise.errors import RunError

SCHEMA = 1


@dataclass(frozen=True)
class TrainingRecord:
    """One logged step: mean next-token loss in nats since the last log, and the speed."""

    kind: ClassVar[str] = "training"
    arm: str
    step: int
    loss: float
    learning_rate: float
    grad_norm: float | None
    tokens: int
    tokens_per_second: float


@dataclass(frozen=True)
class PerplexityRecord:
    """Sliding-window perplexity of one arm at one window.

    ``nll`` is the sum of negative log-likelihoods in nats over the ``tokens`` scored.
    """

    kind: ClassVar[str] = "perplexity"
    arm: str
    window: int
    stride: int
    documents: int
    tokens: int
    nll: float
    precision: str
    seconds: float
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
    length: int
    seed: int
    depths: list[float]
    prompt_tokens: list[int]
    hits: list[bool]
    seconds: float
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
class CoverageRecord:
    """The probability that one example trains each relative distance ``distances[i]``.

    ``standard_error`` is all zeros where the probability is in closed form.
    """

    kind: ClassVar[str] = "coverage"
    label: str
    train_length: int
    target_length: int
    distances: list[int]
    probability: list[float]
    standard_error: list[float]


Record = TrainingRecord | PerplexityRecord | PasskeyRecord | CoverageRecord
_KINDS: dict[str, type] = {
    c.kind: c for c in (TrainingRecord, PerplexityRecord, PasskeyRecord, CoverageRecord)
}


def append_record(path: Path, record: Record) -> None:
    """Append one record to the JSON Lines file ``path`` and flush it to the disk."""
    drop_torn_record(path)
    line = json.dumps({"schema": SCHEMA, "kind": record.kind, **asdict(record)})
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_records(path: Path) -> list[Record]:
    """Read every record of ``path``, in order; no file gives no records.

    Raises:
        RunError: a line is not a record of this schema.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    if lines[-1]:
        warnings.warn(f"{path}: the last line was cut off by a kill and is left out", stacklevel=2)
    return [_parse(path, number, line) for number, line in enumerate(lines[:-1], 1) if line]


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
        return cls(**{key: value for key, value in raw.items() if key in known})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path}, line {number}: not a result record ({error!r}); "
            "delete that line, or the file to measure again"
        ) from error


def drop_torn_record(path: Path) -> bool:
    """Cut an unfinished last line off, so that the next record starts a line of its own; say if there was one."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with open(path, "rb+") as file:
        data = file.read()
        if data.endswith(b"\n"):
            return False
        file.truncate(data.rfind(b"\n") + 1)
    return True
