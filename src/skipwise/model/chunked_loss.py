"""The training loss without the logits of a whole batch: computed in slices of tokens, and again in backward.

The stock loss holds the logits of every token several times, in bf16 and float32. At 16k tokens and a vocabulary of 152k
that is more than all other activations. Here the output layer returns hidden states, and the loss applies its weights
to one slice at a time under activation checkpointing. The cost is one more product with the output layer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.nn.functional import cross_entropy, linear, pad
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from skipwise.model.lora import stock_model
from skipwise.model.precision import autocast, weights_precision

_SLICE_BYTES = 2**28  # of float32 logits
_WORTH_BYTES = 2**29


def worth_chunking(tokens: int, vocabulary: int) -> bool:
    """Return whether the float32 logits of a micro-batch of ``tokens`` take more than 0.5 GiB."""
    return 4 * tokens * vocabulary > _WORTH_BYTES


def can_be_sliced(model: PreTrainedModel) -> bool:
    """Return whether the loss in slices equals the model's own loss, by computing both on a few tokens.

    They differ if the model scales or caps its logits, as Gemma 2 does, or if its output layer is more than a matrix.
    """
    head = _head(model)
    whole_copy = type(head).__name__ == "ModulesToSaveWrapper"  # peft's
    if type(head) is not torch.nn.Linear and not whole_copy:
        return False
    tolerance = 1e-4 if weights_precision(model) == "float32" else 1e-2
    expected = _loss(model)
    with in_slices(model):
        return bool(torch.isclose(_loss(model), expected, rtol=tolerance, atol=0))


@contextmanager
def in_slices(model: PreTrainedModel) -> Iterator[None]:
    """Compute the model's loss in slices inside this context; backward may run outside of it."""
    stock, head = cast(Any, stock_model(model)), _head(model)
    loss_function = stock.loss_function
    head.forward = lambda hidden: hidden
    stock.loss_function = lambda logits, labels, *_, **options: _sliced(logits, head, labels, **options)
    try:
        yield
    finally:
        stock.loss_function = loss_function
        del head.forward


def _head(model: PreTrainedModel) -> torch.nn.Module:
    return stock_model(model).get_output_embeddings()


def _sliced(
    hidden: torch.Tensor,
    head: torch.nn.Module,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    **_: Any,
) -> torch.Tensor:
    """Return transformers' causal loss: labels shifted by one; the sum over the batch's labels, or their mean."""
    weight, bias = cast(torch.Tensor, head.weight), getattr(head, "bias", None)
    states = hidden.flatten(0, -2)  # [tokens, width]
    targets = pad(labels, (0, 1), value=ignore_index)[..., 1:].flatten().to(states.device)
    rows = max(1, _SLICE_BYTES // (4 * len(weight)))

    def slice_loss(states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = linear(states, weight, bias).float()
        return cross_entropy(logits, targets, ignore_index=ignore_index, reduction="sum")

    slices = zip(states.split(rows), targets.split(rows), strict=True)
    total = torch.stack([checkpoint(slice_loss, *each, use_reentrant=False) for each in slices]).sum()
    if num_items_in_batch is None:
        return total / (targets != ignore_index).sum()
    return total / torch.as_tensor(num_items_in_batch, device=total.device)


@torch.no_grad()
def _loss(model: PreTrainedModel) -> torch.Tensor:
    """Return the loss of 32 tokens, computed in the dtype of the weights."""
    ids = (torch.arange(32, device=model.device) * 7 + 3)[None] % model.config.get_text_config().vocab_size
    was_training = model.training
    with autocast(model.device, weights_precision(model)):
        loss = model.eval()(input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids), use_cache=False).loss
    model.train(was_training)
    return loss.float()
