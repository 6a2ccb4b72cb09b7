"""Trainers of others: the same losses for the same keys, examples that run, and columns that must not be dropped."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from skipwise import PoseCollator, RequirePositions
from skipwise.errors import RecipeError
from tests.tiny import byte_tokenizer, llama

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
pytestmark = pytest.mark.usefixtures("frozen_imports")
TRAIN, TARGET, STEPS, BATCH = 32, 256, 20, 2
SETTINGS: dict[str, Any] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": BATCH,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "train_sampling_strategy": "sequential",
    "logging_steps": 1,
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "save_strategy": "no",
    "disable_tqdm": True,
}
DOCUMENTS = [
    {"input_ids": [(7 * place + place // 5 + item) % 257 for place in range(60 + 20 * item)]} for item in range(24)
]


def model() -> Any:
    return llama(window=TARGET).train()


def plain_losses() -> list[float]:
    """Those of a loop of four lines; 24 documents in batches of 2 are 12 steps, so the last eight are of a second epoch."""
    network, collator = model(), PoseCollator(TRAIN, TARGET)
    RequirePositions(TARGET).watch(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0)
    losses = []
    for step in range(STEPS):
        epoch, first = divmod(step * BATCH, len(DOCUMENTS))
        collator.set_epoch(epoch)
        loss = network(**collator(DOCUMENTS[first : first + BATCH]), use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def losses_of(trainer: Any) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_transformers_trainer_has_the_losses_of_a_plain_loop(tmp_path: Path) -> None:
    collator = PoseCollator(TRAIN, TARGET)
    trainer = Trainer(model(), TrainingArguments(str(tmp_path), **SETTINGS), collator, DOCUMENTS, callbacks=[collator])
    assert losses_of(trainer) == pytest.approx(plain_losses(), abs=1e-5)


def sft(folder: Path, data: Any, collator: Any, callbacks: list[Any], **options: Any) -> Any:
    trl = pytest.importorskip("trl")
    arguments = trl.SFTConfig(str(folder), **{**SETTINGS, "max_length": None, **options})
    return trl.SFTTrainer(model(), arguments, collator, data, processing_class=byte_tokenizer(), callbacks=callbacks)


def test_trl_has_the_losses_of_a_plain_loop(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    collator = PoseCollator(TRAIN, TARGET)
    trainer = sft(tmp_path, datasets.Dataset.from_list(DOCUMENTS), collator, [collator])
    assert losses_of(trainer) == pytest.approx(plain_losses(), abs=1e-5)


def test_columns_that_trl_drops_are_noticed_at_the_first_step(tmp_path: Path) -> None:
    """Examples as a Hugging Face data set, which is what a user of TRL tries first."""
    datasets = pytest.importorskip("datasets")
    collator = PoseCollator(TRAIN, TARGET)
    collator.set_epoch(0)
    data = datasets.Dataset.from_dict({name: values.tolist() for name, values in collator(DOCUMENTS).items()})
    kept = sft(tmp_path / "kept", data, collate_rows, [RequirePositions(TARGET)], remove_unused_columns=False)
    assert len(losses_of(kept)) == STEPS
    for collated in (None, collate_rows):
        trainer = sft(tmp_path / "dropped", data, collated, [RequirePositions(TARGET)])
        with pytest.raises(RecipeError, match="remove_unused_columns"):
            trainer.train()
        assert trainer.state.global_step == 0


def collate_rows(items: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([item[name] for item in items]) for name in items[0]}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_save_a_model_that_remembers_its_window(example: Path, tmp_path: Path, monkeypatch) -> None:
    source = example.read_text(encoding="utf-8")
    source = source.replace("range(20)", "range(2)").replace('"max_steps": 20', '"max_steps": 2')
    source = source.replace('.glob("*.py")', '.glob("[a-c]*.py")')  # reading the whole library takes half a minute
    for package in ("trl", "lightning"):
        if f"import {package}" in source or f"from {package} " in source:
            pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, str(example), "exec"), names)
    losses = names.get("losses") or [one["loss"] for one in names["trainer"].state.log_history if "loss" in one]
    assert len(losses) == 2
    [folder] = tmp_path.glob("runs/*/model")
    saved = AutoModelForCausalLM.from_pretrained(folder)
    assert saved.config.rope_parameters["rope_type"] == "yarn"
    assert saved.config.max_position_embeddings == 2048
