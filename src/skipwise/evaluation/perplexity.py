"""Exact sliding-window perplexity: every token is scored once, and only its logits are computed.

If a document begins with the model's BOS, so does every window of it, as in the PoSE authors' script.

A window as long as the document scores each token after all of the document before it. A causal model's loss on a prefix
does not depend on what follows, so this one pass gives the perplexity of every prefix.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from skipwise.data.text import token_ids
from skipwise.errors import DataError, EvaluationError, counted
from skipwise.evaluation.windows import Window, sliding_windows
from skipwise.method.lengths import parse_length
from skipwise.model.forward import autocast, choose_precision, in_mode, stock_model
from skipwise.results.statistics import perplexity_of

# Tokens in one forward pass: few on a CPU, so that the activations of a layer stay in its caches.
_PER_BATCH = {"cpu": 2048}
_ON_A_GPU = 16384
# Logits at a time, in numbers: few on a CPU for the same reason; else 64 MiB in float32.
_LOGITS = {"cpu": 2**21}
_LOGITS_ON_A_GPU = 2**24
# Of fewer rows at a time, reading the output matrix takes longer than multiplying by it: 4 times at 8 rows of 262k.
_FEWEST_ROWS = 32

_Member = tuple[int, Window]  # the document's number, and one of its windows


@dataclass(frozen=True)
class TokenScores:
    """Scores of one document, per target (every token but the first)."""

    nll: np.ndarray  # float64 [tokens - 1], negative log-likelihood in nats
    hits: np.ndarray  # bool [tokens - 1], whether the target has the highest probability
    seconds: float  # wall time; documents in one batch share it equally

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
    """Return the loss of every token but each document's first, in sliding windows.

    Args:
        documents: lists, arrays or tensors of token ids; documents of fewer than two tokens are left out.
        window: tokens in one forward pass, e.g. 2048 or ``"2k"``.
        stride: tokens from one window to the next; each window scores its new tokens.
        precision: of the forward passes: auto, bf16, fp16 (on a GPU) or float32.

    Raises:
        RecipeError: ``window`` or ``stride`` breaks its rule, or the precision is unknown.
        DataError: a document is not one-dimensional integers, no token can be scored, or a token is not in the vocabulary.
        EvaluationError: a loss is NaN.
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
    """Score every token but the first of every document, in sliding windows.

    A document's scores are yielded once it is read. Short documents, and windows of one shape, share a forward pass.
    Positions are ``0 .. window - 1`` in each window. The loss is float32 in every precision, its sums float64.
    ``on_progress`` gets the tokens of each batch; their sum is ``fed_tokens``.
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
    """Return the tokens that ``sliding_scores`` feeds: the total of its progress."""
    return sum(plan.width for d in documents for plan in sliding_windows(len(d), window, stride))


@contextmanager
def inference(model: PreTrainedModel, precision: str) -> Iterator[None]:
    """Set evaluation mode, no gradients, and autocast; restore the mode at the end."""
    # Under inference_mode autocast would cast the weights at every pass.
    with in_mode(model, training=False), torch.no_grad(), autocast(model.device, precision):
        yield


def require_vocabulary(model: PreTrainedModel, documents: Iterable[np.ndarray | list[int]]) -> None:
    """Require every token id to have an embedding."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    for number, document in enumerate(documents):
        for token in (int(np.min(document, initial=0)), int(np.max(document, initial=0))):
            if not 0 <= token < len(weight):
                raise DataError(
                    f"document {number} has token {token}, and the vocabulary has {len(weight)} tokens; use the model's own "
                    "tokenizer, without padding or label ids"
                )


def _together(documents: Sequence[np.ndarray], window: int, stride: int, most: int) -> Iterator[list[np.ndarray]]:
    """Group documents until they feed ``most`` tokens; a long document is alone."""
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
    """Group windows of equal width and context across documents, up to ``most`` tokens each."""
    shapes: dict[tuple[int, int], list[_Member]] = defaultdict(list)
    for number, document in enumerate(documents):
        for plan in sliding_windows(len(document), window, stride):
            shapes[plan.width, plan.context].append((number, plan))
    for (width, _), members in shapes.items():
        size = max(1, most // width)
        for first in range(0, len(members), size):
            yield members[first : first + size]


def _batch_scores(model: PreTrainedModel, batch: list[tuple[np.ndarray, Window]]) -> tuple[np.ndarray, np.ndarray]:
    """Return losses and hits of windows of one shape: float64 and bool [windows, scored]."""
    rows = np.stack([np.asarray(document[plan.begin : plan.end], dtype=np.int64) for document, plan in batch])
    # Each window begins with the document's BOS, as the authors' script does.
    first = np.array([document[0] for document, _ in batch])
    rows[:, 0] = np.where(first == model.config.get_text_config().bos_token_id, first, rows[:, 0])
    ids, context = torch.from_numpy(rows).to(model.device), batch[0][1].context
    # One piece of memory for all slices: a small tensor kept from each would lie between the large ones of the next,
    # and on a CPU the heap would grow by a slice of logits every time.
    losses = torch.empty(len(ids), ids.shape[1] - context, device=ids.device)
    hits = torch.empty_like(losses, dtype=torch.bool)
    done = 0
    # Target t is predicted at t - 1.
    for logits, wanted in logits_at(model, ids, range(context - 1, ids.shape[1] - 1)):
        part = slice(done, done + wanted.shape[1])
        done = part.stop
        loss = cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="none")
        losses[:, part] = loss.view(wanted.shape)
        hits[:, part] = logits.argmax(-1) == wanted
    return losses.double().cpu().numpy(), hits.cpu().numpy()


def logits_at(model: PreTrainedModel, ids: torch.Tensor, places: range) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield slices of logits [rows, slice, vocabulary], each with the next tokens [rows, slice].

    Rows of ``ids``, int64 [rows, tokens], begin at position 0. ``places`` are consecutive indices below ``tokens - 1``. The
    layers run once; changes of the logits by the model (Gemma 2's capping) are kept.
    """
    positions = torch.arange(ids.shape[1], device=ids.device)
    inputs: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),  # without it transformers may infer packed documents
        "position_ids": positions.expand_as(ids),
        "use_cache": False,
    }
    most = _LOGITS.get(ids.device.type, _LOGITS_ON_A_GPU)
    size = max(_FEWEST_ROWS, most // (len(ids) * model.config.get_text_config().vocab_size))
    slices = [places[first : first + size] for first in range(0, len(places), size)]
    with _layers_run_once(model) if len(slices) > 1 else nullcontext():
        for part in slices:
            logits = model(**inputs, logits_to_keep=positions[part.start : part.stop]).logits
            yield logits, ids[:, part.start + 1 : part.stop + 1].to(logits.device)


def not_finite() -> EvaluationError:
    """Return the error of logits that are NaN."""
    return EvaluationError(
        "the model's logits are not finite: damaged weights, or overflow in this precision; try precision float32"
    )


@contextmanager
def _layers_run_once(model: PreTrainedModel) -> Iterator[None]:
    """Run the model's layers once; later calls return the same output."""
    layers: Any = stock_model(model).base_model
    own = vars(layers).get("forward")  # where layers are spread over devices
    run = layers.forward
    outputs: list[Any] = []

    def first(*inputs: Any, **options: Any) -> Any:
        if not outputs:
            outputs.append(run(*inputs, **options))
        return outputs[0]

    layers.forward = first
    try:
        yield
    finally:
        del layers.forward
        if own is not None:
            layers.forward = own
