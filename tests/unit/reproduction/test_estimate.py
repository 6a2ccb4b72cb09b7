"""Estimates: what is counted."""

import pytest

from reproduction import estimate
from reproduction.estimate import seconds, total_seconds
from reproduction.exhibits import EXHIBITS
from reproduction.runs import plan_runs
from reproduction.scales import SCALES
from skipwise.model.cost import ForwardCost, Speed

READ, ATTEND = 1e-5, 1e-8  # seconds of a token that is read, and of a pair of tokens


@pytest.fixture(autouse=True)
def _known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = ForwardCost(linear=READ, output=0.0, pair=2 * ATTEND)
    monkeypatch.setattr(estimate, "_measured", lambda model: (cost, Speed(1.0, 1.0)))
    monkeypatch.setattr(estimate, "_trained_token", lambda model, window: 1e-4 + window * 1e-7)


def run(name: str, variant: str, **changes):
    runs = plan_runs(EXHIBITS[name], SCALES["nano"], seeds=[0], changes=changes)
    return next(r for r in runs if r.variant == variant)


def test_a_run_costs_its_training_and_its_measurements() -> None:
    bare = {"evaluation.windows": [256], "evaluation.documents": 1, "evaluation.source": ["x"]}
    plain = {**bare, "evaluation.prompt_trials": 0, "evaluation.segment_lengths": None, "evaluation.other": False}
    sliding = (256 + 2 * 256) * (READ + 256 * ATTEND)  # three windows cover 512 tokens at stride 128
    pose = seconds(run("passkey", "pose", **plain), "nano")
    assert pose == pytest.approx(12 + 1_638_400 * (1e-4 + 256e-7) + sliding)
    full = seconds(run("passkey", "full", **plain), "nano")
    assert full == pytest.approx(12 + 1_638_400 * (1e-4 + 2048e-7) + sliding)
    two = seconds(run("passkey", "original", **plain | {"evaluation.source": ["x", "y"]}), "nano")
    assert two == pytest.approx(12 + 2 * sliding)
    asked = plain | {"evaluation.prompt_trials": 10, "evaluation.prompt_lengths": [1024]}
    assert seconds(run("passkey", "original", **asked), "nano") == pytest.approx(
        12 + sliding + 10 * 1024 * (READ + 1024 * ATTEND)
    )


def test_what_is_shared_is_trained_once() -> None:
    pose = run("passkey", "pose")
    again = run("interpolation", "pose")
    assert pose.key == again.key
    training = 1_638_400 * (1e-4 + 256e-7)
    alone = total_seconds([pose], "nano") + total_seconds([again], "nano")
    assert total_seconds([pose, again], "nano") == pytest.approx(alone - training)
