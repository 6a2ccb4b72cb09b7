"""A teacher: the frozen base, which says of each training example what the model before its extension would predict.

It reads the first chunk of an example inside its own window, where it and the student have read the same tokens. What is
learned from it, ``chunked_loss.Taught``, keeps what the base knew of text that is not trained on (matching the hidden
states of a frozen base, for the same purpose: Dong et al., "LongReD", arXiv:2502.07365). Behind the first chunk it must
not teach. If it did not see the earlier chunk, the student would learn to ignore distant text. If it saw it, at positions without
the skip, the student would learn that distant text is close. It costs a forward pass of each
example that it teaches on, up to the first skip.

It can also write text of its own, which has of everything that it knew (Liu et al., "LLM-QAT: Data-Free Quantization Aware
Training for Large Language Models", arXiv:2305.17888, distil on such text). An example holds several of its texts, and it
reads each alone, as it wrote it: the student learns that what stands before has nothing to do with it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

from skipwise.model.blocked_attention import CACHE, attends_by_blocks, blocked_attention, keeps_float32, roomy_cache
from skipwise.model.chunked_loss import Taught, output_layer, without_output_layer
from skipwise.model.cost import token_bytes
from skipwise.model.precision import autocast, in_mode

_PASSES = 4  # at most, over parts of a batch
_WORTH_A_PASS = 1024  # tokens
_WRITTEN_AT_ONCE = 320  # texts
_WRITTEN_BYTES = 2**32  # of memory for them


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

    @property
    def vocabulary(self) -> int:
        """How many tokens it knows."""
        return int(self._model.config.get_text_config().vocab_size)

    @torch.no_grad()
    def taught(
        self,
        ids: torch.Tensor,
        weights: torch.Tensor,
        positions: torch.Tensor | None = None,
        *,
        logits: bool = False,
        sharded: bool = False,
    ) -> Taught | None:
        """Read a batch; return what it predicts there, as all ``logits`` if asked; None where nothing has a weight.

        Each text is read alone, no further than its last token with a weight, nor beyond the window, where weights count as 0.
        Texts that end alike are read together.

        Args:
            ids: int64 [examples, tokens].
            weights: float32 [examples, tokens].
            positions: at which the teacher reads, int64 [examples, tokens]; a text begins at each 0. Default: an example is one
                text.
            logits: return its logits, not the states before its output layer.
            sharded: its weights lie in several processes, which gather them together: then each makes as many passes, also
                over a batch without weights.
        """
        model = self._model
        places = torch.arange(ids.numel(), device=ids.device)
        positions = places % ids.shape[1] if positions is None else positions.flatten()
        weights = weights.flatten() * (positions < self._window)
        text = (positions == 0).cumsum(0) - 1  # to which each token belongs
        begins = (positions == 0).nonzero()[:, 0]
        lengths = torch.zeros_like(begins).scatter_reduce_(0, text, (weights != 0) * (positions + 1), "amax")
        if not (sharded or lengths.any()):
            return None
        groups = lengths.argsort().tensor_split(max(1, min(_PASSES, ids.numel() // _WORTH_A_PASS)))
        found: torch.Tensor | None = None
        states_only = nullcontext() if logits else without_output_layer(model)
        with self._frozen(), in_mode(model, training=False), states_only, blocked_attention(model):
            for texts in groups:
                group = texts[lengths[texts] > 0]
                if not (sharded or len(group)):
                    continue
                columns = torch.arange(int(lengths[group].max()) if len(group) else 1, device=ids.device)
                group = group if len(group) else begins.new_zeros(1)
                # Beside a longer text the columns run on past a text's end; what is read there is not used.
                rows = (begins[group, None] + columns).clamp(max=ids.numel() - 1)
                read = ids.flatten()[rows]
                states = model(input_ids=read, attention_mask=torch.ones_like(read), use_cache=False).logits
                if found is None:
                    found = states.new_zeros(ids.numel(), states.shape[-1])
                own = columns < lengths[group, None]
                found[rows[own]] = states[own]
            head = None if logits else output_layer(model)
            matrix = None if head is None else cast(torch.Tensor, head.weight).detach()
            bias = getattr(head, "bias", None)
        assert found is not None
        return Taught(found.view(*ids.shape, -1), matrix, bias, weights.view(ids.shape))

    @torch.no_grad()
    def write(
        self, starts: np.ndarray, length: int, seed: int, on_tokens: Callable[[int], object] = lambda tokens: None
    ) -> np.ndarray:
        """Go on with texts by tokens drawn from its own distribution: from ``starts`` [texts, tokens] to [texts, length].

        The end of a document does not end a text; what follows is another document, as in pre-training. ``on_tokens`` gets
        the number of tokens of each step. ``generate`` would mix in the checkpoint's own sampling settings.
        """
        model = self._model
        draws = torch.Generator(model.device).manual_seed(seed)
        begun = starts.shape[1]
        written = torch.from_numpy(np.pad(starts, ((0, 0), (0, length - begun)))).to(model.device)
        low = model.dtype == torch.bfloat16
        with (
            self._frozen(),
            in_mode(model, training=False),
            blocked_attention(model),
            # Where keys and values are kept in float32, some models multiply them by their bf16 weights.
            autocast(model.device, "bf16") if attends_by_blocks(model) and low else nullcontext(),
        ):
            kept = torch.float32 if keeps_float32(model) else None
            each = length * token_bytes(model.config, (kept or model.dtype).itemsize, cached=True)
            at_once = max(1, min(_WRITTEN_BYTES // each, _WRITTEN_AT_ONCE))
            for rows in written.split(at_once):
                cache = roomy_cache(model.config, length, kept)
                for end in range(begun, length):
                    unread = rows[:, :end] if end == begun else rows[:, end - 1 : end]
                    logits = model(input_ids=unread, use_cache=True, **{CACHE: cache}).logits[:, -1]
                    chances = logits.float().softmax(-1).cumsum(-1)  # multinomial takes ten times as long on a CPU
                    drawn = chances[:, -1:] * torch.rand(len(rows), 1, device=rows.device, generator=draws)
                    token = torch.searchsorted(chances, drawn, right=True)[:, 0]
                    rows[:, end] = token.clamp(max=chances.shape[1] - 1)
                    on_tokens(len(rows))
        return written.cpu().numpy()


def _rotates(module: torch.nn.Module) -> bool:
    return any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False))
