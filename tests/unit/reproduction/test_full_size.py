"""The cost of the paper's own runs, by hand."""

import pytest
from transformers import LlamaConfig

from reproduction.exhibits import EXHIBITS
from reproduction.full_size import full_size
from reproduction.runs import plan_runs
from reproduction.scales import MODELS, SCALES
from skipwise.recipes.loading import load_recipe
from skipwise.training.cost import Hardware, estimate_cost


def run(variant: str):
    runs = plan_runs(EXHIBITS["main"], SCALES["paper"], seeds=[0], changes={})
    return next(r for r in runs if r.variant == variant)


def test_the_papers_main_run_by_hand() -> None:
    pose, full = run("pose"), run("full")
    shape = MODELS["huggyllama/llama-7b"]
    tokens = 1000 * 64 * 2048
    near, far = full_size(pose, shape), full_size(full, shape)
    assert near.gpu_hours == pytest.approx(tokens * (6 * 6.74e9 + 6 * 32 * 4096 * 2048) * 4 / 3 / (312e12 * 0.4) / 3600)
    states = 16 * 6.74 / 8 + 48 * 4096**2 / 1e9
    assert near.gigabytes == pytest.approx(states + 2048 * (2 * 4096 * 32 + 34 * 4096 + 8 * 32000) / 1e9)
    assert (far.gigabytes - states) / (near.gigabytes - states) == pytest.approx(8)
    assert far.gpu_hours > near.gpu_hours


@pytest.mark.parametrize(("variant", "window"), [("pose", 2048), ("full", 16384)])
def test_agrees_with_the_plan_of_one_step_run_without_data(variant: str, window: int) -> None:
    config = LlamaConfig(bos_token_id=1, eos_token_id=2)  # LLaMA-7B, as it is by default
    recipe = load_recipe("llama-7b-16k")
    plan = estimate_cost(config, recipe, window, 64 * 2048 // window, Hardware(8))
    cost = full_size(run(variant), MODELS["huggyllama/llama-7b"])
    traced = plan.weights + plan.gradients + plan.optimizer + plan.activations
    assert cost.gigabytes == pytest.approx(traced / 1e9, rel=0.05)
    assert cost.gpu_hours == pytest.approx(8 * plan.hours, rel=0.1)
