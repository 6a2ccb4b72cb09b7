"""Loss and next-token accuracy by token position: whether a model makes use of far text, which sliding windows hide.

A segment is read once, from its beginning; the target at position t is predicted from the t tokens before it. A
causal model's loss on a prefix does not depend on what follows, so the first buckets of a long segment are also the
perplexity of every shorter one (the "truncated" perplexity of the paper's Figure 5).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from skipwise.errors import DataError
from skipwise.evaluation.perplexity import inference, require_vocabulary

_LOGITS_AT_ONCE = 2**27  # of a batch, in numbers: 256 MiB in bf16


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
    require_vocabulary(model, segments)
    began = time.perf_counter()
    nll = np.zeros((len(segments), len(edges) - 1))
    hits = np.zeros(nll.shape, dtype=np.int64)
    at_once = max(1, _LOGITS_AT_ONCE // (segments.shape[1] * model.config.get_text_config().vocab_size))
    with inference(model, precision):
        for first in range(0, len(segments), at_once):
            rows = torch.from_numpy(np.asarray(segments[first : first + at_once], dtype=np.int64))
            for offset, (losses, right) in enumerate(_token_scores(model, rows.to(model.device))):
                nll[first + offset] = np.add.reduceat(losses, np.array(edges[:-1]) - 1)
                hits[first + offset] = np.add.reduceat(right, np.array(edges[:-1]) - 1)
            if on_progress:
                on_progress(rows.numel())
    return PositionScore(nll, hits, time.perf_counter() - began)


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


def _token_scores(model: PreTrainedModel, ids: torch.Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
    """Loss and hit of the targets 1.. of each row: float64 and int64 [length - 1]."""
    positions = torch.arange(ids.shape[1], device=ids.device)
    logits = model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),  # without it transformers may infer packed documents
        position_ids=positions.expand_as(ids),
        use_cache=False,
        logits_to_keep=positions[:-1],  # target t is predicted at t - 1
    ).logits
    scores = []
    for row, wanted in zip(logits, ids[:, 1:].to(logits.device), strict=True):
        losses = cross_entropy(row.float(), wanted, reduction="none").cpu().double().numpy()
        scores.append((losses, (row.argmax(-1) == wanted).long().cpu().numpy()))
    return scores
