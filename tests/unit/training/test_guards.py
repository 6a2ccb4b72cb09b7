"""A non-finite loss or gradient stops the run before the update, and the message names the way out."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipwise.errors import NonFiniteLossError
from skipwise.training import guards


def check(folder: Path, losses: list[float], norm: float = 1.0, *, bf16=False, fp16=False) -> None:
    guard = guards.NonFiniteGuard(folder)
    for loss in losses:
        guard.see_loss(torch.tensor(loss))
    guard.see_grad_norm(torch.tensor(norm))
    args = SimpleNamespace(bf16=bf16, fp16=fp16, learning_rate=2e-5)
    guard.on_pre_optimizer_step(args, SimpleNamespace(global_step=411), None)


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=8),
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.integers(0, 8),
)
def test_one_bad_micro_batch_is_enough(losses, bad, place):
    check(Path("nowhere"), losses)
    with pytest.raises(NonFiniteLossError, match=r"^step 412: loss is not finite; nothing of this step is saved; "):
        check(Path("nowhere"), [*losses[:place], bad, *losses[place:]])


def test_non_finite_message_names_the_checkpoint_and_a_way_out(tmp_path):
    (tmp_path / "checkpoint-400").mkdir()
    (tmp_path / "checkpoint-400" / "complete.json").touch()
    with pytest.raises(NonFiniteLossError, match=r"try training.precision=bf16 or a lower .*checkpoint 400 is intact"):
        check(tmp_path, [math.nan], fp16=True)
    with pytest.raises(NonFiniteLossError, match=r"try training.precision=float32 or"):
        check(tmp_path, [math.nan], bf16=True)
    with pytest.raises(NonFiniteLossError, match=r"try a lower training.learning_rate \(now 2e-05\)"):
        check(tmp_path, [math.nan])


def test_gradient_norm_is_judged_but_for_the_loss_scaler(tmp_path):
    with pytest.raises(NonFiniteLossError, match="step 412: the gradient norm is not finite"):
        check(tmp_path, [1.0], norm=math.inf)
    check(tmp_path, [1.0], norm=math.inf, fp16=True)
