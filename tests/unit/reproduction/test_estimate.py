"""Estimates: what is counted."""

import pytest

from reproduction.estimate import Speed, measure_speed, seconds, tokens_of, total_seconds
from reproduction.exhibits import EXHIBITS
from reproduction.runs import plan_runs
from reproduction.scales import SCALES
from tests.tiny import checkpoint

SPEED = Speed(train=(1e-4, 1e-7), read=(1e-5, 1e-8))


def run(name: str, variant: str, scale: str = "nano", **changes):
    runs = plan_runs(EXHIBITS[name], SCALES[scale], seeds=[0], changes=changes)
    return next(r for r in runs if r.variant == variant)


def test_tokens_are_steps_times_windows_times_their_width() -> None:
    assert tokens_of(run("passkey", "pose")) == tokens_of(run("passkey", "full")) == 400 * 16 * 256
    assert tokens_of(run("passkey", "original")) == 0
    assert tokens_of(run("passkey", "pose", train_length=512)) == 400 * 16 * 512


def test_a_run_costs_its_training_and_its_measurements() -> None:
    bare = {"evaluation.windows": [256], "evaluation.documents": 1, "evaluation.source": ["x"]}
    plain = {**bare, "evaluation.passkey_trials": 0, "evaluation.segment_lengths": None}
    sliding = (256 + 2 * 256) * (1e-5 + 256e-8)  # three windows cover 512 tokens at stride 128
    pose = seconds(run("passkey", "pose", **plain), SPEED)
    assert pose == pytest.approx(12 + 1_638_400 * (1e-4 + 256e-7) + sliding)
    full = seconds(run("passkey", "full", **plain), SPEED)
    assert full == pytest.approx(12 + 1_638_400 * (1e-4 + 2048e-7) + sliding)
    two = seconds(run("passkey", "original", **plain | {"evaluation.source": ["x", "y"]}), SPEED)
    assert two == pytest.approx(12 + 2 * sliding)
    asked = plain | {"evaluation.passkey_trials": 10, "evaluation.passkey_lengths": [1024]}
    assert seconds(run("passkey", "original", **asked), SPEED) == pytest.approx(
        12 + sliding + 1.4 * 10 * 1024 * (1e-5 + 1024e-8)
    )
    read = plain | {"evaluation.segment_lengths": [2048], "evaluation.segments": 4}
    assert seconds(run("passkey", "original", **read), SPEED) == pytest.approx(
        12 + sliding + 4 * 2048 * (1e-5 + 2048e-8)
    )
    stepped = plain | {"evaluation.steps": [1, 2]}
    assert seconds(run("passkey", "pose", **stepped), SPEED) == pytest.approx(pose + 2 * sliding)


def test_what_is_shared_is_trained_once() -> None:
    pose = run("passkey", "pose")
    again = run("interpolation", "pose")
    assert pose.key == again.key
    training = 1_638_400 * (1e-4 + 256e-7)
    alone = total_seconds([pose], SPEED) + total_seconds([again], SPEED)
    assert total_seconds([pose, again], SPEED) == pytest.approx(alone - training)


def test_speed_is_measured(tmp_path) -> None:
    speed = measure_speed(str(checkpoint(tmp_path, 256)), near=64, far=256)
    assert speed.train[0] + 256 * speed.train[1] > speed.read[0] > 0
