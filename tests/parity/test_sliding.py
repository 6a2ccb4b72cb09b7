"""Sliding layers count their window in positions, in any training loop; without a skip that is the stock model."""

import copy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer, TrainingArguments

from skipwise.model.blocked_attention import CACHE
from skipwise.model.config import load_config
from skipwise.model.extension import plan_extension
from skipwise.model.loading import load_model
from skipwise.model.lora import adapt
from skipwise.model.sliding import attention_masks, mask_by_position
from skipwise.recipes.schema import Lora, Training
from skipwise.training.trainer import train
from tests import families

SLIDE = 16
IDS = torch.arange(96)[None] * 7 % 89 + 3
SKIPPED = torch.cat([torch.arange(40), torch.arange(150, 206)])[None]
FAMILIES = [("gemma2", "eager"), ("gemma3", "eager"), ("gemma3", "sdpa")]


def model_of(family: str, attention: str) -> PreTrainedModel:
    return families.model(family, attention).eval()


def masks_at(model: PreTrainedModel, positions: torch.Tensor):
    return attention_masks(model.config, torch.ones_like(positions), positions, model.dtype)


def logits(model: PreTrainedModel, ids: torch.Tensor, positions: torch.Tensor, mask) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False).logits


@pytest.mark.parametrize(("family", "attention"), FAMILIES)
def test_without_a_skip_it_is_the_stock_model(family: str, attention: str) -> None:
    model, positions = model_of(family, attention), torch.arange(96)[None]
    stock = logits(model, IDS, positions, torch.ones_like(positions))
    torch.testing.assert_close(logits(model, IDS, positions, masks_at(model, positions)), stock)


@pytest.mark.parametrize(("family", "attention"), FAMILIES)
def test_each_token_sees_those_that_it_should(family: str, attention: str) -> None:
    model = model_of(family, attention)
    masks = masks_at(model, SKIPPED)
    n = SKIPPED.shape[1]
    seen = {kind: torch.zeros(n, n, dtype=torch.bool) for kind in ("full_attention", "sliding_attention")}
    for query in range(n):
        for key in range(query + 1):
            seen["full_attention"][query, key] = True
            seen["sliding_attention"][query, key] = bool(SKIPPED[0, query] - SKIPPED[0, key] < SLIDE)
    for kind, wanted in seen.items():
        mask = masks[kind]
        if mask is None:  # causal by the kernel's own flag
            assert wanted.equal(torch.ones(n, n, dtype=torch.bool).tril())
            continue
        shown = mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] == 0
        assert shown.equal(wanted)


@pytest.mark.parametrize(("family", "attention"), FAMILIES)
def test_a_sliding_layer_does_not_see_over_a_skip_and_the_model_does(family: str, attention: str) -> None:
    """The first layer slides, the second attends to all; what changes is the last token before the skip."""
    model = model_of(family, attention)
    assert model.config.layer_types == ["sliding_attention", "full_attention"]
    other = IDS.clone()
    other[0, 39] += 1
    found: dict[str, torch.Tensor] = {}
    model.model.layers[0].register_forward_hook(
        lambda layer, inputs, output: found.update(layer=output[0] if isinstance(output, tuple) else output)
    )
    for mask, seen in ((torch.ones_like(SKIPPED), True), (masks_at(model, SKIPPED), False)):
        first, ours = logits(model, IDS, SKIPPED, mask), found["layer"]
        second, theirs = logits(model, other, SKIPPED, mask), found["layer"]
        assert bool((ours[:, 40:] != theirs[:, 40:]).any()) is seen
        assert (first[:, 40:] != second[:, 40:]).any()


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


def by_stock_trainer(model: PreTrainedModel, folder: Path) -> list[float]:
    arguments = TrainingArguments(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        optim="sgd",
        learning_rate=0.1,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        logging_steps=1,
        train_sampling_strategy="sequential",
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, stacked, Skipped())
    trainer.train()
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def by_our_trainer(model: PreTrainedModel, folder: Path) -> list[float]:
    settings = Training(
        max_steps=STEPS,
        batch_size=4,
        per_device_train_batch_size=4,
        optim="sgd",
        learning_rate=0.1,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        logging_steps=1,
        precision="float32",
    )
    losses: list[float] = []
    train(
        model,
        Skipped(),
        stacked,
        settings,
        folder=folder,
        seed=0,
        resume=False,
        on_log=lambda log: losses.append(log["loss"]),
        progress=False,
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


@pytest.mark.parametrize("loop", [by_plain_loop, by_stock_trainer])
def test_without_the_hook_a_loop_would_train_another_window(base, expected, tmp_path, loop) -> None:
    """The mutation of the test above."""
    model = loaded(base)
    model.base_model._forward_pre_hooks.clear()
    assert loop(model, tmp_path / "run")[0] != pytest.approx(expected[0], rel=1e-3)


def first_loss(model: torch.nn.Module) -> float:
    return model.train()(**stacked([Skipped()[i] for i in range(4)])).loss.item()


@pytest.mark.parametrize("way", ["copied", "checkpointing", "adapted", "ddp", "compiled"])
def test_the_hook_survives(base: str, expected: list[float], way: str, tmp_path: Path) -> None:
    model: torch.nn.Module = loaded(base)
    if way == "copied":
        model = copy.deepcopy(model)
    if way == "checkpointing":
        model.gradient_checkpointing_enable()
    if way == "adapted":
        model = adapt(model, Lora())
    if way == "compiled":
        model = torch.compile(model, backend="eager")
    if way == "ddp":
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ddp", rank=0, world_size=1)
        model = torch.nn.parallel.DistributedDataParallel(model)
    try:
        assert first_loss(model) == pytest.approx(expected[0], rel=1e-5)
    finally:
        if way == "ddp":
            torch.distributed.destroy_process_group()


def test_a_saved_model_is_stock_and_the_reloaded_one_has_the_hook(base, expected, tmp_path) -> None:
    loaded(base).save_pretrained(tmp_path)
    assert first_loss(load_model(str(tmp_path))) == pytest.approx(expected[0], rel=1e-5)
    assert first_loss(AutoModelForCausalLM.from_pretrained(tmp_path)) != pytest.approx(expected[0], rel=1e-3)


def test_evaluation_and_generation_are_those_of_the_stock_model(base: str) -> None:
    ours, stock = loaded(base).eval(), loaded(base).eval()
    stock.base_model._forward_pre_hooks.clear()
    batch = {name: value[None] for name, value in Skipped()[0].items()}
    with torch.no_grad():
        assert torch.equal(ours(**batch).logits, stock(**batch).logits)
        options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
        prompt = batch["input_ids"]
        assert torch.equal(ours.generate(prompt, **options), stock.generate(prompt, **options))


def test_a_cache_in_training_mode_is_left_alone(base: str) -> None:
    ours, stock = loaded(base).train(), loaded(base).train()
    stock.base_model._forward_pre_hooks.clear()
    ids, positions = IDS[:, :30], torch.arange(30)[None]
    with torch.no_grad():
        for model in (ours, stock):
            first = model(input_ids=ids[:, :20], position_ids=positions[:, :20], use_cache=True)
            model.last = model(
                input_ids=ids[:, 20:],
                position_ids=positions[:, 20:],
                attention_mask=torch.ones_like(ids),
                **{CACHE: first[CACHE]},
            ).logits
    assert torch.equal(ours.last, stock.last)


def test_a_model_gets_the_hook_once_and_only_if_it_slides() -> None:
    sliding, plain = families.model("gemma3"), families.model("llama")
    for model in (sliding, sliding, plain, adapt(sliding, Lora())):
        mask_by_position(model)
    assert len(sliding.base_model._forward_pre_hooks) == 1
    assert not plain.base_model._forward_pre_hooks


def test_flash_attention_takes_no_such_mask() -> None:
    model = families.model("gemma3")
    model.config._attn_implementation = "flash_attention_2"
    mask_by_position(model)
    (hook,) = model.base_model._forward_pre_hooks.values()
    given = {"attention_mask": torch.ones_like(SKIPPED), "position_ids": SKIPPED}
    assert hook(model.base_model.train(), (), given) is None


def test_our_trainer_adds_the_hook_to_any_model(base: str, expected: list[float], tmp_path: Path) -> None:
    loaded(base).save_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert by_our_trainer(model, tmp_path / "run") == expected
