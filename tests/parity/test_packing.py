"""Packed conversations have the losses of each alone, under every kind of layer, and a kernel that mixes them is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from skipwise.data.examples import PoseDataset, collate
from skipwise.data.store import TokenStore, build_token_store
from skipwise.data.text import IGNORED
from skipwise.errors import DataError, ModelError, RecipeError
from skipwise.model.attention import mask_by_position
from skipwise.recipes.schema import Data, Positions, Training
from skipwise.training.collator import RequirePositions
from skipwise.training.trainer import train
from tests import families
from tests.tiny import byte_tokenizer, llama

TRAIN, TARGET = 160, 512
CHATML = "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] + '</s>' }}{% endfor %}"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """Conversations of 50 to 200 tokens, of two to six turns."""
    folder = tmp_path_factory.mktemp("chat")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHATML
    with open(folder / "chat.jsonl", "w") as file:
        for number in range(12):
            turns = []
            for turn in range(1 + number % 3):
                turns.append({"role": "user", "content": f"{number} asks {turn} " + "word " * (number % 4)})
                turns.append({"role": "assistant", "content": f"says {number} {turn} " + "more " * (number % 5)})
            file.write(json.dumps({"messages": turns}) + "\n")
    return build_token_store(Data(source=str(folder / "chat.jsonl")), tokenizer)


def data_of(store: TokenStore, **options: Any) -> PoseDataset:
    lengths = {"train_length": TRAIN, "target_length": TARGET, "examples": 40}
    return PoseDataset(store, np.arange(len(store)), **lengths | options)


def packed_examples(data: PoseDataset) -> list[dict[str, np.ndarray]]:
    found = [data[index] for index in range(len(data))]
    return [example for example in found if example["attention_mask"].max() > 1]


def texts_of(example: dict[str, np.ndarray]) -> list[slice]:
    numbers = example["attention_mask"]
    return [slice(*np.flatnonzero(numbers == n)[[0, -1]] + [0, 1]) for n in range(1, numbers.max() + 1)]


def test_a_packed_window_holds_whole_beginnings_of_conversations(store: TokenStore) -> None:
    data = data_of(store)
    examples = packed_examples(data)
    assert len(examples) > 10
    assert all((data[3][name] == value).all() for name, value in data_of(store)[3].items())
    whole = {bytes(store.document(i).astype(np.uint8)) for i in range(len(store))}
    for example in examples:
        assert len(example["input_ids"]) == TRAIN
        for part in texts_of(example):
            ids, positions = bytes(example["input_ids"][part].astype(np.uint8)), example["position_ids"][part]
            assert any(one.startswith(ids) for one in whole)
            assert part.stop == TRAIN or ids in whole
            assert positions[0] == 0
            assert positions[-1] < TARGET
            assert (np.diff(positions) > 0).all()
            skips = np.flatnonzero(np.diff(positions) != 1) + 1
            assert len(skips) <= 1
            read = [byte_tokenizer().decode(example["input_ids"][part][skip:]) for skip in skips]
            assert all(text.startswith("</s><user>"[: len(text)]) for text in read)
            assert part.stop == TRAIN or all(len(text) > len("</s>") for text in read)  # the end of a text is no turn
            assert part.start == 0 or example["labels"][part.start] == IGNORED


def test_skips_reach_the_target_and_fall_on_several_turns(store: TokenStore) -> None:
    examples = packed_examples(data_of(store, examples=400))
    last = [example["position_ids"][part][-1] for example in examples for part in texts_of(example)]
    assert max(last) > 0.9 * TARGET
    three = packed_examples(data_of(store, examples=400, positions=Positions(chunks=3)))
    skips = [
        int((np.diff(example["position_ids"][part]) != 1).sum()) for example in three for part in texts_of(example)
    ]
    assert max(skips) == 2
    none = packed_examples(data_of(store, positions=Positions(scheme="no_skip")))
    assert all((np.diff(e["position_ids"][part]) == 1).all() for e in none for part in texts_of(e))


SLIDING = {"sliding_window": 16}
FITTED = [  # family, attention, what its config has otherwise, mode
    ("llama", "sdpa", {}, "train"),
    ("llama", "eager", {}, "eval"),
    ("gemma3", "sdpa", {}, "train"),
    ("gemma3", "sdpa", {}, "eval"),
    ("gemma2", None, {}, "train"),  # its own kernel, eager
    ("mistral", "sdpa", SLIDING, "train"),  # every layer slides
    ("qwen2", "sdpa", {**SLIDING, "use_sliding_window": True, "max_window_layers": 1}, "train"),
]


@pytest.mark.parametrize(("family", "attention", "changes", "mode"), FITTED)
def test_packed_logits_are_those_of_each_conversation_alone(
    store: TokenStore, family: str, attention: str | None, changes: dict[str, Any], mode: str
) -> None:
    model: PreTrainedModel = families.model(family, attention, vocab_size=300, **changes).train(mode == "train")
    mask_by_position(model)
    for example in packed_examples(data_of(store))[:3]:
        batch = collate([example])
        given = {name: batch[name] for name in ("input_ids", "position_ids", "attention_mask")}
        with torch.no_grad():
            together = model(**given).logits
            for part in texts_of(example):
                one = {name: batch[name][:, part] for name in ("input_ids", "position_ids")}
                alone = model(**one, attention_mask=torch.ones_like(one["input_ids"])).logits
                torch.testing.assert_close(together[:, part], alone, rtol=1e-5, atol=1e-5)


def test_a_kernel_that_mixes_conversations_is_refused(store: TokenStore, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("skipwise.training.trainer.mask_by_position", lambda model: None)  # which would fit the mask
    settings = Training(max_steps=2, global_batch_size=2, per_device_train_batch_size=2, precision="float32")
    data, options = torch.utils.data.Subset(data_of(store), range(4)), {"seed": 0, "resume": False}
    mixed = llama(TARGET, vocab_size=300)
    mixed.set_attn_implementation("eager")  # adds a bool mask to its scores
    train(llama(TARGET, vocab_size=300), data, collate, settings, folder=tmp_path / "sdpa", **options)
    with pytest.raises(ModelError, match="eager"):
        train(mixed, data, collate, settings, folder=tmp_path / "eager", **options)


def test_a_guarded_model_takes_packed_batches_if_its_layers_keep_them_apart(store: TokenStore) -> None:
    batch = collate(packed_examples(data_of(store))[:2])
    for family, attention in (("llama", "sdpa"), ("llama", "eager"), ("gemma3", "sdpa")):
        model = families.model(family, attention, vocab_size=300, max_position_embeddings=TARGET).train()
        RequirePositions(TARGET).watch(model)
        model(**batch)
    RequirePositions(TARGET).watch(model)
    with pytest.raises(RecipeError):
        model(**batch | {"attention_mask": torch.ones_like(batch["input_ids"])})
    with pytest.raises(DataError):
        data_of(store, positions=Positions(scheme="cream"))
