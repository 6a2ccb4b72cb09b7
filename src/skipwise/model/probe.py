"""Proof, on this very model, precision and attention kernel, that chunks attend to each other.

Frameworks cut them silently: a jump of the positions looks like the border of a packed document, the loss
stays plausible, and nothing about distance is learned. So before any training, change the text of one chunk
and require the logits of every later chunk to change, and of every earlier chunk to stay.
"""

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import product

import torch
from transformers import PreTrainedModel

from skipwise.errors import ModelError
from skipwise.model.sliding import attention_masks

_CHUNK = 8  # tokens
_CHUNKS = 3  # with two, a kernel that cuts at every jump but one could pass


@dataclass(frozen=True)
class Probe:
    """What the probe saw.

    Attributes:
        attention: the attention implementation of the model.
        precision: of the forward pass.
        forward: the least change, over pairs of chunks, of a later chunk's logits; above 0.
        backward: the largest change of an earlier chunk's logits; 0 for a causal model.
    """

    attention: str
    precision: str
    forward: float
    backward: float

    def as_dict(self) -> dict[str, object]:
        """For ``run.json``."""
        return asdict(self)


def probe_connectivity(
    model: PreTrainedModel,
    target_length: int,
    *,
    precision: torch.dtype | None = None,
    attention_mask: bool = True,
) -> Probe:
    """Run the model as training does (train mode, no cache, mask of ones) on three skipped chunks.

    Args:
        model: any causal model that takes ``position_ids``.
        target_length: L_t in tokens; the last chunk ends there.
        precision: autocast type, as in training; None for the weights' own.
        attention_mask: False shows the trap, for tests: a stock model without the mask fails.

    Raises:
        ModelError: logits are not finite, a chunk does not see an earlier one, or sees a later one.
    """
    device = model.device
    ids = (torch.arange(_CHUNK * _CHUNKS, device=device) * 7 + 3) % model.config.vocab_size
    starts = torch.linspace(0, target_length - _CHUNK, _CHUNKS, device=device).long()
    positions = (starts[:, None] + torch.arange(_CHUNK, device=device)).reshape(1, -1)
    mask = attention_masks(model, torch.ones_like(positions), positions) if attention_mask else None
    autocast = torch.autocast(device.type, precision) if precision else nullcontext()

    def logits(tokens: torch.Tensor) -> torch.Tensor:  # [chunks, chunk, vocabulary]
        torch.manual_seed(0)  # the same dropout in every pass
        with autocast:
            out = model(input_ids=tokens[None], position_ids=positions, attention_mask=mask, use_cache=False)
        return out.logits[0].float().view(_CHUNKS, _CHUNK, -1)

    was_training = model.training
    model.train()
    with torch.no_grad(), torch.random.fork_rng():
        base = logits(ids)
        changes = []
        for chunk in range(_CHUNKS):
            other = ids.clone().view(_CHUNKS, _CHUNK)
            other[chunk] = (other[chunk] + 1) % model.config.vocab_size
            changes.append((logits(other.flatten()) - base).abs().amax(dim=(1, 2)))
    model.train(was_training)
    if not torch.isfinite(base).all():
        raise ModelError(
            "the model's logits are not finite; its weights hold NaN or infinity: take a whole copy of it, or "
            "training.precision=float32 if they are finite but overflow in fp16"
        )
    change = torch.stack(changes).cpu()  # [changed chunk, looking chunk]
    pairs = list(product(range(_CHUNKS), repeat=2))
    probe = Probe(
        attention=model.config._attn_implementation,
        precision=str(precision or model.dtype).removeprefix("torch."),
        forward=min(change[a, b].item() for a, b in pairs if a < b),
        backward=max(change[a, b].item() for a, b in pairs if a > b),
    )
    _require_causal_connection(probe)
    return probe


def _require_causal_connection(probe: Probe) -> None:
    if not probe.forward > 0:
        raise ModelError(
            f"chunks do not attend to each other under {probe.attention} attention: changing one left the logits "
            "of a later one as they were. Pass attention_mask of ones with every batch, or choose another attention "
            "implementation; training would learn nothing about distance"
        )
    if probe.backward > 0:
        raise ModelError(
            f"the model is not causal: a later chunk changed an earlier one's logits by {probe.backward:g}; "
            "PoSE trains next-token prediction"
        )
