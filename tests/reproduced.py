"""Records as a reproduction measures them."""

import math
from collections.abc import Sequence
from itertools import pairwise

from skipwise.results.records import ReadingRecord, TrialRecord


def sliding(
    value: float, window: int = 512, stride: int = 128, data: str = "x", document: str = "d", digest: str = "1", **more
) -> ReadingRecord:
    """A document read in sliding windows with the perplexity ``value``."""
    tokens = more.pop("tokens", 4095)
    edges, nll = [1, tokens + 1], [math.log(value) * tokens]
    return ReadingRecord(
        "pose", data, document, "sliding", 0, window, stride, edges, "bf16", digest, nll=nll, hits=[0], **more
    )


def segments(
    *losses: Sequence[float] | float, edges: Sequence[int] = (1, 2048), hits: int = 1, count: int = 1, data: str = "x"
) -> list[ReadingRecord]:
    """Segments in documents of their own: losses in each bucket, or one for all buckets; a single one ``count`` times."""
    widths = [high - low for low, high in pairwise(edges)]
    rows = [[each] * len(widths) if isinstance(each, float | int) else each for each in losses] * count
    length = edges[-1]
    return [
        ReadingRecord(
            "pose", data, f"d{i}", "segment", 0, length, length, list(edges), "bf16", "1",
            nll=[loss * width for loss, width in zip(row, widths, strict=True)], hits=[hits] * len(widths),
        )
        for i, row in enumerate(rows)
    ]  # fmt: skip


def trials(hits: int, asked: int, seed: int = 0, length: int = 512, task: str = "passkey") -> list[TrialRecord]:
    """Prompts of a task, the first ``hits`` of them answered rightly."""
    return [
        TrialRecord("pose", task, length, seed, trial, "random", "bf16", "1", prompt_tokens=length, hit=trial < hits)
        for trial in range(asked)
    ]
