"""PoseCollator: whole laws over any documents, what decides a batch, and training with a stock Trainer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from transformers import Trainer, TrainingArguments

from skipwise.data.text import IGNORED
from skipwise.errors import DataError, RecipeError, SkipwiseError
from skipwise.recipes.schema import Positions
from skipwise.training.collator import PoseCollator
from tests.tiny import llama

pytestmark = pytest.mark.usefixtures("frozen_imports")
TRAIN, TARGET = 32, 256


def collator(epoch: int = 0, **options: Any) -> PoseCollator:
    made = PoseCollator(TRAIN, TARGET, **options)
    made.set_epoch(epoch)
    return made


def documents(*lengths: int, **fields: Any) -> list[dict[str, Any]]:
    """Items whose token ids never repeat within a document, so that a token names its place."""
    return [{"input_ids": list(range(i, i + length)), **fields} for i, length in enumerate(lengths)]


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


any_documents = st.lists(st.integers(TRAIN, 3 * TARGET), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(any_documents, st.integers(1, 8), st.booleans(), st.integers(0, 2**32), st.integers(0, 99))
def test_every_batch_keeps_the_laws(lengths, chunks, train_chunk_starts, seed, epoch) -> None:
    positions = Positions(chunks=chunks)
    options = {"positions": positions, "train_chunk_starts": train_chunk_starts, "seed": seed}
    batch = collator(epoch, **options)(documents(*lengths))
    assert {key: (value.shape, value.dtype) for key, value in batch.items()} == dict.fromkeys(
        ("input_ids", "position_ids", "labels", "attention_mask"), ((len(lengths), TRAIN), torch.int64)
    )
    assert (batch["attention_mask"] == 1).all()
    assert (batch["position_ids"].diff(dim=1) > 0).all()
    assert batch["position_ids"].max() < TARGET
    for i, length in enumerate(lengths):
        places = batch["input_ids"][i].numpy() - i
        assert places[0] >= 0
        assert places[-1] < length
        assert places[-1] - places[0] < TARGET
        skips = batch["position_ids"][i].numpy() - np.arange(TRAIN)
        jumps = np.flatnonzero(np.diff(places) != 1) + 1
        assert (np.diff(places) > 0).all()
        assert len(jumps) < chunks
        assert len(np.unique(skips)) <= chunks
        labels = batch["input_ids"][i].numpy().copy()
        if not train_chunk_starts:
            labels[jumps] = IGNORED
        assert (batch["labels"][i].numpy() == labels).all()


@settings(max_examples=15, deadline=None)
@given(any_documents, st.randoms())
def test_an_items_example_depends_on_nothing_but_seed_epoch_and_tokens(lengths, random) -> None:
    items = documents(*lengths)
    whole, order = collator(3)(items), random.sample(range(len(items)), len(items))
    shuffled = collator(3)([items[i] for i in order])
    assert equal(shuffled, {key: value[order] for key, value in whole.items()})
    for i, item in enumerate(items):
        assert equal(collator(3)([item]), {key: value[[i]] for key, value in whole.items()})


def test_labels_are_taken_from_the_same_places_as_the_tokens() -> None:
    [item] = documents(200)
    labels = [IGNORED if token < 120 else token + 1000 for token in item["input_ids"]]
    batch = collator()([item | {"labels": labels}] * 3)
    tokens, kept = batch["input_ids"], batch["labels"]
    assert (kept[tokens < 120] == IGNORED).all()
    trained = (tokens >= 120) & (kept != IGNORED)
    assert (kept[trained] == tokens[trained] + 1000).all()


def test_an_example_begins_with_the_bos_that_its_document_begins_with() -> None:
    items = documents(200, 200)  # their first tokens: 0 and 1
    plain, begun = collator()(items), collator(bos_token_id=0)(items)
    assert equal({key: value[1:] for key, value in plain.items()}, {key: value[1:] for key, value in begun.items()})
    assert begun["input_ids"][0, 0] == 0
    assert plain["input_ids"][0, 0] > 0
    assert begun["labels"][0, 1] == IGNORED
    assert torch.equal(plain["input_ids"][:, 1:], begun["input_ids"][:, 1:])


class Documents(torch.utils.data.Dataset):
    """A data set as a user has it, without epochs."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        return documents(*[60 + 20 * index] * (index + 1))[index]


def test_workers_that_outlive_an_epoch_see_the_next_one() -> None:
    made = collator()
    loader = torch.utils.data.DataLoader(
        Documents(), batch_size=3, num_workers=1, persistent_workers=True, collate_fn=made
    )
    for epoch in range(2):
        made.set_epoch(epoch)
        batches = list(loader)
        again = [collator(epoch)([Documents()[i] for i in range(first, first + 3)]) for first in range(0, 12, 3)]
        assert all(equal(a, b) for a, b in zip(batches, again, strict=True))


def train(folder: Path, steps: int, resume: bool = False) -> list[tuple[int, dict[str, torch.Tensor]]]:
    """Return each batch with its epoch."""
    made, seen = PoseCollator(TRAIN, TARGET), []

    def collate(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        seen.append((int(made._epoch), made(items)))
        return seen[-1][1]

    settings = {"per_device_train_batch_size": 2, "save_steps": 3, "report_to": [], "use_cpu": True, "seed": 5}
    arguments = TrainingArguments(str(folder), max_steps=steps, disable_tqdm=True, **settings)
    model = llama(window=TARGET, vocab_size=400)
    trainer = Trainer(model, arguments, train_dataset=Documents(), data_collator=collate, callbacks=[made])
    trainer.train(resume_from_checkpoint=resume)
    return seen


def test_a_stock_trainer_sets_the_epoch_and_resumes_exactly(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 10)
    assert [epoch for epoch, _ in whole[:10]] == [0] * 6 + [1] * 4
    train(tmp_path / "part", 3)
    resumed = train(tmp_path / "part", 10, resume=True)
    assert [epoch for epoch, _ in resumed[:7]] == [0] * 3 + [1] * 4
    assert all(equal(a, b) for (_, a), (_, b) in zip(whole[3:10], resumed, strict=False))
    assert not equal(whole[0][1], whole[6][1])


@pytest.mark.parametrize(
    "items",
    [
        documents(100, 31),  # shorter than an example
        [{"text": "the sky"}],
        documents(50, labels=[1] * 49),
        documents(50, attention_mask=[1] * 48 + [0] * 2),  # padding
    ],
)
def test_what_cannot_be_collated_is_refused(items: list[dict[str, Any]]) -> None:
    with pytest.raises(DataError):
        collator()(items)
    with pytest.raises(RecipeError):  # the epoch is unknown
        PoseCollator(TRAIN, TARGET)(documents(100))
    for lengths in ((256, 32), ("x", 32)):
        with pytest.raises(SkipwiseError):
            PoseCollator(*lengths)
