"""Sliding-window perplexity, exact: every token scored once, logits only where a token is scored."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from skipwise.errors import DataError
from skipwise.evaluation.windows import Window, sliding_windows

# Float32 copies of logits held at a time, in numbers: 2**26 of them are 256 MiB.
_LOGITS_AT_ONCE = 2**26

_Member = tuple[np.ndarray, Window]


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
        mean = self.nll / self.tokens
        return math.exp(mean) if mean < 700 else math.inf


def sliding_perplexity(
    model: PreTrainedModel,
    documents: Sequence[np.ndarray],
    *,
    window: int,
    stride: int,
    precision: torch.dtype | None = None,
    tokens_per_batch: int = 16384,
    on_progress: Callable[[int], None] | None = None,
) -> Score:
    """Score every token of every document but its first, under windows of ``window`` by ``stride`` tokens.

    Args:
        model: a causal language model of transformers.
        documents: token ids, int [tokens] each; one of fewer than two tokens has nothing to score.
        window: tokens fed at once; positions are ``0 .. window - 1`` in each.
        stride: tokens by which windows advance.
        precision: autocast the forward pass to this dtype; the loss is float32 and its sum float64 always.
        tokens_per_batch: windows of one shape are fed together up to this many tokens.
        on_progress: called after each batch with the number of tokens fed, which sum to ``fed_tokens``.

    Raises:
        RecipeError: ``window`` or ``stride`` breaks its rule.
        DataError: no token can be scored, or one is not in the model's vocabulary.
    """
    scored = [document for document in documents if len(document) >= 2]
    if not scored:
        raise DataError(f"{len(documents)} documents hold no token to score; give one of two tokens or more")
    require_vocabulary(model, documents)
    started, nll = time.perf_counter(), 0.0
    with inference(model, precision):
        for batch in _batches(scored, window, stride, tokens_per_batch):
            nll += _batch_nll(model, batch)
            if on_progress:
                on_progress(sum(plan.width for _, plan in batch))
    tokens = sum(len(document) - 1 for document in scored)
    return Score(len(scored), tokens, nll, time.perf_counter() - started)


def fed_tokens(documents: Iterable[np.ndarray], window: int, stride: int) -> int:
    """How many tokens ``sliding_perplexity`` will feed: the total of its progress."""
    return sum(plan.width for d in documents for plan in sliding_windows(len(d), window, stride))


@contextmanager
def inference(model: PreTrainedModel, precision: torch.dtype | None) -> Iterator[None]:
    """Evaluation mode, no gradients, and autocast to ``precision`` if given; the model's mode is restored."""
    was_training = model.training
    model.eval()
    autocast = torch.autocast(model.device.type, dtype=precision, enabled=precision is not None)
    try:
        with torch.inference_mode(), autocast:
            yield
    finally:
        model.train(was_training)


def require_vocabulary(model: PreTrainedModel, documents: Iterable[np.ndarray | list[int]]) -> None:
    """Refuse token ids that the model has no embedding for.

    Raises:
        DataError: names the document by its number, the token id and the size of the vocabulary.
    """
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    for number, document in enumerate(documents):
        largest = int(np.max(document, initial=0))
        if largest >= len(weight):
            raise DataError(
                f"document {number}: token {largest} >= vocabulary {len(weight)}; another "
                "model's tokenizer? Tokenise with the model's own"
            )


def _batches(
    documents: Sequence[np.ndarray], window: int, stride: int, tokens_per_batch: int
) -> Iterator[list[_Member]]:
    """Windows of equal width and equal context, across documents, up to ``tokens_per_batch`` at a time."""
    shapes: dict[tuple[int, int], list[_Member]] = defaultdict(list)
    for document in documents:
        for plan in sliding_windows(len(document), window, stride):
            shapes[plan.width, plan.context].append((document, plan))
    for (width, _), members in shapes.items():
        size = max(1, tokens_per_batch // width)
        for first in range(0, len(members), size):
            yield members[first : first + size]


def _batch_nll(model: PreTrainedModel, batch: list[_Member]) -> float:
    """Sum of negative log-likelihoods in nats over the targets of windows of one shape."""
    rows = np.stack([np.asarray(document[plan.begin : plan.end], dtype=np.int64) for document, plan in batch])
    ids = torch.from_numpy(rows).to(model.device)  # [windows, width]
    positions = torch.arange(ids.shape[1], device=ids.device)
    context = batch[0][1].context
    logits = model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),  # without it transformers may infer packed documents
        position_ids=positions.expand_as(ids),
        use_cache=False,
        logits_to_keep=positions[context - 1 : -1],  # target t is predicted at t - 1
    ).logits  # [windows, scored, vocabulary]
    return _summed_cross_entropy(logits.flatten(0, 1), ids[:, context:].flatten().to(logits.device))


def _summed_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> float:
    """Cross-entropy of ``logits`` [n, vocabulary] in float32, a slice at a time, summed in float64."""
    rows = max(1, _LOGITS_AT_ONCE // logits.shape[-1])
    total = 0.0
    for part, wanted in zip(logits.split(rows), targets.split(rows), strict=True):
        total += cross_entropy(part.float(), wanted, reduction="none").cpu().double().sum().item()
    return total
