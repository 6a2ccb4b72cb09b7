"""Examples: their content, that (seed, epoch, index) alone decides it, and which labels are trained."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing

from skipwise.data.examples import PoseDataset, collate
from skipwise.data.store import TokenStore, build_token_store
from skipwise.data.text import IGNORED
from skipwise.errors import DataError
from skipwise.recipes.schema import Data, Positions
from tests.tiny import byte_tokenizer, corpus


def stored(folder: Path, words: int = 60) -> TokenStore:
    source = Data(source=str(corpus(folder / "text", words=words)))
    return build_token_store(source, byte_tokenizer())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    folder = tmp_path_factory.mktemp("corpus")
    return stored(folder)


def dataset(store: TokenStore, **options: object) -> PoseDataset:
    settings = {"train_length": 64, "target_length": 256, "examples": 200, **options}
    return PoseDataset(store, np.arange(len(store)), **settings)


def equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all((a[key] == b[key]).all() for key in a)


@pytest.mark.parametrize("content", ["paper", "even", "zero", "aligned"])
def test_every_token_is_the_documents_token_at_its_place(store: TokenStore, content: str) -> None:
    data = dataset(store, positions=Positions(content=content, chunks=3))
    indices = np.arange(100)
    chosen, plans = data._drawn(indices)
    for i, example in enumerate(data.__getitems__(list(indices))):
        assert (example["input_ids"] == store.document(chosen[i])[plans.content_indices()[i]]).all()
        assert (example["position_ids"] == plans.position_ids()[i]).all()
        assert example["position_ids"].max() < 256
        assert (example["attention_mask"] == 1).all()


def test_examples_begin_with_the_bos_of_a_tokenizer_that_adds_one(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    bos = [(tokenizer.bos_token, tokenizer.bos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<|endoftext|> $A", special_tokens=bos)
    store = build_token_store(Data(source=str(corpus(tmp_path / "text", words=60))), tokenizer)
    assert store.bos == 0
    assert store.span(0, 7, 9).tolist() == [0, store.document(0)[8]]
    data = dataset(store)
    chosen, plans = data._drawn(np.arange(100))
    for i, example in enumerate(data.__getitems__(range(100))):
        places = plans.content_indices()[i]
        assert example["input_ids"][0] == example["position_ids"][0] == 0
        assert (example["input_ids"][1:] == store.document(chosen[i])[places[1:]]).all()
        assert (example["labels"][1] == IGNORED) == (places[1] != 1)


def test_the_label_after_a_jump_of_the_text_is_left_out_and_no_other(store: TokenStore) -> None:
    masked, trained = dataset(store), dataset(store, data=Data(train_chunk_starts=True))
    jumps = 0
    for a, b in zip(masked.__getitems__(range(100)), trained.__getitems__(range(100)), strict=True):
        assert (b["labels"] == b["input_ids"]).all()
        left_out = np.flatnonzero(a["labels"] == IGNORED)
        assert len(left_out) <= 1
        assert (np.delete(a["labels"] - a["input_ids"], left_out) == 0).all()
        jumps += len(left_out)
    assert jumps > 50


def test_contiguous_text_keeps_every_label_though_positions_jump(store: TokenStore) -> None:
    data = dataset(store, positions=Positions(content="zero"))
    for example in data.__getitems__(range(50)):
        assert (example["labels"] == example["input_ids"]).all()
        assert np.diff(example["position_ids"]).max() >= 1


def test_text_of_less_than_one_example_is_refused(tmp_path) -> None:
    """Short conversations pass every other check; a loader would say that num_samples is 0."""
    (tmp_path / "chat.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}\n'
    )
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for turn in messages %}{{ turn.role }}: {{ turn.content }}. {% endfor %}"
    with pytest.raises(DataError, match="256"):
        PoseDataset.from_source(Data(source=str(tmp_path), held_out=0), tokenizer, train_length=256, target_length=512)


def test_an_example_is_a_function_of_seed_epoch_and_index(store: TokenStore) -> None:
    data, again = dataset(store), dataset(store)
    batch = data.__getitems__([5, 9, 150])
    assert equal(batch[1], again[9])
    assert not equal(batch[1], dataset(store, seed=1)[9])
    again.set_epoch(1)
    assert not equal(batch[1], again[9])


def test_workers_see_the_epoch_and_give_the_same_examples(store: TokenStore) -> None:
    data = dataset(store, examples=8)
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1, persistent_workers=True, collate_fn=collate)
    for epoch in range(2):
        data.set_epoch(epoch)
        batches = list(loader)
        wanted = collate(data.__getitems__(range(4)))
        assert torch.equal(batches[0]["position_ids"], wanted["position_ids"])
        assert torch.equal(batches[0]["input_ids"], wanted["input_ids"])


def test_the_full_scheme_reads_documents_of_the_target_length(tmp_path: Path) -> None:
    for name, words in (("long", 900), ("short", 30)):
        (tmp_path / f"{name}.txt").write_text("word " * words)
    options = {"train_length": 64, "positions": Positions(scheme="full_length")}
    text = Data(source=str(tmp_path), held_out=0)
    data = PoseDataset.from_source(text, byte_tokenizer(), target_length=1024, **options)
    assert len(data.documents) == 1
    assert len(data[0]["input_ids"]) == 1024
    with pytest.raises(DataError, match=r"8,192 tokens .* target$"):
        PoseDataset.from_source(text, byte_tokenizer(), target_length=8192, **options)


def test_what_cannot_be_drawn_from_is_refused(store: TokenStore) -> None:
    with pytest.raises(DataError):
        PoseDataset(store, np.array([], dtype=int), train_length=8, target_length=16)
    with pytest.raises(DataError, match="100,000"):
        dataset(store, train_length=100_000, target_length=200_000)


def test_the_data_set_ends(store: TokenStore) -> None:
    data = dataset(store, examples=5)
    assert len(list(data)) == 5
    for index in (5, -1):
        with pytest.raises(IndexError, match=f"example {index} is not in 0..4"):
            data[index]


def test_from_source_takes_every_setting_of_its_section(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text("word " * (10 + 10 * number))
    options = {"train_length": 64, "target_length": "1k"}

    def of(**settings: object) -> PoseDataset:
        return PoseDataset.from_source(Data(source=str(tmp_path), **settings), byte_tokenizer(), **options)

    every = of(held_out=0)
    assert len(every.documents) == 29  # one has 50 tokens, fewer than a window
    assert len(of(held_out=0, min_tokens=600).documents) == sum(every.store.lengths >= 600) < 30
    assert 10 < len(of(held_out=0.3).documents) < 29
    named = PoseDataset.from_source(str(tmp_path), byte_tokenizer(), **options)
    assert named.documents.tolist() == of(held_out=0.1).documents.tolist()
    assert sum(every.store.lengths >= 64) == len(of(held_out=0, min_tokens=32).documents)  # a window at least
    with pytest.raises(DataError, match=r"or lower data\.min_tokens$"):
        of(min_tokens=100_000)
    with pytest.raises(DataError, match=r"of 30 documents .* data\.held_out"):
        of(held_out=0.999)
    assert Data(source=tmp_path) == Data(source=str(tmp_path))
