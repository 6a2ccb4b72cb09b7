"""A recipe's training section becomes TrainingArguments, or a message that names the key."""

import importlib.util
import math

import pytest
import torch
from transformers import PreTrainedModel, TrainerCallback
from transformers.integrations import integration_utils

from skipwise.errors import RecipeError
from skipwise.model import checkpointing
from skipwise.recipes import schema as recipe
from skipwise.training import arguments
from skipwise.training.arguments import settings_errors, training_arguments


def settings(**changes) -> recipe.Training:
    values = {"max_steps": 4, "batch_size": 4, "precision": "float32"}
    return recipe.Training(**{**values, **changes})


def test_any_field_of_training_arguments_passes_through(tmp_path, monkeypatch):
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "seen", TrainerCallback)
    args = training_arguments(
        settings(weight_decay=0.1, adam_beta2=0.95, max_grad_norm="0.5", report_to=["seen"]), tmp_path, 7
    )
    assert (args.weight_decay, args.adam_beta2, args.max_grad_norm) == (0.1, 0.95, 0.5)
    assert (args.seed, args.data_seed, args.max_steps, args.output_dir) == (7, 7, 4, str(tmp_path))
    assert args.report_to == ["seen"]


def test_an_accelerator_that_nothing_else_runs_on_is_not_trained_on(tmp_path, monkeypatch):
    """As a Mac's: the teacher and what is measured run on the CPU there, and their tensors would not meet the model's."""
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: torch.device("mps"))
    assert training_arguments(settings(), tmp_path, 0).use_cpu


def test_training_on_another_device_than_everything_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(arguments, "default_device", lambda: torch.device("cuda"))
    with pytest.raises(
        RecipeError, match=r"use_cpu = True trains on cpu, and the teacher .* run on cuda; leave it out"
    ):
        training_arguments(settings(use_cpu=True, optim="adamw_torch"), tmp_path, 0)


@pytest.mark.parametrize("named", ["seen,heard", "seen, heard", ["seen", "heard"]])
def test_trackers_are_a_list_or_a_string_with_commas(tmp_path, monkeypatch, named):
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "seen", TrainerCallback)
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "heard", TrainerCallback)
    wanted = settings(report_to=named)
    assert training_arguments(wanted, tmp_path, 0).report_to == ["seen", "heard"]
    assert arguments.reported_to(wanted) == ["seen", "heard"]


def test_all_trackers_are_those_that_are_installed(monkeypatch):
    monkeypatch.setattr(arguments, "get_available_reporting_integrations", lambda: ["tensorboard", "wandb"])
    for named in ("all", ["all"]):
        assert arguments.reported_to(settings(report_to=named)) == ["tensorboard", "wandb"]


def test_what_trainer_gets_wrong_is_off(tmp_path):
    args = training_arguments(settings(), tmp_path, 0)
    assert args.report_to == []
    assert not args.logging_nan_inf_filter
    assert not args.remove_unused_columns
    assert args.save_total_limit is None
    assert args.train_sampling_strategy == "sequential"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("weigth_decay", 0.1, r"unknown key training.weigth_decay \(did you mean weight_decay\?\)"),
        ("batchsize", 8, r"unknown key training.batchsize \(did you mean batch_size\?\)"),
        ("max_grad_norm", "heavy", r"training.max_grad_norm = 'heavy': Input should be a valid number"),
        ("dataloader_num_workers", 1.5, r"training.dataloader_num_workers = 1.5: "),
        ("optim", "adamm", r"training.optim 'adamm' is unknown .*; choose one of adamw_torch, "),
        (
            "lr_scheduler_type",
            "lineer",
            r"lr_scheduler_type 'lineer' is unknown \(did you mean linear\?\); choose one of linear, ",
        ),
        ("bf16", True, r"training.bf16 cannot be set: set training.precision"),
        ("seed", 3, r"training.seed cannot be set: set seed at the top"),
        ("enable_jit_checkpoint", True, r"training.enable_jit_checkpoint cannot be set: .*set training.save_steps"),
        ("save_on_each_node", True, r"training.save_on_each_node cannot be set: the first process saves"),
        (
            "accelerator_config",
            {"split_batches": True},
            r"training.accelerator_config: split_batches and .*leave them out",
        ),
        (
            "accelerator_config",
            {"gradient_accumulation_kwargs": {"num_steps": 4}},
            r"training.accelerator_config: .*num_steps change how many examples a step has",
        ),
        ("save_only_model", True, r"training.save_only_model cannot be set: .*resumable"),
        ("push_to_hub", True, r"training.push_to_hub cannot be set: .*afterwards, skipwise publish RUN OWNER/NAME"),
        ("max_grad_norm", -1, r"training.max_grad_norm = -1.0 must be above 0, or 0 for no clipping"),
        ("max_grad_norm", math.inf, r"training.max_grad_norm = inf: Input should be a finite number"),
        ("max_grad_norm", True, r"training.max_grad_norm = True: must be a number, not true or false"),
        ("dataloader_num_workers", -1, r"training: num_workers option should be non-negative"),
        ("fsdp", "full_shard", r"training.fsdp cannot be set: choose --launch, or accelerate launch"),
        ("deepspeed", "zero3.json", r"training.deepspeed cannot be set: choose --launch, or accelerate launch"),
        (
            "eval_on_start",
            True,
            r"training.eval_on_start cannot be set: the evaluation section measures after training",
        ),
        ("eval_steps", 5, r"training.eval_steps cannot be set: the evaluation section"),
        ("log_level", "foo", r"training.log_level or log_level_replica = 'foo' is no level; choose debug"),
        ("gradient_checkpointing_kwargs", {"foo": 1}, r"training: .*foo"),
        ("gradient_checkpointing_kwargs", "foo", r"training: .*str"),
        ("gradient_checkpointing_kwargs", {"every_n_layers": 0}, r"every_n_layers"),
        ("gradient_checkpointing_kwargs", {"every_n_layers": "two"}, r"every_n_layers"),
        ("dataloader_multiprocessing_context", "foo", r"multiprocessing_context"),
        ("lr_scheduler_type", "cosine_with_min_lr", r"training: .*min_lr"),
        ("lr_scheduler_kwargs", {"speed": 1}, r"training: .*speed"),
        ("max_grad_norm", None, r"training.max_grad_norm = None must be above 0"),
        ("dataloader_prefetch_factor", 2, r"training: "),
        ("dataloader_persistent_workers", True, r"training: "),
        ("report_to", "nobody", r"training: nobody is not supported, only "),
        ("report_to", "tensorboard,nobody", r"training: nobody is not supported, only "),
        ("report_to", 3, r"training.report_to = 3: Input should be a valid string"),
    ],
)
def test_wrong_settings_are_named(tmp_path, field, value, message):
    with pytest.raises(RecipeError, match=message):
        training_arguments(settings(**{field: value}), tmp_path, 0)


@pytest.mark.parametrize(
    ("package", "field", "value", "message"),
    [
        ("bitsandbytes", "optim", "adamw_bnb_8bit", r"training: .*bitsandbytes"),
        ("wandb", "report_to", "wandb", r"training: .*wandb"),
        ("liger_kernel", "use_liger_kernel", True, r"training.use_liger_kernel = True needs the liger-kernel"),
    ],
)
def test_a_package_that_is_not_there_is_named(tmp_path, package, field, value, message):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    with pytest.raises(RecipeError, match=message):
        training_arguments(settings(**{field: value}), tmp_path, 0)


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "rmsprop"])
@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant_with_warmup"])
def test_what_can_be_built_is_taken(tmp_path, optim, schedule):
    training_arguments(settings(optim=optim, lr_scheduler_type=schedule), tmp_path, 0)


def test_adamw_is_fused_on_a_cpu_too(tmp_path):
    assert training_arguments(settings(optim="adamw_torch"), tmp_path, 0).optim == "adamw_torch_fused"
    assert training_arguments(settings(optim="sgd"), tmp_path, 0).optim == "sgd"


def test_a_mode_of_compiling_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RecipeError, match=r"training: .*foo"):
        training_arguments(settings(torch_compile=True, torch_compile_mode="foo"), tmp_path, 0)


@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
def test_activation_checkpointing_by_either_name(name, tmp_path):
    args = training_arguments(settings(**{name: True}), tmp_path, 0)
    assert getattr(args, checkpointing.NAME) is True


def test_options_of_activation_checkpointing_reach_transformers(tmp_path):
    how = {"every_n_layers": 2, "offload": True, "use_reentrant": True}  # transformers passes on the last alone
    if hasattr(PreTrainedModel, "activation_checkpointing_enable"):
        args = training_arguments(settings(gradient_checkpointing=True, gradient_checkpointing_kwargs=how), tmp_path, 0)
        assert args.activation_checkpointing_kwargs == how


def test_accumulation_follows_from_the_global_batch(tmp_path, monkeypatch):
    wanted = settings(batch_size=12, per_device_train_batch_size=3)
    assert training_arguments(wanted, tmp_path, 0).gradient_accumulation_steps == 4
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert arguments.accumulation(wanted, 2) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"batch_size": 7, "per_device_train_batch_size": 3},
            r"training.batch_size = 7 must be a multiple of 3 .*3 x 1 processes.*; set batch_size=6 or",
        ),
        ({"batch_size": 2, "per_device_train_batch_size": 3}, r"multiple of 3 .* set batch_size=3 or"),
        (
            {"batch_size": 6, "gradient_accumulation_steps": 2},
            r"gradient_accumulation_steps = 2 contradicts training.batch_size 6, which makes it 6; .*batch_size=2",
        ),
        (
            {"batch_size": 6, "gradient_accumulation_steps": [2]},
            r"gradient_accumulation_steps = \[2\]: Input should be",
        ),
    ],
)
def test_batches_that_do_not_add_up(tmp_path, changes, message):
    with pytest.raises(RecipeError, match=message):
        training_arguments(settings(**changes), tmp_path, 0)


def test_accumulation_given_rightly_is_taken(tmp_path):
    args = training_arguments(settings(batch_size=6, gradient_accumulation_steps=6), tmp_path, 0)
    assert args.gradient_accumulation_steps == 6


def test_of_another_librarys_error_only_the_reason_is_repeated() -> None:
    with (
        pytest.raises(RecipeError, match=r"^training: Bad file: it is old; correct the setting, or leave it out$"),
        settings_errors(),
    ):
        raise ValueError("Bad file:\n it is old. Set weights_only=False\nand more")


def test_a_full_memory_is_no_mistake_in_the_settings() -> None:
    with pytest.raises(RuntimeError, match="can't allocate"), settings_errors():
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
