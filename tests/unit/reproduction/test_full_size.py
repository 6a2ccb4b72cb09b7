"""The cost of the paper's own runs, by hand."""

import pytest

from skipwise.reproduction.exhibits import EXHIBITS
from skipwise.reproduction.full_size import full_size
from skipwise.reproduction.runs import plan_runs
from skipwise.reproduction.scales import MODELS, SCALES


def run(variant: str):
    runs = plan_runs(EXHIBITS["main"], SCALES["paper"], seeds=[0], changes={})
    return next(r for r in runs if r.variant == variant)


def test_the_papers_main_run_by_hand() -> None:
    pose, full = run("pose"), run("full")
    shape = MODELS["huggyllama/llama-7b"]
    tokens = 1000 * 64 * 2048
    near, far = full_size(pose, shape), full_size(full, shape)
    assert near.gpu_hours == pytest.approx(
        tokens * (6 * 6.74e9 + 6 * 32 * 4096 * 2048) * 4 / 3 / (312e12 * 0.4) / 3600
    )
    states = 16 * 6.74 / 8 + 24 * 4096**2 / 1e9
    assert near.gigabytes == pytest.approx(states + 2048 * (2 * 4096 * 32 + 34 * 4096 + 6 * 32000) / 1e9)
    assert (far.gigabytes - states) / (near.gigabytes - states) == pytest.approx(8)
    assert far.gpu_hours > near.gpu_hours
