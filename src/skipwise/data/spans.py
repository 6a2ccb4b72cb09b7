"""Work with spans [begin, end) of a document's tokens."""

from collections.abc import Sequence

import numpy as np

IGNORED = -100  # labels with this value do not count in the loss of transformers and torch

Spans = list[tuple[int, int]]


def runs(flags: Sequence[bool] | np.ndarray) -> Spans:
    """Return the spans of true flags, rising."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], np.asarray(flags, dtype=bool), [False]])))
    return [(begin, end) for begin, end in edges.reshape(-1, 2).tolist()]


def complement(spans: Spans, length: int) -> Spans:
    """Return the gaps between rising ``spans`` in 0..``length``."""
    edges = [0, *(edge for span in spans for edge in span), length]
    return [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]


def agreeing(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common beginning of two rows of ids."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
