"""RequirePositions: a stock Trainer goes on with good batches, and stops at its first step with every kind of bad one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import skip_first_batches
from accelerate.data_loader import prepare_data_loader
from transformers import LlamaForCausalLM, Trainer, TrainerState, TrainingArguments

from skipwise.data.examples import PoseDataset, collate
from skipwise.errors import ModelError, RecipeError
from skipwise.model.attention import takes_packed
from skipwise.model.config import reach_of
from skipwise.model.extension import plan_extension, set_interpolation
from skipwise.recipes.schema import Positions
from skipwise.training.collator import PoseCollator, RequirePositions, _require_extended
from tests import families
from tests.tiny import byte_tokenizer, corpus, llama

pytestmark = pytest.mark.usefixtures("frozen_imports")
TRAIN, TARGET = 16, 128
Batch = dict[str, torch.Tensor]


class Documents(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": [(index + place) % 250 for place in range(100)]}


def trainer(
    folder: Path, change: Any = lambda batch: batch, steps: int = 1, batch: int = 2, model: Any = None, **options: Any
) -> Trainer:
    """A Trainer whose collator changes what PoseCollator makes."""
    collator = PoseCollator(TRAIN, TARGET, **options)
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    arguments = TrainingArguments(str(folder), max_steps=steps, per_device_train_batch_size=batch, **quiet)
    model = (model or llama(window=TARGET)).train()
    return Trainer(model, arguments, lambda items: change(collator(items)), Documents(), callbacks=[collator])


def without(*names: str) -> Any:
    return lambda batch: {key: value for key, value in batch.items() if key not in names}


def restarted(batch: Batch) -> Batch:
    return batch | {"position_ids": torch.arange(TRAIN // 2).repeat(len(batch["input_ids"]), 2)}


def counted(batch: Batch) -> Batch:
    return batch | {"position_ids": torch.arange(TRAIN).expand(len(batch["input_ids"]), -1)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("position_ids"), "no position_ids"),
        (without("attention_mask"), "no attention_mask"),
        (restarted, "packing"),
    ],
)
def test_a_bad_batch_stops_the_run_at_its_first_step(tmp_path: Path, change: Any, message: str) -> None:
    made = trainer(tmp_path, change)
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    with pytest.raises(RecipeError, match=message):
        made.train()
    assert made.state.global_step == 0
    assert all(torch.equal(value, before[name]) for name, value in made.model.state_dict().items())


def test_a_model_whose_frequencies_a_cast_rounded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="bfloat16"):
        trainer(tmp_path, model=llama(window=TARGET).to(torch.bfloat16)).train()


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_a_model_with_sliding_layers_is_watched_too(tmp_path: Path, family: str) -> None:
    """Its masks by position replace the mask of the batch; the check reads the batch's own."""
    model = families.model(family, vocab_size=257, max_position_embeddings=TARGET)
    assert not takes_packed(model.base_model)
    made = trainer(tmp_path, model=model)
    made.train()
    assert made.state.global_step == 1
    assert takes_packed(model.base_model)
    for change, message in ((restarted, "packing"), (without("attention_mask"), "no attention_mask")):
        with pytest.raises(RecipeError, match=message):
            trainer(tmp_path, change, model=model).train()


def test_positions_that_never_skip_stop_the_run_after_256_examples(tmp_path: Path) -> None:
    made = trainer(tmp_path, counted, steps=9, batch=100)
    with pytest.raises(RecipeError, match="300"):
        made.train()
    assert made.state.global_step == 2


@pytest.mark.parametrize("positions", [Positions(), Positions(scheme="no_skip"), Positions(scheme="randpos")])
def test_good_batches_are_trained_and_soon_checked_no_more(tmp_path: Path, positions: Positions) -> None:
    made = trainer(tmp_path, steps=3, positions=positions)
    made.train()
    assert made.state.global_step == 3
    assert not any(part._forward_pre_hooks for part in made.model.modules())


@pytest.mark.parametrize("rule", [{"chunks": 1}, {"no_skip_share": 1}])
def test_a_scheme_without_chunks_is_watched_whatever_their_rules_say(tmp_path: Path, rule: dict) -> None:
    made = trainer(tmp_path, counted, steps=9, batch=100, positions=Positions(scheme="randpos", **rule))
    with pytest.raises(RecipeError, match="no position skips"):
        made.train()


def test_a_model_whose_chunks_are_cut_is_refused_before_the_first_step(tmp_path: Path, monkeypatch) -> None:
    made = trainer(tmp_path)
    forward = made.model.forward
    monkeypatch.setattr(made.model, "forward", lambda attention_mask=None, **given: forward(**given))
    with pytest.raises(ModelError, match="chunks do not attend to each other"):
        made.train()


def test_a_loop_of_ones_own_is_watched_until_the_first_skip() -> None:
    model, guard, batch = llama(window=TARGET).train(), RequirePositions(TARGET), None
    guard.watch(model)
    collator = PoseCollator(TRAIN, TARGET)
    collator.set_epoch(0)
    batch = collator([Documents()[0]])
    with pytest.raises(RecipeError, match="no position_ids"):
        model(batch["input_ids"])
    model.eval()(batch["input_ids"])  # outside of training positions are counted
    model.train()(**batch)
    model(batch["input_ids"])  # what has passed once is not checked again


def test_low_rank_additions_are_watched_too(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        llama(window=TARGET), peft.LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM")
    )
    RequirePositions(TARGET).watch(model.train())
    with pytest.raises(RecipeError, match="no position_ids"):
        model(input_ids=torch.arange(8)[None])


def test_examples_that_reach_beyond_the_model_are_refused(tmp_path: Path) -> None:
    data = PoseDataset.from_source(corpus(tmp_path / "text"), byte_tokenizer(), train_length=64, target_length=1024)
    arguments = replace(trainer(tmp_path).args, remove_unused_columns=False)
    made = Trainer(llama(window=TARGET).train(), arguments, collate, data, callbacks=[RequirePositions(TARGET)])
    with pytest.raises(RecipeError, match=r"128 positions.*1,024"):
        made.train()
    model, batch = llama(window=TARGET).train(), {"attention_mask": torch.ones(1, 8, dtype=torch.int64)}
    RequirePositions(TARGET).watch(model)
    with pytest.raises(RecipeError, match=r"128 positions.*308"):
        model(torch.arange(8)[None], position_ids=torch.arange(300, 308)[None], **batch)


@pytest.mark.parametrize("skipped", [0, 3])
def test_a_data_set_is_told_its_epoch_where_accelerate_does_not(tmp_path: Path, skipped: int) -> None:
    data = PoseDataset.from_source(
        corpus(tmp_path / "text"), byte_tokenizer(), train_length=64, target_length=128, examples=16
    )
    loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True, collate_fn=collate)
    sharded = prepare_data_loader(
        loader, num_processes=1 if skipped else 2, process_index=0, put_on_device=False, use_seedable_sampler=True
    )
    resumed = skip_first_batches(sharded, skipped) if skipped else sharded
    resumed.set_epoch(1)
    assert int(data._epoch) == 0  # if it is 1, Accelerate has learned it, and the callback may go
    state = TrainerState(epoch=1 + skipped / 8)
    RequirePositions(128).on_epoch_begin(None, state, None, train_dataloader=sharded)
    assert int(data._epoch) == 1


def scaled(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 1e4, "factor": 8.0, **more}


_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LONG = {"short_factor": [1.0] * 8, "long_factor": [1.0] * 8}


@pytest.mark.parametrize(
    ("rope", "reads"),
    [
        (scaled("linear"), 8 * TARGET),  # its length may have stayed at the original
        (scaled("dynamic"), 8 * TARGET),
        (scaled("yarn", original_max_position_embeddings=TARGET // 8), TARGET),
        (scaled("yarn", original_max_position_embeddings=TARGET // 2), 4 * TARGET),  # stayed, above the original
        (scaled("yarn", original_max_position_embeddings=TARGET), 8 * TARGET),
        (scaled("llama3", original_max_position_embeddings=TARGET // 2, **_LLAMA3), TARGET),  # as Llama 3.2, x32 of 8k
        (scaled("longrope", original_max_position_embeddings=TARGET // 2, **_LONG), TARGET),
    ],
)
def test_how_far_a_scaled_model_reads_is_known(rope: dict[str, Any], reads: int) -> None:
    config = llama(window=TARGET, rope_parameters=rope).config
    assert reach_of(config) == reads
    _require_extended(config, reads)
    with pytest.raises(RecipeError, match=f"{reads:,} positions.*{reads + 1:,}"):
        _require_extended(config, reads + 1)


@pytest.mark.parametrize("interpolation", ["ntk", "yarn", "yarn-revised"])
def test_a_model_that_was_extended_to_less_is_refused(interpolation: str) -> None:
    """The factor of an extended model is part of its length already."""
    config = llama(window=TARGET // 8).config
    set_interpolation(config, plan_extension(config, target_length=TARGET, interpolation=interpolation))
    model = LlamaForCausalLM(config)
    RequirePositions(TARGET).watch(model)
    with pytest.raises(RecipeError, match=f"{TARGET} positions"):
        RequirePositions(8 * TARGET).watch(model)
