"""The training loss without the logits of a whole batch: a slice of tokens at a time, computed again in backward.

The stock loss holds logits of every token several times over, in bf16 and float32: at 16k tokens and a vocabulary of
152k that is more than the rest of the activations. Here the output layer passes hidden states on, and the loss applies
its weights to a slice at a time under activation checkpointing: one more product of the output layer, a slice's memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.nn.functional import cross_entropy, linear, pad
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

_SLICE_BYTES = 2**28  # of float32 logits
_WORTH_BYTES = 2**29


def worth_chunking(tokens: int, vocabulary: int) -> bool:
    """Whether the float32 logits of a micro-batch of ``tokens`` outweigh half a gibibyte."""
    return 4 * tokens * vocabulary > _WORTH_BYTES


def can_be_sliced(model: PreTrainedModel) -> bool:
    """Whether the loss in slices is the model's own: found out on a few tokens, not assumed.

    It is not where a model scales or caps its logits, as Gemma 2, or where its output layer is more than a matrix.
    """
    head = _head(model)
    whole_copy = type(head).__name__ == "ModulesToSaveWrapper"  # peft's
    if type(head) is not torch.nn.Linear and not whole_copy:
        return False
    wanted = _loss(model)
    with in_slices(model):
        return bool(torch.isclose(_loss(model), wanted, rtol=_tolerance(model), atol=0))


@contextmanager
def in_slices(model: PreTrainedModel) -> Iterator[None]:
    """Compute the model's loss in slices while in this context; backward may run outside of it."""
    stock, head = _stock(model), _head(model)
    loss_function = stock.loss_function
    head.forward = lambda hidden: hidden
    stock.loss_function = lambda logits, labels, *_, **more: _sliced(logits, head, labels, **more)
    try:
        yield
    finally:
        stock.loss_function = loss_function
        del head.forward


def _stock(model: Any) -> Any:
    return getattr(model, "get_base_model", lambda: model)()


def _head(model: PreTrainedModel) -> torch.nn.Module:
    return _stock(model).get_output_embeddings()


def _sliced(
    hidden: torch.Tensor,
    head: torch.nn.Module,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    **_: Any,
) -> torch.Tensor:
    """As transformers' causal loss: labels one to the left, summed over the batch's labels, or their mean."""
    weight, bias = cast(torch.Tensor, head.weight), getattr(head, "bias", None)
    states = hidden.flatten(0, -2)  # [tokens, width]
    targets = pad(labels, (0, 1), value=ignore_index)[..., 1:].flatten().to(states.device)
    rows = max(1, _SLICE_BYTES // (4 * len(weight)))

    def part(some: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        logits = linear(some, weight, bias).float()
        return cross_entropy(logits, wanted, ignore_index=ignore_index, reduction="sum")

    parts = zip(states.split(rows), targets.split(rows), strict=True)
    total = torch.stack([checkpoint(part, *each, use_reentrant=False) for each in parts]).sum()
    if num_items_in_batch is None:
        return total / (targets != ignore_index).sum()
    return total / torch.as_tensor(num_items_in_batch, device=total.device)


@torch.no_grad()
def _loss(model: PreTrainedModel) -> torch.Tensor:
    """On a few tokens, in the type of the weights."""
    ids = (torch.arange(32, device=model.device) * 7 + 3)[None] % model.config.get_text_config().vocab_size
    was_training = model.training
    with torch.autocast(model.device.type, torch.bfloat16, enabled=_low(model)):
        loss = model.eval()(
            input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids), use_cache=False
        ).loss
    model.train(was_training)
    return loss.float()


def _low(model: PreTrainedModel) -> bool:
    return any(weight.dtype in (torch.bfloat16, torch.float16) for weight in model.parameters())


def _tolerance(model: PreTrainedModel) -> float:
    return 1e-2 if _low(model) else 1e-4
