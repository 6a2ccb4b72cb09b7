"""Greedy decoding behind cached keys and values: what prompts share is read once, and several are written together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from skipwise.data.spans import agreeing
from skipwise.evaluation.logits import not_finite
from skipwise.model.blocked_attention import keeps_float32
from skipwise.model.key_value_cache import CACHE, has_room, roomy_cache

# Tokens read at a time after cached ones. They need a mask over all tokens before them, and kernels that take a mask
# also compute what it hides: in one piece that would be twice the work. For the same reason a prompt that shares less
# than half of its tokens with the one before is read from its beginning, where no mask is needed.
_AT_ONCE = 1024

Finished = Callable[[list[int]], bool]  # whether what was written, of this prompt, is all that is asked for


@dataclass(frozen=True)
class Begun:
    """A prompt that was read, and the beginning of its answer, whose last id was not read yet."""

    written: list[int]
    most: int  # ids that may be written in all
    finished: Finished
    cached: list[tuple[torch.Tensor, torch.Tensor]]  # of each layer keys and values, [1, heads, tokens, size]

    @property
    def tokens(self) -> int:
        """How many tokens are cached."""
        return self.cached[0][0].shape[2]

    @property
    def bytes(self) -> int:
        """Of keys and values."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.cached)


class Reader:
    """A model with the token ids that it has read last, and their keys and values.

    Nothing is shared between prompts, and they are written one at a time, if a layer keeps only the last tokens (sliding
    attention) or a state (linear attention), because its cache cannot go back, or if frequencies may switch with the length
    (longrope).
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._ids: list[int] = []
        self._cache = roomy_cache(model.config)
        rope = getattr(model.config, "rope_parameters", None) or {}
        switches = rope.get("rope_type") == "longrope" and rope.get("short_factor") != rope.get("long_factor")
        self._switch = rope.get("original_max_position_embeddings") if switches else None
        self.goes_back = has_room(self._cache) and not switches

    @property
    def bytes(self) -> int:
        """Of keys and values; of a cache that goes back."""
        cached: Any = self._cache.layers
        return sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in cached)

    def begin(self, prompt: list[int], draft: list[int]) -> list[int]:
        """Return the ids that greedy decoding writes after ``prompt``: as many as agree with ``draft``, and one more.

        The draft is read together with the prompt, as in speculative decoding (Leviathan et al., 2023).
        """
        common = self._common(prompt)
        self._go_back(common if 2 * common >= len(prompt) else 0)
        likeliest = self._read((prompt + draft)[len(self._ids) :], len(draft) + 1)
        agreed = agreeing(draft, likeliest)
        return likeliest[: agreed + 1]

    def go_on(self, prompt: list[int], written: list[int], finished: Finished) -> list[int]:
        """Decode one id at a time behind ``written`` until it is ``finished``."""
        written = list(written)
        while not finished(written):
            self._go_back(len(prompt) + len(written) - 1)
            written += self._read((prompt + written)[len(self._ids) :], 1)
        return written

    def keep(self, prompt: list[int], written: list[int], most: int, finished: Finished) -> Begun:
        """Copy what the prompt just begun needs to be gone on with later, by ``go_on_together``."""
        tokens = len(prompt) + len(written) - 1
        cached: Any = self._cache.layers  # all of full attention, for else the reader would not go back
        layers = [(layer.keys[:, :, :tokens].clone(), layer.values[:, :, :tokens].clone()) for layer in cached]
        return Begun(list(written), most, finished, layers)

    def _common(self, prompt: list[int]) -> int:
        """How many ids from its beginning on need not be read again; at least one is read."""
        return agreeing(self._ids, prompt[:-1])

    def _go_back(self, tokens: int) -> None:
        """Forget all but the first ``tokens``; all, where the cache cannot go back."""
        if tokens == len(self._ids):
            return
        if not self.goes_back:
            tokens = 0
        if not tokens:
            self._cache = roomy_cache(self._model.config)
        elif tokens < len(self._ids):
            self._cache.crop(tokens - len(self._ids))
        del self._ids[tokens:]

    def _read(self, ids: list[int], wanted: int) -> list[int]:
        """Read on; after each of the last ``wanted`` ids the likeliest to follow."""
        if self._switch and len(self._ids) <= self._switch < len(self._ids) + len(ids):  # here the frequencies change
            ids = self._ids + ids
            self._go_back(0)
        likeliest: list[int] = []
        while ids:
            behind = len(self._ids)
            # What is read from the beginning needs no mask.
            size = _AT_ONCE if behind else len(ids)
            some, ids = ids[:size], ids[size:]
            self._ids += some
            row = torch.tensor([some], device=self._model.device)
            logits = self._model(
                input_ids=row,
                attention_mask=torch.ones(1, len(self._ids), dtype=torch.long, device=row.device),
                position_ids=torch.arange(behind, len(self._ids), device=row.device)[None],
                use_cache=True,
                logits_to_keep=min(wanted, len(some)),
                **{CACHE: self._cache},
            ).logits
            likeliest += _likeliest(logits[0])
        return likeliest[-wanted:]


def go_on_together(model: PreTrainedModel, begun: Sequence[Begun]) -> list[list[int]]:
    """Decode behind several begun answers at once, one id of each in a pass; return what was written, each whole.

    Shorter prompts are padded on the left; a mask hides that, and positions do not count it.
    """
    width, more = max(one.tokens for one in begun), max(one.most - len(one.written) for one in begun)
    cache = roomy_cache(model.config, width + more, torch.float32 if keeps_float32(model) else None)
    for number, layers in enumerate(zip(*(one.cached for one in begun), strict=True)):
        keys, values = (
            torch.cat([pad(states, (0, 0, width - states.shape[2], 0)) for states in part])
            for part in zip(*layers, strict=True)
        )
        cache.update(keys, values, number)
    positions = torch.tensor([one.tokens for one in begun], device=model.device)
    mask = (torch.arange(width + more, device=model.device) >= width - positions[:, None]).long()
    written, end = [list(one.written) for one in begun], width
    while unfinished := [i for i, one in enumerate(begun) if not one.finished(written[i])]:
        if 2 * len(unfinished) <= len(begun):  # less often would waste passes, more often copies
            rest = [_cut(begun[i], written[i], cache, i, end) for i in unfinished]
            for i, whole in zip(unfinished, go_on_together(model, rest), strict=True):
                written[i] = whole
            break
        last = torch.tensor([ids[-1:] for ids in written], device=model.device)
        logits = model(
            input_ids=last,
            attention_mask=mask[:, : end + 1],
            position_ids=positions[:, None],
            use_cache=True,
            **{CACHE: cache},
        ).logits
        positions, end = positions + 1, end + 1
        for i, id in zip(unfinished, _likeliest(logits[unfinished, -1]), strict=True):
            written[i].append(id)
    return written


def _likeliest(logits: torch.Tensor) -> list[int]:
    """The id of the largest of each row of logits [rows, vocabulary]. A NaN is refused, which torch would take for the largest."""
    if logits.isnan().any():
        raise not_finite()
    return logits.argmax(-1).tolist()


def _cut(begun: Begun, written: list[int], cache: Any, row: int, end: int) -> Begun:
    """A row of a cache that is filled up to ``end``, without what pads it."""
    begin = end - (begun.tokens + len(written) - len(begun.written))
    layers = [
        (layer.keys[row : row + 1, :, begin:end], layer.values[row : row + 1, :, begin:end]) for layer in cache.layers
    ]
    return replace(begun, written=written, cached=layers)
