"""The training loss without the logits of a whole batch: slices of tokens, each with its gradients at once.

The stock loss holds the logits of every token several times, in bf16 and float32. At 16k tokens and a vocabulary of 152k
that is more than all other activations. Here the output layer returns hidden states, and the loss applies its weights
to one slice at a time. The output layer takes three products, as in the stock step: for the logits, and for the gradients
of its weights and of what it reads. A teacher's predictions, one product more, are computed with the slice too. Labels may
have weights: the sum is then over weight times loss, and still divided by the number of labels.

``with_terms`` computes the same loss from all logits at once and leaves its gradients to autograd. It is the reference
of ``_Sliced``, whose gradients are written out. Two tests in ``tests/unit/model/test_chunked_loss.py`` hold the two
together: ``test_a_teachers_term_is_the_divergence_from_it`` and ``test_weights_of_labels_multiply_their_losses``
compare the loss and every gradient of both with the definition in float64.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.functional import kl_div, log_softmax, nll_loss, pad
from transformers import PreTrainedModel

from skipwise.model.lora import stock_model
from skipwise.model.precision import autocast, in_mode, trial_ids, weights_precision

_IGNORED = -100  # of labels, as in transformers
_SLICE_BYTES = 2**28  # of float32 logits: enough rows for the products to be fast
_CACHE_BYTES = 2**22  # of float32 scores: few enough for the cache of a processor's core
_KERNEL_BYTES = 2**24  # on a GPU, which starts several kernels for each part
_SLOW_BYTES, _HEAVY_BYTES = 2**25, 2**29  # of float32 logits: on a CPU, elsewhere (``worth_chunking``)


@dataclass(frozen=True)
class Taught:
    """What a teacher predicts after each token of a batch, and how much of it is to be learned.

    Its term in the loss is weight * KL(teacher || student), in nats: the sum over the vocabulary of
    p_teacher (log p_teacher - log p_student), whose gradient by the student's logits is weight * (p_student - p_teacher)
    (Hinton et al., "Distilling the Knowledge in a Neural Network", 2015).
    """

    states: torch.Tensor  # [examples, tokens, width], what the teacher's output layer reads
    matrix: torch.Tensor | None  # [vocabulary, width], that layer; None if ``states`` are its logits already
    bias: torch.Tensor | None  # [vocabulary]
    weights: torch.Tensor  # float32 [examples, tokens]; 0 where nothing is learned from the teacher

    def flat(self, dtype: torch.dtype) -> tuple["Taught", torch.Tensor]:
        """Return what is taught at the tokens with a weight, and an order of all tokens in which those come first.

        Both are flat: the arrays are [taught tokens, ...], and the order is int64 [examples * tokens]. The output layer is cast
        to ``dtype``, that of the products. No token follows the last one of an example, so its weight counts as 0.
        """
        weights = pad(self.weights[:, :-1], (0, 1)).flatten()
        order = (weights == 0).argsort(stable=True)
        first = order[: int(weights.count_nonzero())]
        matrix, bias = (None if one is None else one.to(dtype) for one in (self.matrix, self.bias))
        return Taught(self.states.flatten(0, 1)[first], matrix, bias, weights[first]), order

    def logits(self, part: slice, buffer: torch.Tensor) -> torch.Tensor:
        """Return the logits [tokens, vocabulary] of some of the flat rows, which lie in ``buffer``."""
        assert self.matrix is not None
        some = self.states[part].to(self.matrix.dtype)
        logits = torch.mm(some, self.matrix.T, out=buffer[: len(some)])
        return logits if self.bias is None else logits.add_(self.bias)


def worth_chunking(tokens: int, vocabulary: int, device: str) -> bool:
    """Return whether to compute a micro-batch's loss in slices, by the size of its logits in float32.

    Above 32 MiB on the ``device`` "cpu", where slices that stay in its cache are faster; above 0.5 GiB elsewhere, to save memory.
    """
    return 4 * tokens * vocabulary > (_SLOW_BYTES if device == "cpu" else _HEAVY_BYTES)


def can_be_sliced(model: PreTrainedModel) -> bool:
    """Return whether the loss in slices equals the model's own loss, by computing both on a few tokens.

    They differ if the model caps its logits, as Gemma 2 does, or if its output layer is more than a matrix; not by a factor.
    """
    head = output_layer(model)
    whole_copy = type(head).__name__ == "ModulesToSaveWrapper"  # peft's
    if type(head) is not torch.nn.Linear and not whole_copy:
        return False
    tolerance = 1e-4 if weights_precision(model) == "float32" else 1e-2
    expected = _loss(model)
    with in_slices(model):
        return bool(torch.isclose(_loss(model), expected, rtol=tolerance, atol=0))


@contextmanager
def in_slices(
    model: PreTrainedModel, taught: Taught | None = None, label_weights: torch.Tensor | None = None
) -> Iterator[None]:
    """Compute the model's loss in slices inside this context, with a teacher's term; backward may run outside of it.

    ``label_weights`` float32 [examples, tokens] are those of the labels at the same places.
    """
    head = output_layer(model)

    def loss(logits: torch.Tensor, labels: torch.Tensor, *_: Any, **options: Any) -> torch.Tensor:
        return _sliced(logits, head, labels, taught, label_weights, **options)

    with _loss_replaced(model, loss), without_output_layer(model):
        yield


@contextmanager
def with_terms(
    model: PreTrainedModel, taught: Taught | None = None, label_weights: torch.Tensor | None = None
) -> Iterator[None]:
    """Add a teacher's term and weights of labels to the model's own loss of all logits inside this context.

    ``taught`` holds logits.

    For output layers whose weights cannot be applied here: sharded ones, and those that scale or cap their logits.
    """
    loss_function = cast(Any, stock_model(model)).loss_function

    def loss(logits: torch.Tensor, labels: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        own = loss_function(logits, labels, *rest, **options)
        student = log_softmax(logits.flatten(0, 1), dim=-1, dtype=torch.float32)
        term = torch.zeros((), device=logits.device)
        if taught is not None:
            flat, order = taught.flat(logits.dtype)
            wanted, known = log_softmax(flat.states, dim=-1, dtype=torch.float32), student[order[: len(flat.weights)]]
            term = kl_div(known, wanted, reduction="none", log_target=True).sum(-1).dot(flat.weights)
        if label_weights is not None:
            losses = nll_loss(student, _shifted(labels, _IGNORED), reduction="none", ignore_index=_IGNORED)
            term = term + losses.dot(_shifted(label_weights, 1) - 1)
        items = options.get("num_items_in_batch")
        return own + term / ((labels[:, 1:] != _IGNORED).sum() if items is None else items)

    with _loss_replaced(model, loss):
        yield


@contextmanager
def _loss_replaced(model: PreTrainedModel, loss: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Let the model compute ``loss`` of its logits and labels inside this context."""
    stock = cast(Any, stock_model(model))
    before, stock.loss_function = stock.loss_function, loss
    try:
        yield
    finally:
        stock.loss_function = before


@contextmanager
def without_output_layer(model: PreTrainedModel) -> Iterator[None]:
    """Make the output layer return what it reads, inside this context: the model's "logits" are hidden states."""
    head = output_layer(model)
    head.forward = lambda hidden: hidden
    try:
        yield
    finally:
        del head.forward


def output_layer(model: PreTrainedModel) -> torch.nn.Module:
    """Return the layer that turns hidden states into logits."""
    return stock_model(model).get_output_embeddings()


def _sliced(
    hidden: torch.Tensor,
    head: torch.nn.Module,
    labels: torch.Tensor,
    taught: Taught | None = None,
    label_weights: torch.Tensor | None = None,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = _IGNORED,
    **_: Any,
) -> torch.Tensor:
    """Return transformers' causal loss: labels shifted by one; the sum over the batch's labels, or their mean.

    A teacher's term is divided by the number of labels too.
    """
    weight, bias = cast(torch.Tensor, head.weight), getattr(head, "bias", None)
    states = hidden.flatten(0, -2)  # [tokens, width]
    targets = _shifted(labels, ignore_index).to(states.device)
    counts = (targets != ignore_index).float()
    kind = states.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    items = counts.sum() if num_items_in_batch is None else num_items_in_batch
    if label_weights is not None:
        counts = counts * _shifted(label_weights, 1).to(states.device)
    teacher = None
    if taught is not None:  # the teacher's logits are computed for the tokens with a weight alone, so these come first
        teacher, order = taught.flat(dtype)
        states, targets, counts = states[order], targets[order], counts[order]
    total = _Sliced.apply(states, weight, bias, targets.clamp(min=0), counts, dtype, teacher)
    return total / torch.as_tensor(items, device=total.device)


def _shifted(labels: torch.Tensor, beyond: float) -> torch.Tensor:
    """Return what belongs to the label that each token predicts, flat; after the last token of an example, ``beyond``."""
    return pad(labels, (0, 1), value=beyond)[..., 1:].flatten()


class _Sliced(torch.autograd.Function):
    """The sum over tokens of ``-count log softmax(states @ weight.T + bias)[target]``, in nats, and a teacher's term.

    The gradient of the first by the logits of a token is count times their softmax, less 1 at the target; ``Taught`` has that of the
    second. So a slice's logits are turned into their gradient at once, and nothing of the slice is kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        counts: torch.Tensor,
        dtype: torch.dtype,
        teacher: Taught | None,
    ) -> torch.Tensor:
        needed = ctx.needs_input_grad
        by_states = torch.empty_like(states) if needed[0] else None
        by_weight = torch.zeros_like(weight) if needed[1] else None
        by_bias = torch.zeros_like(bias) if bias is not None and needed[2] else None
        matrix, addend = weight.to(dtype), None if bias is None else bias.to(dtype)
        total = torch.zeros((), device=states.device)
        rows = max(1, min(len(states), _SLICE_BYTES // (4 * len(weight))))
        buffer = states.new_empty(rows, len(weight), dtype=dtype)  # fresh memory for each slice would cost page faults
        second = torch.empty_like(buffer) if teacher else None
        for begin in range(0, len(states), rows):
            part = slice(begin, begin + rows)
            some = states[part].to(dtype)
            logits = torch.mm(some, matrix.T, out=buffer[: len(some)])
            if addend is not None:
                logits += addend
            known = 0
            if teacher is not None and second is not None:
                wanted, shares = teacher.logits(part, second), teacher.weights[part]
                known = len(shares)
                total += _to_gradients(logits[:known], targets[part][:known], counts[part][:known], wanted, shares)
            total += _to_gradients(logits[known:], targets[part][known:], counts[part][known:])
            if by_states is not None:
                by_states[part] = logits @ matrix
            if by_weight is not None:
                by_weight += logits.T @ some
            if by_bias is not None:
                by_bias += logits.sum(0)
        ctx.gradients = by_states, by_weight, by_bias
        ctx.save_for_backward(targets)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        (_,) = ctx.saved_tensors  # refuses to go backward a second time: the gradients are scaled in place
        gradients, ctx.gradients = ctx.gradients, None
        return *(None if one is None else one.mul_(upstream) for one in gradients), None, None, None, None


def _to_gradients(
    logits: torch.Tensor,
    targets: torch.Tensor,
    counts: torch.Tensor,
    taught: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the sum of the tokens' losses; turn ``logits`` [tokens, vocabulary] into its gradient, in place.

    ``counts`` [tokens] are what each token's loss is multiplied by; ``taught`` are a teacher's logits [tokens,
    vocabulary], and ``weights`` [tokens] those of their term.
    """
    total = torch.zeros((), device=logits.device)
    rows = max(1, (_CACHE_BYTES if logits.device.type == "cpu" else _KERNEL_BYTES) // (4 * logits.shape[1]))
    for begin in range(0, len(logits), rows):
        part = slice(begin, begin + rows)
        target, count = targets[part, None], counts[part]
        scores, chances, log_sum = _softmax(logits[part])
        total += ((log_sum - scores.gather(1, target)[:, 0]) * count).sum()
        if taught is None or weights is None:
            gradient = chances.mul_(count[:, None])
        else:
            wanted, wanted_chances, wanted_log_sum = _softmax(taught[part])
            share = weights[part]
            apart = wanted.sub_(scores).mul_(wanted_chances).sum(-1)  # under autocast vecdot would be bf16
            total += (apart - wanted_log_sum + log_sum).dot(share)
            gradient = chances.mul_((count + share)[:, None]).sub_(wanted_chances.mul_(share[:, None]))
        logits[part].copy_(gradient.scatter_add_(1, target, -count[:, None]))
        if isinstance(logits, FakeTensor):  # of ``step_cost``: each of thousands of parts takes what the first takes
            break
    return total


def _softmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the logits [tokens, vocabulary] less their largest, in float32; their softmax; and the log of the sum of exp [tokens].

    The largest softmax is 1 / that sum: so exp is computed once, where log_softmax and its exp take two.
    """
    scores = logits.float()
    scores = scores - scores.amax(-1, keepdim=True)
    chances = scores.softmax(-1)
    return scores, chances, -chances.amax(-1).log()


@torch.no_grad()
def _loss(model: PreTrainedModel) -> torch.Tensor:
    """Return the loss of 32 tokens, computed in the dtype of the weights."""
    ids = trial_ids(model, 32)
    with in_mode(model, training=False), autocast(model.device, weights_precision(model)):
        loss = model(input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids), use_cache=False).loss
    return loss.float()
