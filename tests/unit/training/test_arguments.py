"""A recipe's training section becomes TrainingArguments, or a message that names the key."""

import pytest
import torch
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from skipwise.errors import RecipeError
from skipwise.model.cost import CHECKPOINTING
from skipwise.recipes import schema as recipe
from skipwise.training import arguments
from skipwise.training.arguments import training_arguments


def settings(**changes) -> recipe.Training:
    values = {"max_steps": 4, "global_batch_size": 4, "precision": "float32"}
    return recipe.Training(**{**values, **changes})


def test_any_field_of_training_arguments_passes_through(tmp_path):
    args = training_arguments(settings(weight_decay=0.1, max_grad_norm="0.5", optim="adamw_torch"), tmp_path, 7)
    assert (args.weight_decay, args.max_grad_norm, args.optim) == (0.1, 0.5, "adamw_torch_fused")
    assert (args.seed, args.data_seed, args.max_steps, args.output_dir) == (7, 7, 4, str(tmp_path))
    assert (args.report_to, args.save_total_limit, args.train_sampling_strategy) == ([], None, "sequential")
    assert not args.logging_nan_inf_filter
    assert not args.remove_unused_columns
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        assert getattr(training_arguments(settings(optim="sgd", **{name: True}), tmp_path, 0), CHECKPOINTING) is True


def test_an_accelerator_that_nothing_else_runs_on_is_not_trained_on(tmp_path, monkeypatch):
    """As a Mac's: what is measured runs on the CPU there, and its tensors would not meet the model's."""
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: torch.device("mps"))
    assert training_arguments(settings(), tmp_path, 0).use_cpu


@pytest.mark.parametrize("named", ["seen, heard", ["seen", "heard"], "all"])
def test_trackers_are_a_list_or_a_string_with_commas(tmp_path, monkeypatch, named):
    for name in ("seen", "heard"):
        monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, name, TrainerCallback)
    monkeypatch.setattr(arguments, "get_available_reporting_integrations", lambda: ["seen", "heard"])
    wanted = settings(report_to=named)
    assert training_arguments(wanted, tmp_path, 0).report_to == ["seen", "heard"]
    assert arguments.reported_to(wanted) == ["seen", "heard"]

    def missing() -> None:
        raise RuntimeError("it needs the package seen")

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "seen", missing)
    with pytest.raises(RecipeError, match="seen"):
        training_arguments(wanted, tmp_path, 0)


@pytest.mark.parametrize(
    ("field", "value", "names"),
    [
        ("weigth_decay", 0.1, "weight_decay"),
        ("report_to", "nobody", "nobody"),
        # They have another place in the recipe or on the command line.
        ("bf16", True, "training.precision"),
        ("fsdp", "full_shard", "--launch"),
        # They change examples or positions, or break the exact resume, without an error of Trainer.
        ("remove_unused_columns", True, "remove_unused_columns"),
        ("ignore_data_skip", True, "ignore_data_skip"),
    ],
)
def test_a_wrong_setting_is_refused_and_named(tmp_path, field, value, names):
    with pytest.raises(RecipeError, match=names):
        training_arguments(settings(**{field: value}), tmp_path, 0)


def test_accumulation_follows_from_the_global_batch(tmp_path):
    wanted = settings(global_batch_size=12, per_device_train_batch_size=3)
    assert training_arguments(wanted, tmp_path, 0).gradient_accumulation_steps == 4
    assert arguments.accumulation(wanted, 2) == 2
    with pytest.raises(RecipeError, match="global_batch_size=24"):
        arguments.accumulation(wanted, 8)
