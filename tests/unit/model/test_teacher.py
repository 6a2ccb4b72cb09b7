import copy
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from skipwise.model import teacher as subject
from skipwise.model.config import load_config
from skipwise.model.extension import plan_extension, set_interpolation
from skipwise.model.loading import load_model
from skipwise.model.lora import adapt
from skipwise.model.teacher import Teacher
from skipwise.recipes.schema import Lora
from tests import families
from tests.tiny import checkpoint, llama

WINDOW = 64


def extended(family: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A base, and the same weights at interpolated positions with low-rank additions that are not zero."""
    base = families.model(family).eval()
    config = copy.deepcopy(base.config)
    plan = plan_extension(config, target_length=8 * WINDOW, interpolation="linear", existing_rope="replace")
    set_interpolation(config, plan)
    student = type(base)(config)
    student.load_state_dict(base.state_dict())
    student = adapt(student, Lora(rank=2, also=["norms"]))
    with torch.no_grad():
        for weight in student.parameters():
            if weight.requires_grad:
                weight += 0.1 * torch.randn_like(weight)
    return base, student.train()


@pytest.mark.parametrize("family", families.NAMES)
def test_the_base_inside_an_adapted_student_predicts_what_the_base_predicts(family: str) -> None:
    base, student = extended(family)
    ids = torch.arange(40)[None] * 7 % 97
    before = student(input_ids=ids).logits
    taught = Teacher.inside(student, base.config, WINDOW).taught(ids, torch.ones(1, 40), logits=True)
    torch.testing.assert_close(taught.states, base(input_ids=ids).logits, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(taught.states, before, atol=1e-2)
    assert student.training
    assert torch.equal(student(input_ids=ids).logits, before)  # it is itself again


def test_examples_are_read_to_their_last_taught_token_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """In groups of those that end alike; the predictions come back in the order of the batch."""
    base, lengths = families.model("llama").eval(), []
    monkeypatch.setattr(subject, "_WORTH_A_PASS", 40)
    base.register_forward_pre_hook(
        lambda model, args, given: lengths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    ids, ends = torch.arange(7 * 40).reshape(7, 40) % 97, torch.tensor([40, 3, 0, 25, 4, 0, 38])
    weights = (torch.arange(40) < ends[:, None]).float()
    taught = Teacher(base, WINDOW).taught(ids, weights, logits=True)
    assert lengths == [4, 38, 40]  # a group of texts without weights is left out
    expected = base(input_ids=ids).logits
    assert torch.equal(taught.weights, weights)
    for row, end in enumerate(ends):
        torch.testing.assert_close(taught.states[row, :end], expected[row, :end], rtol=1e-5, atol=1e-5)
    short = Teacher(base, 8).taught(ids, weights, logits=True)
    assert lengths[4:] == [4, 8, 8]
    assert torch.equal(short.weights, weights * (torch.arange(40) < 8))


def test_texts_that_share_an_example_are_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each equals a pass over that text alone."""
    base, lengths = families.model("llama").eval(), []
    monkeypatch.setattr(subject, "_WORTH_A_PASS", 20)
    ids = torch.arange(2 * 40).reshape(2, 40) * 11 % 97
    positions = torch.stack([torch.arange(40), torch.arange(40) % 15])
    weights = torch.stack([(torch.arange(40) < 20).float(), 2.0 * (torch.arange(40) % 15 < 14)])
    base.register_forward_pre_hook(
        lambda model, args, given: lengths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    taught = Teacher(base, WINDOW).taught(ids, weights, positions, logits=True)
    assert lengths == [10, 14, 14, 20]
    assert torch.equal(taught.weights, weights)
    for row, begin, end in ((0, 0, 20), (1, 0, 14), (1, 15, 29), (1, 30, 40)):
        alone = base(input_ids=ids[row : row + 1, begin:end]).logits[0]
        torch.testing.assert_close(taught.states[row, begin:end], alone, rtol=1e-5, atol=1e-5)
    lengths.clear()
    short = Teacher(base, 8).taught(ids, weights, positions, logits=True)
    assert lengths == [8, 8, 8, 8]
    assert torch.equal(short.weights, weights * (positions < 8))


def test_what_has_no_weight_is_read_only_where_processes_gather_weights_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base, lengths = families.model("llama").eval(), []
    monkeypatch.setattr(subject, "_WORTH_A_PASS", 20)
    base.register_forward_pre_hook(
        lambda model, args, given: lengths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    ids, weights = torch.zeros(4, 40, dtype=torch.long), torch.zeros(4, 40)
    assert Teacher(base, WINDOW).taught(ids, weights) is None
    assert lengths == []
    none = Teacher(base, WINDOW).taught(ids, weights, sharded=True)
    assert none is not None
    assert none.weights.count_nonzero() == 0
    assert lengths == [1, 1, 1, 1]
    weights[2, :7] = 1
    lengths.clear()
    some = Teacher(base, WINDOW).taught(ids, weights)
    assert lengths == [7]
    lengths.clear()
    all_passes = Teacher(base, WINDOW).taught(ids, weights, sharded=True)
    assert lengths == [1, 1, 1, 7]
    assert torch.equal(some.states[2, :7], all_passes.states[2, :7])


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
def test_asking_a_base_in_4_bits_leaves_the_students_gradients(tmp_path) -> None:
    """On some CPUs a pass without gradients would pack the weights anew, into what has none."""
    folder = checkpoint(tmp_path / "base", window=WINDOW, hidden_size=128, intermediate_size=256)
    ids, found = torch.arange(40)[None] * 7 % 97, []
    for asked in (False, True):
        student = adapt(load_model(str(folder), four_bits=True), Lora(rank=2))
        for name, weight in student.named_parameters():
            if "lora_B" in name:
                torch.nn.init.ones_(weight)
        if asked:
            Teacher.inside(student, load_config(str(folder)), WINDOW).taught(ids, torch.ones(1, 40))
        student(input_ids=ids, labels=ids).loss.backward()
        found.append({name: weight.grad for name, weight in student.named_parameters() if weight.requires_grad})
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", families.NAMES)
def test_texts_are_drawn_from_the_bases_own_distribution(family: str) -> None:
    """The same draws without a cache, from the base alone, with no sampling settings of a checkpoint."""
    base, student = extended(family)
    base.generation_config.update(do_sample=True, top_k=1, temperature=0.1)  # of which nothing may be left
    student.generation_config = base.generation_config
    starts = torch.tensor([[3, 5], [3, 8], [3, 2], [3, 90], [3, 5]])
    expected, draws = starts, torch.Generator().manual_seed(7)
    with torch.no_grad():
        for _ in range(10):
            chances = base(input_ids=expected, use_cache=False).logits[:, -1].softmax(-1)
            below = chances.cumsum(-1) <= torch.rand(5, 1, generator=draws)
            expected = torch.cat([expected, below.sum(-1, keepdim=True)], 1)
    told = []
    for teacher in (Teacher(base, WINDOW), Teacher.inside(student, base.config, WINDOW)):
        assert (teacher.write(starts.numpy(), 12, 7, told.append) == expected.numpy()).all()
        assert not (teacher.write(starts.numpy(), 12, 8) == expected.numpy()).all()
    assert told == [5] * 20
    assert student.training
    assert not base.training


@pytest.mark.parametrize("key_heads", [1, 2])
def test_keys_are_not_copied_while_texts_are_written(key_heads: int, monkeypatch) -> None:
    """Neither for each token nor for each head: attention reads the same memory at each step."""
    base, seen = llama(WINDOW, num_key_value_heads=key_heads), []
    attend = torch.nn.functional.scaled_dot_product_attention

    def spy(query: torch.Tensor, keys: torch.Tensor, *rest: object, **options: object) -> torch.Tensor:
        seen.append((keys.shape[1], keys.data_ptr()))
        return attend(query, keys, *rest, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    Teacher(base, WINDOW).write(np.full((1, 1), 3), 5, 0)
    layers = base.config.num_hidden_layers
    assert len(seen) == 4 * layers
    assert len(set(seen)) == layers
    assert {heads for heads, _ in seen} == {key_heads}


def test_texts_that_take_too_much_memory_together_are_written_one_after_another(monkeypatch) -> None:
    base, _ = extended("llama")
    told = []
    Teacher(base, WINDOW).write(np.full((330, 1), 3), 4, 0, told.append)
    assert told == [320] * 3 + [10] * 3
    monkeypatch.setattr("skipwise.model.teacher._WRITTEN_BYTES", 1)
    told.clear()
    texts = Teacher(base, WINDOW).write(np.full((3, 1), 3), 4, 0, told.append)
    assert told == [1] * 9
    assert texts.shape == (3, 4)
