"""Sliding layers count their window in positions, in any training loop; without a skip that is the stock model."""

import copy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel, Trainer, TrainingArguments

from skipwise.model.attention import CACHE, attention_masks, mask_by_position
from skipwise.model.config import load_config
from skipwise.model.extension import plan_extension
from skipwise.model.loading import load_model
from skipwise.model.lora import adapt
from skipwise.recipes.schema import Lora, Training
from skipwise.training.trainer import train
from tests import families

pytestmark = pytest.mark.usefixtures("frozen_imports")
SLIDE = 16
IDS = torch.arange(96)[None] * 7 % 89 + 3
SKIPPED = torch.cat([torch.arange(40), torch.arange(150, 206)])[None]
FAMILIES = [("gemma2", "eager"), ("gemma3", "sdpa")]


def model_of(family: str, attention: str) -> PreTrainedModel:
    return families.model(family, attention).eval()


def masks_at(model: PreTrainedModel, positions: torch.Tensor):
    return attention_masks(model.config, torch.ones_like(positions), positions, model.dtype)


def logits(model: PreTrainedModel, ids: torch.Tensor, positions: torch.Tensor, mask) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False).logits


@pytest.mark.parametrize(("family", "attention"), FAMILIES)
def test_each_token_sees_those_that_it_should(family: str, attention: str) -> None:
    model, positions = model_of(family, attention), torch.arange(96)[None]
    stock = logits(model, IDS, positions, torch.ones_like(positions))  # without a skip
    torch.testing.assert_close(logits(model, IDS, positions, masks_at(model, positions)), stock)
    masks, full = masks_at(model, SKIPPED), torch.ones(96, 96, dtype=torch.bool).tril()
    near = full & (SKIPPED[0][:, None] - SKIPPED[0] < SLIDE)
    for kind, wanted in (("full_attention", full), ("sliding_attention", near)):
        if masks[kind] is None:  # causal by the kernel's own flag
            assert wanted is full
        else:
            assert (masks[kind][0, 0] >= 0 if attention == "eager" else masks[kind][0, 0]).equal(wanted)


STEPS = 3


class Skipped(torch.utils.data.Dataset):
    """Example i: 48 tokens whose positions skip after the first 24."""

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 90, (48,), generator=torch.Generator().manual_seed(i))
        positions = torch.cat([torch.arange(24), torch.arange(60 + i, 84 + i)])
        return {"input_ids": ids, "labels": ids, "position_ids": positions, "attention_mask": torch.ones_like(ids)}


def stacked(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def by_plain_loop(model: PreTrainedModel, folder: Path) -> list[float]:
    optimizer, examples, losses = torch.optim.SGD(model.parameters(), lr=0.1), Skipped(), []
    model.train()
    for step in range(STEPS):
        loss = model(**stacked([examples[4 * step + i] for i in range(4)])).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


SETTINGS = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
SETTINGS |= {"max_steps": STEPS, "per_device_train_batch_size": 4, "logging_steps": 1}


def by_stock_trainer(model: PreTrainedModel, folder: Path) -> list[float]:
    without = {"save_strategy": "no", "use_cpu": True, "report_to": "none", "disable_tqdm": True}
    arguments = TrainingArguments(folder, train_sampling_strategy="sequential", **SETTINGS, **without)
    trainer = Trainer(model, arguments, stacked, Skipped())
    trainer.train()
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def by_our_trainer(model: PreTrainedModel, folder: Path) -> list[float]:
    losses: list[float] = []
    train(
        model,
        Skipped(),
        stacked,
        Training(global_batch_size=4, precision="float32", **SETTINGS),
        folder=folder,
        seed=0,
        resume=False,
        on_log=lambda log: losses.append(log["loss"]),
    )
    return losses


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(families.checkpoint(tmp_path_factory.mktemp("models") / "gemma3", "gemma3"))


def loaded(base: str) -> PreTrainedModel:
    """Gemma 3 by ``load_model``; the attention kernel is transformers' default."""
    return load_model(base, plan_extension(load_config(base), target_length="1k", interpolation="yarn"))


@pytest.fixture(scope="module")
def expected(base: str, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return by_our_trainer(loaded(base), tmp_path_factory.mktemp("ours") / "run")


@pytest.mark.parametrize("loop", [by_plain_loop, by_stock_trainer])
def test_every_loop_trains_the_same_window(base: str, expected: list[float], tmp_path: Path, loop) -> None:
    assert loop(loaded(base), tmp_path / "run") == pytest.approx(expected, rel=1e-5)
    model = loaded(base)
    model.base_model._forward_pre_hooks.clear()
    assert loop(model, tmp_path / "without")[0] != pytest.approx(expected[0], rel=1e-3)


def first_loss(model: torch.nn.Module) -> float:
    return model.train()(**stacked([Skipped()[i] for i in range(4)])).loss.item()


@pytest.mark.parametrize("way", ["copied", "checkpointing", "adapted"])
def test_the_hook_survives(base: str, expected: list[float], way: str) -> None:
    model: torch.nn.Module = loaded(base)
    if way == "copied":
        model = copy.deepcopy(model)
    if way == "checkpointing":
        model.gradient_checkpointing_enable()
    if way == "adapted":
        model = adapt(model, Lora())
    assert first_loss(model) == pytest.approx(expected[0], rel=1e-5)


def test_a_saved_model_is_stock_and_has_the_hook_when_it_is_loaded_or_trained(base, expected, tmp_path) -> None:
    loaded(base).save_pretrained(tmp_path / "model")
    assert first_loss(load_model(str(tmp_path / "model"))) == pytest.approx(expected[0], rel=1e-5)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert first_loss(stock) != pytest.approx(expected[0], rel=1e-3)
    assert by_our_trainer(stock, tmp_path / "run") == expected


@pytest.mark.parametrize("tokens", [2 * SLIDE, 2 * SLIDE + 1, 6 * SLIDE - 1])
def test_a_long_text_is_read_in_blocks_as_the_stock_model_reads_it(base: str, tokens: int) -> None:
    model, stock = loaded(base).eval(), loaded(base).eval()
    stock.base_model._forward_pre_hooks.clear()
    ids, more = IDS.repeat(2, 1)[:, :tokens], IDS.repeat(2, 1)[:, :1]
    ones = torch.ones_like(ids)
    (hook,) = model.base_model._forward_pre_hooks.values()
    assert bool(hook(model.base_model, (), {"attention_mask": ones})) == (tokens > 2 * SLIDE)
    with torch.no_grad():
        read = model(ids, ones, **{CACHE: DynamicCache(config=model.config)})
        torch.testing.assert_close(read.logits, stock(ids, ones).logits)
        following = model(more, torch.cat([ones, more**0], 1), **{CACHE: read.past_key_values}).logits[:, -1]
        torch.testing.assert_close(following, stock(torch.cat([ids, more], 1)).logits[:, -1])
        padded = ones.index_fill(1, torch.arange(3), 0)
        torch.testing.assert_close(model(ids, padded).logits[:, 3:], stock(ids, padded).logits[:, 3:])


@pytest.mark.parametrize("how", ["evaluated", "with a cache", "by flash attention"])
def test_what_is_not_trained_is_the_stock_models(base: str, how: str) -> None:
    model = loaded(base).train(how != "evaluated")
    (hook,) = model.base_model._forward_pre_hooks.values()
    given = {"attention_mask": torch.ones_like(SKIPPED), "position_ids": SKIPPED}
    assert hook(model.base_model.train(), (), given)
    if how == "evaluated":
        model.eval()
        given = {name: row[:, : 2 * SLIDE] for name, row in given.items()}
    if how == "with a cache":
        given[CACHE] = DynamicCache(config=model.config)
    if how == "by flash attention":
        model.config._attn_implementation = "flash_attention_2"
    assert hook(model.base_model, (), given) is None


def test_a_model_gets_the_hook_once_and_only_if_it_slides() -> None:
    sliding, plain = families.model("gemma3"), families.model("llama")
    for model in (sliding, sliding, plain):
        mask_by_position(model)
    assert [len(model.base_model._forward_pre_hooks) for model in (sliding, plain)] == [1, 0]
