"""Loss and next-token accuracy by token position: whether a model makes use of far text, which sliding windows hide.

A segment is read once, from its beginning; the target at position t is predicted from the t tokens before it. A
causal model's loss on a prefix does not depend on what follows, so the first buckets of a long segment are also the
perplexity of every shorter one (the "truncated" perplexity of the paper's Figure 5).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from skipwise.errors import DataError
from skipwise.evaluation.perplexity import TokenScores, sliding_scores


@dataclass(frozen=True)
class PositionScore:
    """What each segment scored in each bucket of positions.

    Attributes:
        nll: float64 [segments, buckets], negative log-likelihood in nats, summed over the bucket's targets.
        hits: int64 [segments, buckets], targets to which the model gives the highest probability.
        seconds: of wall time.
    """

    nll: np.ndarray
    hits: np.ndarray
    seconds: float


def position_buckets(length: int, original: int) -> list[int]:
    """Edges of the buckets of a segment of ``length`` tokens: a quarter of the original length, doubled up to the end.

    Bucket i holds the targets ``edges[i] .. edges[i + 1] - 1``; the first edge is 1, for the token at 0 has nothing
    before it.
    """
    edges, edge = [1], max(2, original // 4)
    while edge < length:
        edges.append(edge)
        edge *= 2
    return [*edges, length]


def score_by_position(
    model: PreTrainedModel,
    segments: np.ndarray,
    edges: list[int],
    *,
    precision: torch.dtype | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> PositionScore:
    """Read each segment from its beginning and score every token of it but the first.

    Args:
        model: a causal language model of transformers.
        segments: token ids, int [segments, length].
        edges: of the buckets, rising from 1 to the length.
        precision: autocast the forward pass to this dtype; the loss is float32 and its sums float64 always.
        on_progress: called after each batch with the number of tokens fed, which sum to ``segments.size``.

    Raises:
        DataError: there is no segment, or a token is not in the model's vocabulary.
    """
    if not len(segments):
        raise DataError("no segment to score by position; give longer documents, or a shorter segment")
    length = segments.shape[1]
    scores = list(
        sliding_scores(
            model, list(segments), window=length, stride=length, precision=precision, on_progress=on_progress
        )
    )
    sums = [bucket_sums(score, edges) for score in scores]
    return PositionScore(
        np.stack([nll for nll, _ in sums]),
        np.stack([hits for _, hits in sums]),
        sum(score.seconds for score in scores),
    )


def bucket_sums(scores: TokenScores, edges: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Loss (float64) and hits (int64), each [buckets], summed over the targets ``edges[i] .. edges[i + 1] - 1``.

    Args:
        scores: of a document of ``edges[-1]`` tokens.
        edges: rising from 1.
    """
    begins = np.array(edges[:-1]) - 1  # the scores begin at target 1
    return np.add.reduceat(scores.nll, begins), np.add.reduceat(scores.hits.astype(np.int64), begins)


def far_loss(
    model: PreTrainedModel, segments: np.ndarray, original: int, *, precision: torch.dtype | None = None
) -> float:
    """Mean loss in nats of the tokens at ``original`` and beyond, each read with all of its segment before it.

    Near text does not count: a model that only becomes better inside its window does not become better here.

    Args:
        model: a causal language model of transformers.
        segments: token ids, int [segments, length], with length > ``original``.
        original: the first position that counts, in tokens.
        precision: as in ``score_by_position``.

    Raises:
        DataError: as ``score_by_position``.
    """
    score = score_by_position(model, segments, [1, original, segments.shape[1]], precision=precision)
    return float(score.nll[:, 1].mean() / (segments.shape[1] - original))
