import copy

import pytest
import torch

from skipwise.model.lora import adapt
from skipwise.model.rope import plan_extension, set_interpolation
from skipwise.model.teacher import Teacher
from skipwise.recipes.schema import Lora
from tests import families

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
