from io import StringIO

import pytest
import torch

from skipwise.model import forward, lora
from skipwise.model.forward import can_be_sliced, choose_precision, in_slices, weights_precision
from skipwise.recipes.schema import Lora
from tests import families
from tests.tiny import llama

CAPPED = {"gemma2"}  # logits through tanh


@pytest.mark.parametrize(
    ("maker", "flags", "expected"),
    [
        ("GenuineIntel", "avx512f", "float32"),
        ("GenuineIntel", "avx512f avx512_bf16", "float32"),
        ("GenuineIntel", "avx512f avx512_bf16 amx_bf16", "bf16"),
        ("AuthenticAMD", "avx512f avx512_bf16", "bf16"),
        ("AuthenticAMD", "avx2", "float32"),
    ],
)
def test_precision_by_the_cpu(monkeypatch, maker, flags, expected):
    core = f"processor\t: 0\nvendor_id\t: {maker}\nflags\t\t: fpu {flags}\nbugs\t\t: amx_bf16\n"
    described = f"{core}\n{core.replace(flags, 'amx_bf16')}\n"
    monkeypatch.setattr(forward, "open", lambda *_, **__: StringIO(described), raising=False)
    assert choose_precision("auto", "cpu") == expected
    assert choose_precision("float32", "cpu") == "float32"
    assert choose_precision("bf16", "cpu") == "bf16"


@pytest.mark.parametrize(("native", "expected"), [(True, "bf16"), (False, "fp16")])
def test_precision_by_the_gpu(monkeypatch, native, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native)
    assert choose_precision("auto", "cuda") == expected
    assert choose_precision("fp16", "cuda") == "fp16"
    assert choose_precision("auto", "mps") == "float32"


def test_the_precision_of_an_adapted_model_is_that_of_its_frozen_weights():
    model = llama().to(torch.bfloat16)
    assert weights_precision(llama()) == "float32"
    assert weights_precision(model) == "bf16"
    assert weights_precision(lora.adapt(model, Lora())) == "bf16"


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
    monkeypatch.setattr(forward, "_SLICE_BYTES", 4 * 97 * 7)  # seven tokens a slice
    model = families.model(family).train()
    if adapted:
        model = lora.adapt(model, Lora(r=2, modules_to_save=["norms"]))
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


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the logits whose softmax is computed, seven tokens a slice."""
    shapes: list[tuple[int, ...]] = []
    stock = forward._to_gradients
    monkeypatch.setattr(forward, "_SLICE_BYTES", 4 * 97 * 7)
    monkeypatch.setattr(forward, "_to_gradients", lambda x, *rest: shapes.append(tuple(x.shape)) or stock(x, *rest))
    return shapes


def test_no_more_than_a_slice_of_logits_is_held_and_none_is_computed_twice(seen) -> None:
    model = families.model("llama").train()
    with in_slices(model):
        gradients(model)
    assert seen == [(7, 97)] * 11 + [(3, 97)]


def test_weights_that_are_frozen_get_no_gradient(seen) -> None:
    model = families.model("llama").train()
    model.get_output_embeddings().weight.requires_grad_(False)
    with in_slices(model):
        _, found = gradients(model)
    assert "lm_head.weight" not in found
    assert found["model.norm.weight"].abs().sum() > 0
    with in_slices(model), torch.no_grad():
        model(**batch(), use_cache=False)
    assert len(seen) == 24


def test_gradients_are_scaled_as_the_loss_is() -> None:
    model = families.model("llama").train()
    _, wanted = gradients(model)
    model.zero_grad()
    with in_slices(model):
        loss = model(**batch(), use_cache=False).loss
    (3 * loss).backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, 3 * wanted[name], rtol=1e-4, atol=1e-6)


def test_an_output_layer_with_additions_is_not_sliced() -> None:
    """They begin at zero, so that no difference would show; and would never be trained."""
    model = lora.adapt(families.model("llama").train(), Lora(r=2, target_modules=["lm_head"]))
    assert not can_be_sliced(model)
