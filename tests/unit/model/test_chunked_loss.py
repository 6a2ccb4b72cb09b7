import pytest
import torch

from skipwise.model import chunked_loss as subject
from skipwise.model.chunked_loss import can_be_sliced, in_slices, worth_chunking
from skipwise.model.lora import adapt
from skipwise.recipes.schema import Lora
from tests import families

CAPPED = {"gemma2"}  # logits through tanh


def batch() -> dict[str, torch.Tensor]:
    ids = torch.arange(80).view(2, 40) * 7 % 97
    labels = ids.clone()
    labels[0, ::3] = -100
    return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}


def gradients(model: torch.nn.Module, **more: object) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = model(**batch(), use_cache=False, **more).loss
    loss.backward()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    return loss.detach(), found


@pytest.mark.parametrize("items", [None, 50])
@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("family", families.NAMES)
def test_loss_and_gradients_are_those_of_the_stock_loss(
    family: str, adapted: bool, items: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "_SLICE_BYTES", 4 * 97 * 7)  # seven tokens a slice
    model = families.model(family).train()
    if adapted:
        model = adapt(model, Lora(rank=2, also=["norms"]))
    more = {} if items is None else {"num_items_in_batch": items}
    loss, wanted = gradients(model, **more)
    assert can_be_sliced(model) == (family not in CAPPED)
    if family in CAPPED:
        return
    with in_slices(model):
        sliced, found = gradients(model, **more)
    torch.testing.assert_close(sliced, loss, rtol=1e-6, atol=0)
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-6)
    after, _ = gradients(model, **more)
    assert torch.equal(after, loss)
    assert model(**batch()).logits.shape[-1] == 97  # the output layer is itself again


def test_no_more_than_a_slice_of_logits_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_SLICE_BYTES", 4 * 97 * 7)
    seen: list[int] = []
    stock = torch.nn.functional.cross_entropy
    monkeypatch.setattr(
        subject, "cross_entropy", lambda logits, *a, **k: seen.append(len(logits)) or stock(logits, *a, **k)
    )
    model = families.model("llama").train()
    with in_slices(model):
        gradients(model)
    assert max(seen) == 7
    assert sum(seen) == 2 * 80  # forward, and again in backward


def test_an_output_layer_with_additions_is_not_sliced() -> None:
    """They begin at zero, so that no difference would show; and would never be trained."""
    model = adapt(families.model("llama").train(), Lora(rank=2, targets=["lm_head"]))
    assert not can_be_sliced(model)


def test_only_logits_that_weigh_are_cut() -> None:
    assert not worth_chunking(16 * 256, 4096)
    assert not worth_chunking(2048, 32_000)
    assert worth_chunking(16_384, 151_936)
