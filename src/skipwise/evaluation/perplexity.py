"""Sliding-window perplexity, exact: every token is scored once, and logits exist only where a token is scored.

With a window as long as the document there is one window, and each token is scored with all of the document before it.
A causal model's loss on a prefix does not depend on what follows, so the same pass gives the perplexity of every
prefix.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import fsum

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from skipwise.data.tokenised import token_ids
from skipwise.errors import DataError, counted
from skipwise.evaluation.logits import logits_at, not_finite
from skipwise.evaluation.windows import Window, sliding_windows
from skipwise.method.lengths import parse_length
from skipwise.model.blocked_attention import blocked_attention
from skipwise.model.precision import autocast, choose_precision, in_mode
from skipwise.results.statistics import perplexity_of

# Tokens fed together: few on a CPU, so that the activations of a layer stay in its caches.
_PER_BATCH = {"cpu": 2048}
_ON_A_GPU = 16384

_Member = tuple[int, Window]  # the document's number, and one of its windows


@dataclass(frozen=True)
class TokenScores:
    """The scores of one document, target by target (its tokens but the first)."""

    nll: np.ndarray  # float64 [tokens - 1], negative log-likelihood in nats
    hits: np.ndarray  # bool [tokens - 1], whether the model gives the target the highest probability
    seconds: float  # of wall time; documents that are fed together share it equally

    def buckets(self, edges: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Sum loss (float64) and hits (int64), each [buckets], over the targets ``edges[i] .. edges[i + 1] - 1``.

        ``edges`` rise from 1 to the document's tokens.
        """
        begins = np.array(edges[:-1]) - 1  # the scores begin at target 1
        return np.add.reduceat(self.nll, begins), np.add.reduceat(self.hits.astype(np.int64), begins)


@dataclass(frozen=True)
class Score:
    """Negative log-likelihood ``nll`` in nats, summed over the ``tokens`` scored in ``documents``."""

    documents: int
    tokens: int
    nll: float
    seconds: float

    @property
    def perplexity(self) -> float:
        """exp(nll / tokens); infinite where a float cannot hold it."""
        return perplexity_of(self.nll / self.tokens)


def sliding_perplexity(
    model: PreTrainedModel,
    documents: Sequence[np.ndarray | torch.Tensor | Sequence[int]],
    *,
    window: int | str,
    stride: int | str,
    precision: str = "float32",
) -> Score:
    """Return the loss of every token of the documents but their first, in sliding windows.

    Args:
        model: a causal language model of transformers.
        documents: lists, arrays or tensors of token ids; those of fewer than two have nothing to score and are left out.
        window: tokens that the model reads at a time, as 2048 or ``"2k"``.
        stride: tokens from one window to the next; each window scores those that no window before it has.
        precision: of the forward passes: auto, bf16, fp16 (on a GPU) or float32.

    Returns:
        The sum of the losses in nats, and how many tokens and documents it is of; ``perplexity`` is exp(nll / tokens).

    Raises:
        RecipeError: ``window`` or ``stride`` breaks its rule, or the precision is unknown.
        DataError: a document is no row of whole numbers, no token can be scored, or one is not in the model's vocabulary.
        EvaluationError: a loss is not a number.
    """
    read = [token_ids(document, f"document {number}") for number, document in enumerate(documents)]
    require_vocabulary(model, read)  # names a document by its number among all
    scored = [document for document in read if len(document) >= 2]
    if not scored:
        raise DataError(f"no token to score in {counted(len(read), 'document')}; give one of two tokens or more")
    chosen = choose_precision(precision, model.device)
    started = time.perf_counter()
    scores = sliding_scores(model, scored, window=parse_length(window), stride=parse_length(stride), precision=chosen)
    nll = fsum(float(score.nll.sum()) for score in scores)
    tokens = sum(len(document) - 1 for document in scored)
    return Score(len(scored), tokens, nll, time.perf_counter() - started)


def sliding_scores(
    model: PreTrainedModel,
    documents: Sequence[np.ndarray],
    *,
    window: int,
    stride: int,
    precision: str = "float32",
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[TokenScores]:
    """Score every token of every document but its first, under windows of ``window`` by ``stride`` tokens.

    A document's scores come as soon as it is read. Short documents are read together, and windows of one shape are fed
    together. Positions are ``0 .. window - 1`` in each window. The loss is float32 in every precision, and its sums
    float64. ``on_progress`` is told the tokens of each batch that was fed, which sum to ``fed_tokens``.

    Raises:
        DataError: a token is not in the model's vocabulary.
        EvaluationError: a loss is not a number.
    """
    require_vocabulary(model, documents)
    most = _PER_BATCH.get(model.device.type, _ON_A_GPU)
    for group in _together(documents, window, stride, most):
        began = time.perf_counter()
        nll = [np.zeros(max(0, len(document) - 1)) for document in group]
        hits = [np.zeros(len(each), dtype=bool) for each in nll]
        for batch in _batches(group, window, stride, most):
            with inference(model, precision):
                losses, right = _batch_scores(model, [(group[number], plan) for number, plan in batch])
            if np.isnan(losses).any():
                raise not_finite()
            for (number, plan), loss, hit in zip(batch, losses, right, strict=True):
                nll[number][plan.scored_from - 1 : plan.end - 1] = loss
                hits[number][plan.scored_from - 1 : plan.end - 1] = hit
            if on_progress:
                on_progress(sum(plan.width for _, plan in batch))
        seconds = (time.perf_counter() - began) / len(group)
        yield from (TokenScores(*each, seconds) for each in zip(nll, hits, strict=True))


def fed_tokens(documents: Iterable[np.ndarray], window: int, stride: int) -> int:
    """How many tokens ``sliding_scores`` will feed: the total of its progress."""
    return sum(plan.width for d in documents for plan in sliding_windows(len(d), window, stride))


@contextmanager
def inference(model: PreTrainedModel, precision: str) -> Iterator[None]:
    """Evaluation mode, no gradients, autocast to ``precision``, and the fastest attention; the model is as before at the end."""
    # Under inference_mode autocast would cast the weights at every pass.
    with in_mode(model, training=False), torch.no_grad(), autocast(model.device, precision), blocked_attention(model):
        yield


def require_vocabulary(model: PreTrainedModel, documents: Iterable[np.ndarray | list[int]]) -> None:
    """Refuse token ids that the model has no embedding for."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    for number, document in enumerate(documents):
        smallest, largest = int(np.min(document, initial=0)), int(np.max(document, initial=0))
        if smallest < 0:
            raise DataError(
                f"document {number}: token {smallest} is below 0, which is no id of a token; give input_ids without padding, not "
                "labels"
            )
        if largest >= len(weight):
            raise DataError(
                f"document {number}: token {largest} >= vocabulary {len(weight)}; another "
                "model's tokenizer? Tokenise with the model's own"
            )


def _together(documents: Sequence[np.ndarray], window: int, stride: int, most: int) -> Iterator[list[np.ndarray]]:
    """Documents in turn, as many at a time as feed ``most`` tokens: a long one is alone."""
    group: list[np.ndarray] = []
    fed = 0
    for document in documents:
        group.append(document)
        fed += fed_tokens([document], window, stride)
        if fed >= most:
            yield group
            group, fed = [], 0
    if group:
        yield group


def _batches(documents: Sequence[np.ndarray], window: int, stride: int, most: int) -> Iterator[list[_Member]]:
    """Windows of equal width and equal context, across documents, up to ``most`` tokens at a time."""
    shapes: dict[tuple[int, int], list[_Member]] = defaultdict(list)
    for number, document in enumerate(documents):
        for plan in sliding_windows(len(document), window, stride):
            shapes[plan.width, plan.context].append((number, plan))
    for (width, _), members in shapes.items():
        size = max(1, most // width)
        for first in range(0, len(members), size):
            yield members[first : first + size]


def _batch_scores(model: PreTrainedModel, batch: list[tuple[np.ndarray, Window]]) -> tuple[np.ndarray, np.ndarray]:
    """Loss and hit of the targets of windows of one shape: float64 and bool [windows, scored]."""
    rows = np.stack([np.asarray(document[plan.begin : plan.end], dtype=np.int64) for document, plan in batch])
    ids, context = torch.from_numpy(rows).to(model.device), batch[0][1].context
    # One piece of memory for all slices: a small tensor kept from each would lie between the large ones of the next,
    # and on a CPU the heap would grow by a slice of logits every time.
    losses = torch.empty(len(ids), ids.shape[1] - context, device=ids.device)
    hits = torch.empty_like(losses, dtype=torch.bool)
    done = 0
    # Target t is predicted at t - 1.
    for logits, wanted in logits_at(model, ids, range(context - 1, ids.shape[1] - 1)):
        some = slice(done, done + wanted.shape[1])
        done = some.stop
        loss = cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="none")
        losses[:, some] = loss.view(wanted.shape)
        hits[:, some] = logits.argmax(-1) == wanted
    return losses.double().cpu().numpy(), hits.cpu().numpy()
