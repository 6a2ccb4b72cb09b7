"""Greedy decoding with a KV cache: shared prefixes are read once, and long answers are decoded in batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from skipwise.data.spans import agreeing
from skipwise.evaluation.perplexity import not_finite
from skipwise.model.blocked_attention import keeps_float32
from skipwise.model.key_value_cache import CACHE, has_room, roomy_cache

# Tokens read at a time after cached tokens. They need a mask, and kernels with a mask also compute the hidden part: in one piece
# that doubles the work. For the same reason a prompt that shares less than half of its tokens with the cache is read from the
# start, where no mask is needed.
_AT_ONCE = 1024

Finished = Callable[[list[int]], bool]  # whether the ids of an answer finish it


@dataclass(frozen=True)
class Begun:
    """A prompt in the cache and the beginning of its answer; the last id is not in the cache."""

    written: list[int]
    most: int  # ids of the answer, at most
    finished: Finished
    cached: list[tuple[torch.Tensor, torch.Tensor]]  # keys and values of each layer, [1, heads, tokens, size]

    @property
    def tokens(self) -> int:
        """Cached tokens."""
        return self.cached[0][0].shape[2]

    @property
    def bytes(self) -> int:
        """Bytes of keys and values."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.cached)


class Reader:
    """A model with its KV cache and the token ids in the cache.

    Prefixes are not shared, and answers not batched, if the cache cannot be cropped (sliding or linear attention), or if
    frequencies switch with the length (longrope).
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
        """Bytes of keys and values of a cache that can be cropped."""
        cached: Any = self._cache.layers
        return sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in cached)

    def begin(self, prompt: list[int], draft: list[int]) -> list[int]:
        """Prefill: return the greedy ids after ``prompt`` that agree with ``draft``, and one more.

        The draft is read with the prompt, as in speculative decoding (Leviathan et al., 2023).
        """
        common = self._common(prompt)
        self._go_back(common if 2 * common >= len(prompt) else 0)
        likeliest = self._read((prompt + draft)[len(self._ids) :], len(draft) + 1)
        agreed = agreeing(draft, likeliest)
        return likeliest[: agreed + 1]

    def go_on(self, prompt: list[int], written: list[int], finished: Finished) -> list[int]:
        """Decode one id at a time after ``written`` until it is ``finished``."""
        written = list(written)
        while not finished(written):
            self._go_back(len(prompt) + len(written) - 1)
            written += self._read((prompt + written)[len(self._ids) :], 1)
        return written

    def keep(self, prompt: list[int], written: list[int], most: int, finished: Finished) -> Begun:
        """Copy the cache of the current prompt, for ``go_on_together``."""
        tokens = len(prompt) + len(written) - 1
        cached: Any = self._cache.layers  # of full attention, since the cache can be cropped
        layers = [(layer.keys[:, :, :tokens].clone(), layer.values[:, :, :tokens].clone()) for layer in cached]
        return Begun(list(written), most, finished, layers)

    def _common(self, prompt: list[int]) -> int:
        """Return the length of the cached prefix of ``prompt``; at least one id is left to read."""
        return agreeing(self._ids, prompt[:-1])

    def _go_back(self, tokens: int) -> None:
        """Crop the cache to its first ``tokens``, or empty it if it cannot be cropped."""
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
        """Read ``ids``; return the likeliest next id after each of the last ``wanted``."""
        if self._switch and len(self._ids) <= self._switch < len(self._ids) + len(ids):  # here the frequencies change
            ids = self._ids + ids
            self._go_back(0)
        likeliest: list[int] = []
        while ids:
            cached = len(self._ids)
            # What is read from the beginning needs no mask.
            size = _AT_ONCE if cached else len(ids)
            some, ids = ids[:size], ids[size:]
            self._ids += some
            row = torch.tensor([some], device=self._model.device)
            logits = self._model(
                input_ids=row,
                attention_mask=torch.ones(1, len(self._ids), dtype=torch.long, device=row.device),
                position_ids=torch.arange(cached, len(self._ids), device=row.device)[None],
                use_cache=True,
                logits_to_keep=min(wanted, len(some)),
                **{CACHE: self._cache},
            ).logits
            likeliest += _likeliest(logits[0])
        return likeliest[-wanted:]


def go_on_together(model: PreTrainedModel, begun: Sequence[Begun]) -> list[list[int]]:
    """Decode several answers in a batch; return the complete ids of each.

    Shorter prompts are padded on the left; a mask hides the padding, and positions do not count it.
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
    """Return the argmax of each row of logits [rows, vocabulary]; NaN, which torch takes for the largest, is an error."""
    if logits.isnan().any():
        raise not_finite()
    return logits.argmax(-1).tolist()


def _cut(begun: Begun, written: list[int], cache: Any, row: int, end: int) -> Begun:
    """Return one row of a cache that is filled up to ``end``, without its padding."""
    begin = end - (begun.tokens + len(written) - len(begun.written))
    layers = [
        (layer.keys[row : row + 1, :, begin:end], layer.values[row : row + 1, :, begin:end]) for layer in cache.layers
    ]
    return replace(begun, written=written, cached=layers)
