"""What a run takes: memory and disk are refused before work, and training time follows from its forward passes."""

import shutil
from collections import namedtuple

import pytest

from skipwise.errors import RunError
from skipwise.model.config import load_config
from skipwise.model.cost import meta_model
from skipwise.recipes.loading import load_recipe
from skipwise.training import plan
from skipwise.training.plan import require_fits, timed_tokens
from tests.tiny import checkpoint
from tests.unit.training.test_prepare import prepared


@pytest.fixture
def model(tmp_path) -> str:
    return str(checkpoint(tmp_path / "base"))


def recipe(model: str, **changes):
    settings = {"training.max_steps": 1000, "training.save_steps": 100, "training.precision": "float32"}
    return load_recipe(None, {"model": model, **settings, **changes})


# Bytes for each parameter: a checkpoint has 4 of the weight and 8 of AdamW's moments, the model 4.
@pytest.mark.parametrize(
    ("changes", "each"),
    [
        ({}, 3 * 12),  # the third is complete before the first is removed
        ({"training.save_total_limit": 1}, 2 * 12),
        ({"training.max_steps": 100}, 12 + 4),  # one checkpoint, and then the model
        ({"training.max_steps": 100, "training.save_dtype": "bfloat16"}, 12 + 2),
        ({"lora": {}}, 4),
    ],
)
def test_a_run_that_does_not_fit_the_disk_is_refused(tmp_path, monkeypatch, model, changes, each):
    free, usage = each * meta_model(load_config(model)).num_parameters(), namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(free))
    require_fits(recipe(model, **changes), tmp_path / "runs" / "new")
    free -= 1
    with pytest.raises(RunError, match="runs/new"):
        require_fits(recipe(model, **changes), tmp_path / "runs" / "new")
    require_fits(recipe(model, **changes), None)  # a resumed run has its files there


@pytest.mark.parametrize(
    ("changes", "each", "fix"),
    [
        ({}, 16, "--lora"),  # weights, gradients and two moments
        ({"lora": {"save_as": "adapter"}}, 4, "4bit"),
        ({"lora": {"load_in_4bit": True}}, 4, "lora.save_as=adapter"),  # merged in float32
    ],
)
def test_a_run_that_does_not_fit_the_memory_is_refused(monkeypatch, model, changes, each, fix):
    memory = each * meta_model(load_config(model)).num_parameters()
    monkeypatch.setattr(plan, "machine_memory", lambda device: memory)
    require_fits(recipe(model, **changes), None)
    memory -= 1
    with pytest.raises(RunError, match=fix):
        require_fits(recipe(model, **changes), None)
    require_fits(recipe(model, **changes), None, several=True)  # processes may share the model


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({"lora": {}}, 2),
        ({"training.gradient_checkpointing": True}, 4),
        ({"lora": {}, "training.gradient_checkpointing": True}, 3),
    ],
)
def test_training_is_timed_by_its_forward_passes(tmp_path, changes, passes) -> None:
    run = prepared(tmp_path, checkpoint(tmp_path / "base"), **changes)
    tokens = run.recipe.training.max_steps * run.recipe.training.global_batch_size * run.window
    assert timed_tokens(run) == tokens * passes // 3
