import pytest
import torch

from skipwise.model import chunked_loss as subject
from skipwise.model.chunked_loss import Taught, can_be_sliced, in_slices, with_terms, worth_chunking
from skipwise.model.lora import adapt
from skipwise.model.teacher import Teacher
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


def taught_by(family: str, *, logits: bool = False) -> Taught:
    """What another model of the family predicts, which counts by 0, 0.5 or 2 from token to token."""
    torch.manual_seed(7)
    teacher = families.model(family).eval()
    with torch.no_grad():
        for weight in teacher.parameters():
            weight += 0.3 * torch.randn_like(weight)
    weights = torch.tensor([0.0, 0.5, 2.0])[torch.arange(80).view(2, 40) % 3]
    return Teacher(teacher, 32).taught(batch()["input_ids"], weights, logits=logits)


@pytest.mark.parametrize("family", families.NAMES)
def test_a_teachers_term_is_the_divergence_from_it(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against float64, by its definition, over all logits; the teacher's window of 32 ends before the example."""
    monkeypatch.setattr(subject, "_SLICE_BYTES", 4 * 97 * 7)
    monkeypatch.setattr(subject, "_CACHE_BYTES", 4 * 97 * 3)
    model = families.model(family).train()
    taught, items = taught_by(family), 50
    known = torch.log_softmax(taught_by(family, logits=True).states.double(), -1)
    weights = taught.weights.clone()
    assert weights[:, 32:].count_nonzero() == 0 < weights.count_nonzero()
    weights[:, -1] = 0
    out = model(**batch(), use_cache=False, num_items_in_batch=items)
    scores = torch.log_softmax(out.logits.double(), -1)
    wanted = out.loss + ((known.exp() * (known - scores)).sum(-1) * weights).sum() / items
    wanted.backward()
    gradients_wanted = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    whole = with_terms(model, taught_by(family, logits=True))
    for context in [whole] if family in CAPPED else [whole, in_slices(model, taught)]:
        with context:
            loss, found = gradients(model, num_items_in_batch=items)
        torch.testing.assert_close(loss.double(), wanted.detach(), rtol=1e-6, atol=0)
        for name, one in gradients_wanted.items():
            torch.testing.assert_close(found[name], one, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("taught", [False, True])
@pytest.mark.parametrize("family", families.NAMES)
def test_weights_of_labels_multiply_their_losses(family: str, taught: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against float64, by definition; the weight of a label is at the label's place, one behind what predicts it."""
    monkeypatch.setattr(subject, "_SLICE_BYTES", 4 * 97 * 7)
    monkeypatch.setattr(subject, "_CACHE_BYTES", 4 * 97 * 3)
    model, items = families.model(family).train(), 50
    weights = torch.tensor([1.0, 0.0, 5.0, 0.25])[torch.arange(80).view(2, 40) % 4]
    labels = batch()["labels"][:, 1:]
    out = model(**batch(), use_cache=False)
    scores = torch.log_softmax(out.logits[:, :-1].double(), -1)
    kept = labels != -100
    told = -scores.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    wanted = (told * weights[:, 1:] * kept).sum() / items
    if taught:
        known, share = (one[:, :-1] for one in (taught_by(family, logits=True).states, taught_by(family).weights))
        known = torch.log_softmax(known.double(), -1)
        wanted = wanted + ((known.exp() * (known - scores)).sum(-1) * share).sum() / items
    wanted.backward()
    gradients_wanted = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    whole = with_terms(model, taught_by(family, logits=True) if taught else None, weights)
    sliced = in_slices(model, taught_by(family) if taught else None, weights)
    for context in [whole] if family in CAPPED else [whole, sliced]:
        with context:
            loss, found = gradients(model, num_items_in_batch=items)
        torch.testing.assert_close(loss.double(), wanted.detach(), rtol=1e-6, atol=0)
        for name, one in gradients_wanted.items():
            torch.testing.assert_close(found[name], one, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_teachers_term_in_bf16_is_near_that_in_float32(family: str) -> None:
    """Under autocast, as in training on a GPU; the sums stay float32."""
    model, taught = families.model(family).train(), taught_by(family)
    with in_slices(model, taught):
        loss, wanted = gradients(model)
        with torch.autocast("cpu", torch.bfloat16):
            low, found = gradients(model)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, loss, rtol=1e-2, atol=0)
    for name, one in wanted.items():
        assert torch.cosine_similarity(found[name].flatten(), one.flatten(), dim=0) > 0.98, name


def test_nothing_is_learned_from_a_teacher_after_the_last_token() -> None:
    model, taught = families.model("llama").train(), taught_by("llama")
    only_last = torch.zeros_like(taught.weights)
    only_last[:, -1] = 1
    plain, _ = gradients(model)
    for context in (in_slices, with_terms):
        given = taught_by("llama", logits=context is with_terms)
        with context(model, Taught(given.states, given.matrix, given.bias, only_last)):
            assert gradients(model)[0] == pytest.approx(plain.item(), rel=1e-6)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the logits whose softmax is computed, seven tokens a slice."""
    shapes: list[tuple[int, ...]] = []
    stock = subject._softmax
    monkeypatch.setattr(subject, "_SLICE_BYTES", 4 * 97 * 7)
    monkeypatch.setattr(subject, "_softmax", lambda x: shapes.append(tuple(x.shape)) or stock(x))
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
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_an_output_layer_with_additions_is_not_sliced() -> None:
    """They begin at zero, so that no difference would show; and would never be trained."""
    model = adapt(families.model("llama").train(), Lora(rank=2, targets=["lm_head"]))
    assert not can_be_sliced(model)


def test_only_logits_that_weigh_are_cut() -> None:
    assert not worth_chunking(2048, 32_000, "cuda")
    assert worth_chunking(16_384, 151_936, "cuda")
    assert worth_chunking(2048, 32_000, "cpu")
    assert not worth_chunking(4 * 256, 4096, "cpu")
