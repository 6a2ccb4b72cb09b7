"""Prove on the model, precision and attention of a run that chunks attend to each other.

Some code paths cut chunks from each other without an error: they read a skip of the positions as the start of another packed
document. The loss stays plausible, and the model learns nothing about distance. So before training the probe changes the
tokens of one chunk, and requires that the logits of every later chunk change and those of earlier ones do not.
"""

from dataclasses import dataclass
from itertools import product

import torch
from transformers import PreTrainedModel

from skipwise.errors import ModelError
from skipwise.method.lengths import parse_length
from skipwise.model.config import experts_of
from skipwise.model.forward import AUTOCAST, autocast, in_mode, random_state_kept, trial_ids

_CHUNK = 8  # tokens
_CHUNKS = 3  # with two chunks, a kernel that cuts at all jumps but one could pass


@dataclass(frozen=True)
class Probe:
    """Changes of logits over all pairs of chunks."""

    attention: str
    precision: str
    forward: float  # smallest change of a later chunk's logits; above 0
    backward: float  # largest change of an earlier chunk's logits; 0 or rounding (experts) in a causal model


def probe_connectivity(model: PreTrainedModel, target_length: int | str, *, precision: str = "float32") -> Probe:
    """Run the model as training does (train mode, no cache, mask of ones) on three chunks with skipped positions.

    Args:
        model: any causal model that takes ``position_ids``.
        target_length: L_t in tokens, as 32768 or "32k"; the last chunk ends there.
        precision: bf16 or fp16 autocast, as in training; float32 computes in the dtype of the weights.

    Raises:
        ModelError: logits are not finite, a chunk does not attend to an earlier one, or attends to a later one.
    """
    target = parse_length(target_length)
    device, vocabulary = model.device, model.config.get_text_config().vocab_size
    ids = trial_ids(model, _CHUNK * _CHUNKS)
    starts = torch.linspace(0, target - _CHUNK, _CHUNKS, device=device).long()
    positions = (starts[:, None] + torch.arange(_CHUNK, device=device)).reshape(1, -1)
    mask = torch.ones_like(positions)
    base = _logits(model, ids, positions, mask, precision)
    changes = []
    for chunk in range(_CHUNKS):
        other = ids.clone().view(_CHUNKS, _CHUNK)
        other[chunk] = (other[chunk] + 1) % vocabulary
        change = (_logits(model, other.view(1, -1), positions, mask, precision) - base).abs()
        changes.append(change.view(_CHUNKS, _CHUNK, -1).amax(dim=(1, 2)))
    if not torch.isfinite(base).all():
        raise ModelError(
            "the model's logits are not finite. Get an undamaged copy, or set training.precision=float32 if the weights are finite"
        )
    change = torch.stack(changes).cpu()  # [changed chunk, observed chunk]
    pairs = list(product(range(_CHUNKS), repeat=2))
    probe = Probe(
        attention=model.config._attn_implementation,
        precision=precision if AUTOCAST[precision] else str(model.dtype).removeprefix("torch."),
        forward=min(change[a, b].item() for a, b in pairs if a < b),
        backward=max(change[a, b].item() for a, b in pairs if a > b),
    )
    _require_causal_connection(probe, _rounding(model, base))
    return probe


def require_apart(
    model: PreTrainedModel,
    ids: torch.Tensor,
    positions: torch.Tensor,
    mask: torch.Tensor,
    *,
    precision: str = "float32",
) -> None:
    """Require that the texts of a packed window do not attend to each other.

    Args:
        model: the training model.
        ids: int64 [examples, tokens].
        positions: int64 [examples, tokens].
        mask: bool [examples, 1, tokens, tokens], from ``windows.apart``.
        precision: bf16 or fp16 autocast, as in training; float32 computes in the dtype of the weights.

    Raises:
        ModelError: another text's logits change, because an attention kernel ignores such a mask.
    """
    several = (~mask[:, 0, -1, 0]).nonzero()[:, 0]
    if not len(several):
        return
    one = several[:1]
    ids, positions, mask = ids[one], positions[one], mask[one]
    begin = int(mask[0, 0, :, 0].sum())  # of the second text
    other = ids.clone()
    other[:, :begin] = (other[:, :begin] + 1) % model.config.get_text_config().vocab_size
    before, after = (_logits(model, text, positions, mask, precision, begin) for text in (ids, other))
    if (change := (after - before).abs().max()) > _rounding(model, before):
        raise ModelError(
            f"packed documents attend to each other under {model.config._attn_implementation} attention: a change in one changed "
            f"the logits of another by {change:g}. Leave shorter documents out: set data.min_tokens={ids.shape[1]}"
        )


def _logits(
    model: PreTrainedModel,
    ids: torch.Tensor,
    positions: torch.Tensor,
    mask: torch.Tensor,
    precision: str,
    begin: int = 0,
) -> torch.Tensor:
    """Run the model in training mode on ``ids`` [1, tokens], with equal dropout at every call.

    Returns:
        float32 [tokens from ``begin`` on, vocabulary].
    """
    with in_mode(model, training=True), torch.no_grad(), random_state_kept(model.device):
        torch.manual_seed(0)
        with autocast(model.device, precision):
            out = model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False)
    return out.logits[0, begin:].float()


def _rounding(model: PreTrainedModel, logits: torch.Tensor) -> float:
    """Return how far rounding may move the logits of a mixture of experts.

    Tokens that are not attended to change how many rows an expert multiplies: 1e-6 of the logits' deviation in float32, up to
    2e-3 in bf16.
    """
    return 0.02 * logits.std().item() if experts_of(model.config.get_text_config()) else 0.0


def _require_causal_connection(probe: Probe, rounding: float) -> None:
    if probe.backward > rounding:
        raise ModelError(
            f"the model is not causal: a later chunk changed an earlier one's logits by {probe.backward:g}. PoSE trains next-token "
            "prediction; choose a causal model"
        )
    if not probe.forward > rounding / 4:  # above rounding, below the change by an attended token
        raise ModelError(
            f"chunks do not attend to each other under {probe.attention} attention, so training would learn nothing about "
            "distance. Pass an attention_mask of ones with every batch, or choose another attention implementation"
        )
