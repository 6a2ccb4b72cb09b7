"""Layers that slide see by position: as the stock model where nothing skips, against a loop over pairs where it does."""

import pytest
import torch
from transformers import PreTrainedModel

from skipwise.model.sliding import attention_masks
from tests import families

SLIDE = 16
IDS = torch.arange(96)[None] * 7 % 89 + 3
SKIPPED = torch.cat([torch.arange(40), torch.arange(150, 206)])[None]
FAMILIES = [("gemma2", "eager"), ("gemma3", "eager"), ("gemma3", "sdpa")]


def model_of(family: str, attention: str) -> PreTrainedModel:
    return families.model(family, attention).eval()


def masks_at(model: PreTrainedModel, positions: torch.Tensor):
    return attention_masks(model, torch.ones_like(positions), positions)


def logits(model: PreTrainedModel, ids: torch.Tensor, positions: torch.Tensor, mask) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False).logits


@pytest.mark.parametrize(("family", "attention"), FAMILIES)
def test_without_a_skip_it_is_the_stock_model(family: str, attention: str) -> None:
    model, positions = model_of(family, attention), torch.arange(96)[None]
    stock = logits(model, IDS, positions, torch.ones_like(positions))
    torch.testing.assert_close(logits(model, IDS, positions, masks_at(model, positions)), stock)


@pytest.mark.parametrize(("family", "attention"), FAMILIES)
def test_each_token_sees_those_that_it_should(family: str, attention: str) -> None:
    model = model_of(family, attention)
    masks = masks_at(model, SKIPPED)
    n = SKIPPED.shape[1]
    seen = {kind: torch.zeros(n, n, dtype=torch.bool) for kind in ("full_attention", "sliding_attention")}
    for query in range(n):
        for key in range(query + 1):
            seen["full_attention"][query, key] = True
            seen["sliding_attention"][query, key] = bool(SKIPPED[0, query] - SKIPPED[0, key] < SLIDE)
    for kind, wanted in seen.items():
        mask = masks[kind]
        if mask is None:  # causal by the kernel's own flag
            assert wanted.equal(torch.ones(n, n, dtype=torch.bool).tril())
            continue
        shown = mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] == 0
        assert shown.equal(wanted)


@pytest.mark.parametrize(("family", "attention"), FAMILIES)
def test_a_sliding_layer_does_not_see_over_a_skip_and_the_model_does(family: str, attention: str) -> None:
    """The first layer slides, the second attends to all; what changes is the last token before the skip."""
    model = model_of(family, attention)
    assert model.config.layer_types == ["sliding_attention", "full_attention"]
    other = IDS.clone()
    other[0, 39] += 1
    found: dict[str, torch.Tensor] = {}
    model.model.layers[0].register_forward_hook(
        lambda layer, inputs, output: found.update(layer=output[0] if isinstance(output, tuple) else output)
    )
    for mask, seen in ((torch.ones_like(SKIPPED), True), (masks_at(model, SKIPPED), False)):
        first, ours = logits(model, IDS, SKIPPED, mask), found["layer"]
        second, theirs = logits(model, other, SKIPPED, mask), found["layer"]
        assert bool((ours[:, 40:] != theirs[:, 40:]).any()) is seen
        assert (first[:, 40:] != second[:, 40:]).any()


def test_other_models_keep_their_mask() -> None:
    mask = torch.ones_like(SKIPPED)
    assert attention_masks(families.model("llama"), mask, SKIPPED) is mask
    flash = families.model("gemma3")
    flash.config._attn_implementation = "flash_attention_2"
    assert attention_masks(flash, mask, SKIPPED) is mask
