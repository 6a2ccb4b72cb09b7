"""A teacher: the frozen base, which says of each training example what the model before its extension would predict.

It reads the first chunk of an example inside its own window, where it and the student have read the same tokens. What is
learned from it, ``chunked_loss.Taught``, keeps what the base knew of text that is not trained on (matching the hidden
states of a frozen base, for the same purpose: Dong et al., "LongReD", arXiv:2502.07365). Behind the first chunk it must not teach:
without the chunk before, it teaches not to read far; with it, that what stands far is near. It costs a forward pass of the
first chunk, on average half of an example.
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
        """Read a batch, ids and weights [examples, tokens]; return what it predicts there, as all ``logits`` if asked.

        It reads no further than the last token with a weight, nor beyond its window, where weights count as 0.
        """
        model, was_training = self._model, self._model.training
        end = min(int(weights.any(0).nonzero().max()) + 1, self._window)
        read, beyond = ids[:, :end], ids.shape[1] - end
        try:
            with self._frozen(), nullcontext() if logits else without_output_layer(model):
                states = model.eval()(input_ids=read, attention_mask=torch.ones_like(read), use_cache=False).logits
                head = None if logits else output_layer(model)
                matrix = None if head is None else cast(torch.Tensor, head.weight).detach()
                bias = getattr(head, "bias", None)
        finally:
            model.train(was_training)
        return Taught(pad(states, (0, 0, 0, beyond)), matrix, bias, pad(weights[:, :end], (0, beyond)))


def _rotates(module: torch.nn.Module) -> bool:
    return any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False))
