"""The logits that are wanted and no others: the layers run once, the output layer a slice of places at a time."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from transformers import PreTrainedModel

from skipwise.errors import EvaluationError
from skipwise.model.lora import stock_model

# Logits at a time, in numbers: on a CPU few, so that they stay in its caches; else 64 MiB in float32.
_AT_ONCE = {"cpu": 2**21}
_ELSEWHERE = 2**24


def logits_at(model: PreTrainedModel, ids: torch.Tensor, places: range) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield ``logits [rows, some, vocabulary]`` at ``places``, in slices, each with the tokens after them [rows, some].

    The rows of ``ids``, int64 [rows, tokens], begin at position 0; ``places`` are consecutive indices below ``tokens -
    1``. What the model does to its logits (as Gemma 2's capping) is done.
    """
    positions = torch.arange(ids.shape[1], device=ids.device)
    inputs: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),  # without it transformers may infer packed documents
        "position_ids": positions.expand_as(ids),
        "use_cache": False,
    }
    most = _AT_ONCE.get(ids.device.type, _ELSEWHERE)
    size = max(1, most // (len(ids) * model.config.get_text_config().vocab_size))
    slices = [places[first : first + size] for first in range(0, len(places), size)]
    with _layers_run_once(model) if len(slices) > 1 else nullcontext():
        for some in slices:
            logits = model(**inputs, logits_to_keep=positions[some.start : some.stop]).logits
            yield logits, ids[:, some.start + 1 : some.stop + 1].to(logits.device)


def not_finite() -> EvaluationError:
    """The error of logits that are not numbers, which no measurement may take for a result."""
    return EvaluationError(
        "the model's logits are not finite: its weights are damaged, or overflow in this precision; try precision "
        "float32, or train again"
    )


@contextmanager
def _layers_run_once(model: PreTrainedModel) -> Iterator[None]:
    """Let the model's layers run at their first call in this context, and return the same at every other."""
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
