"""A teacher: the frozen base, which says of each training example what the model before its extension would predict.

It reads an example at the positions 0, 1, 2, ..., inside its own window, where the student reads the same tokens at
positions that skip. What is learned from it, ``chunked_loss.Taught``, keeps the base's abilities on text that is not
trained on, and gives the far chunk predictions that do not depend on how far it stands (self-distillation with frozen
weights: Zhang et al., "LongReD", ACL 2025, match hidden states instead). It costs a forward pass.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch.nn.functional import pad
from transformers import PretrainedConfig, PreTrainedModel

from skipwise.model.chunked_loss import Taught, output_layer, without_output_layer


class Teacher:
    """A frozen model with a window, asked for its predictions after each token of a batch.

    Args:
        model: on the student's device.
        window: the original length, in tokens; beyond it there is nothing to learn.
        frozen: makes ``model`` the frozen one inside its context, if it is the student itself (``inside``).
    """

    def __init__(
        self, model: PreTrainedModel, window: int, frozen: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        self._model, self._window, self._frozen = model, window, frozen

    @classmethod
    def inside(cls, student: Any, config: PretrainedConfig, window: int) -> "Teacher":
        """Return the base inside a student with LoRA, which takes no memory of its own.

        ``config`` is the base's, whose rotary frequencies stand in while it is asked.
        """
        rotary = [(part, name) for part in student.modules() for name, one in part.named_children() if _rotates(one)]
        stock = {(part, name): type(getattr(part, name))(config=config).to(student.device) for part, name in rotary}

        @contextmanager
        def frozen() -> Iterator[None]:
            kept = {place: getattr(*place) for place in stock}
            for place, module in stock.items():
                setattr(*place, module)
            try:
                with student.disable_adapter():
                    yield
            finally:
                for place, module in kept.items():
                    setattr(*place, module)

        return cls(student, window, frozen)

    @torch.no_grad()
    def taught(self, ids: torch.Tensor, weights: torch.Tensor, *, logits: bool = False) -> Taught:
        """Read a batch, ids and weights [examples, tokens]; return what it predicts there, as all ``logits`` if asked."""
        was_training = self._model.training
        read = ids[:, : self._window]
        try:
            with self._frozen(), nullcontext() if logits else without_output_layer(self._model):
                states = self._model.eval()(
                    input_ids=read, attention_mask=torch.ones_like(read), use_cache=False
                ).logits
                head = None if logits else output_layer(self._model)
                matrix = None if head is None else cast(torch.Tensor, head.weight).detach()
                bias = getattr(head, "bias", None)
        finally:
            self._model.train(was_training)
        beyond = ids.shape[1] - read.shape[1]
        weights = weights.clone()
        weights[:, self._window :] = 0
        return Taught(pad(states, (0, 0, 0, beyond)), matrix, bias, weights)


def _rotates(module: torch.nn.Module) -> bool:
    return any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False))
