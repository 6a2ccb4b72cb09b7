"""Examples: their content, that (seed, epoch, index) alone decides it, and which labels are trained."""

from pathlib import Path

import numpy as np
import pytest
import torch

from skipwise.data.examples import PoseDataset
from skipwise.data.spans import IGNORED
from skipwise.data.store import TokenStore
from skipwise.data.tokenising import build_token_store
from skipwise.data.window import collate
from skipwise.errors import DataError, RecipeError
from skipwise.recipes.schema import Data, Positions, Teacher
from tests.tiny import byte_tokenizer, corpus


def stored(folder: Path, words: int = 60) -> TokenStore:
    source = Data(source=str(corpus(folder / "text", words=words)), cache=str(folder / "cache"))
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
    chosen, plans, _ = data._drawn(indices)
    for i, example in enumerate(data.__getitems__(list(indices))):
        assert (example["input_ids"] == store.document(chosen[i])[plans.content_indices()[i]]).all()
        assert (example["position_ids"] == plans.position_ids()[i]).all()
        assert example["position_ids"].max() < 256
        assert (example["attention_mask"] == 1).all()


def test_the_label_after_a_jump_of_the_text_is_left_out_and_no_other(store: TokenStore) -> None:
    masked, trained = dataset(store), dataset(store, data=Data(train_jumps=True))
    jumps = 0
    for a, b in zip(masked.__getitems__(range(100)), trained.__getitems__(range(100)), strict=True):
        assert (b["labels"] == b["input_ids"]).all()
        left_out = np.flatnonzero(a["labels"] == IGNORED)
        assert len(left_out) <= 1
        assert (np.delete(a["labels"] - a["input_ids"], left_out) == 0).all()
        jumps += len(left_out)
    assert jumps > 50


@pytest.mark.parametrize("train_jumps", [False, True])
def test_labels_with_little_of_their_text_before_them_are_left_out(store: TokenStore, train_jumps: bool) -> None:
    data = dataset(store, data=Data(min_context=5, train_jumps=train_jumps))
    chosen, plans, _ = data._drawn(np.arange(60))
    rows = store.offsets[chosen][:, None] + plans.content_indices()
    for row, example in zip(rows, data.__getitems__(range(60)), strict=True):
        for place in range(64):
            before = 0
            while place > before and row[place - before - 1] == row[place] - before - 1:
                before += 1
            kept = example["input_ids"][place] if before >= 5 else IGNORED
            assert example["labels"][place] == kept


def test_a_passkey_prompt_keeps_its_labels_whatever_the_context(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    store = stored(tmp_path, words=400)
    options = {"tokenizer": tokenizer, "train_length": 400, "target_length": 1280}
    all_, some = (dataset(store, **options, data=Data(passkey=1.0, min_context=context)) for context in (0, 5))
    for index in range(20):
        plain, masked = all_[index], some[index]
        text = int(np.argmax(plain["labels"] == IGNORED))  # the label behind the text is left out by both
        (left_out,) = np.nonzero(plain["labels"] != masked["labels"])
        assert left_out.tolist() == list(range(min(5, text)))


@pytest.mark.parametrize("prompts", ["passkey", "retrieval"])
@pytest.mark.parametrize("scheme", ["pose", "cream", "short"])
def test_the_base_teaches_text_up_to_the_first_skip(tmp_path: Path, scheme: str, prompts: str) -> None:
    store = stored(tmp_path, words=400)
    shared = {"train_length": 400, "target_length": 1280, "positions": Positions(scheme=scheme, contiguous=0.2)}
    options = {**shared, "tokenizer": byte_tokenizer(), "data": Data(**{prompts: 0.3})}
    taught, same, plain = (
        dataset(store, **options, teacher=Teacher(weight=0.5)),
        dataset(store, **options),
        dataset(store, **shared),
    )
    prompted = learned = 0
    for index in range(60):
        example = taught[index]
        weights = example.pop("teacher_weights")
        assert (example.pop("teacher_positions") == np.arange(400)).all()
        assert equal(example, same[index])
        assert "teacher_weights" not in same[index]
        assert weights.dtype == np.float32
        alike = np.append(example["position_ids"] == np.arange(400), False)[:400]
        if equal(example, plain[index]):
            assert (weights == 0.5 * alike).all()
            continue
        prompted += 1
        following = str(byte_tokenizer().decode(example["input_ids"][1:][weights[:-1] > 0]))
        learned += np.count_nonzero(weights)
        assert not weights[~alike].any()
        assert not any(letter.isdigit() for letter in following)
        assert "pass key" not in following
    assert 0 < prompted < 40
    assert 0 < learned < 390 * prompted


def test_positions_of_a_retrieval_prompt_skip_once_between_telling_and_asking(tmp_path: Path) -> None:
    store = stored(tmp_path, words=400)
    options = {"data": Data(retrieval=1), "tokenizer": byte_tokenizer(), "train_length": 400, "target_length": 1280}
    data, lasts = dataset(store, **options), []
    for index in range(40):
        example, positions = data[index], data[index]["position_ids"]
        lasts.append(int(positions[-1]))
        (jumps,) = np.nonzero(np.diff(positions) != 1)
        assert len(jumps) == 1
        assert positions[0] == 0
        trained = example["labels"] != IGNORED
        assert (example["labels"][trained] == example["input_ids"][trained]).all()
        assert 0 < trained.sum() < 400
    assert set(lasts) == {399 + 880, 399 + 481, 399 + 82}  # so that every distance has the same chance
    for scheme in ("short", "cream"):
        positions = Positions(scheme=scheme)
        asked = dataset(store, **options, positions=positions)[0]["position_ids"]
        assert (
            asked == dataset(store, train_length=400, target_length=1280, positions=positions)[0]["position_ids"]
        ).all()


def test_labels_of_answers_count_as_asked(tmp_path: Path) -> None:
    store = stored(tmp_path, words=400)
    options = {"tokenizer": byte_tokenizer(), "train_length": 400, "target_length": 1280}
    plain, weighed = (dataset(store, **options, data=Data(retrieval=0.5, answer_weight=weight)) for weight in (1, 5))
    answers = 0
    for index in range(40):
        example = weighed[index]
        weights = example.pop("label_weights")
        assert equal(example, plain[index])
        assert set(weights.tolist()) <= {1.0, 5.0}
        (counted,) = np.nonzero((weights == 5) & (example["labels"] != IGNORED))
        if not len(counted):
            continue
        answers += 1
        words = str(byte_tokenizer().decode(example["labels"][counted])).split()
        assert all(word.isdigit() for word in words)
        before = example["labels"][: counted[0]]
        text = str(byte_tokenizer().decode(before[before != IGNORED]))
        assert not any(letter.isdigit() for letter in text)
    assert 10 < answers < 30
    assert "label_weights" not in dataset(store, **options, data=Data(answer_weight=5))[0]
    assert "label_weights" in dataset(store, **options, data=Data(retrieval=0.5, retrieval_end=0, answer_weight=5))[0]


def test_first_digits_of_answers_count_as_asked(tmp_path: Path) -> None:
    store = stored(tmp_path, words=400)
    options = {"tokenizer": byte_tokenizer(), "train_length": 400, "target_length": 1280}
    alike, first, only = (
        dataset(store, **options, data=Data(retrieval=1, answer_weight=weight, first_digit_weight=of_first))
        for weight, of_first in ((5, None), (5, 9), (1, 9))
    )
    for index in range(40):
        example = first[index]
        weights = example["label_weights"]
        answers = np.flatnonzero((weights > 1) & (example["labels"] != IGNORED))
        written = [str(byte_tokenizer().decode([id])) for id in example["input_ids"][answers]]
        begins = [
            word.isdigit() and not before.isdigit() for before, word in zip(["", *written], written, strict=False)
        ]
        assert any(begins)
        assert (weights[answers] == np.where(begins, 9, 5)).all()
        assert (alike[index]["label_weights"] == np.minimum(weights, 5)).all()
        assert (only[index]["label_weights"] == np.where(weights == 9, 9, 1)).all()


@pytest.mark.parametrize("train_jumps", [False, True])
def test_examples_of_written_texts_are_the_texts_joined(tmp_path: Path, train_jumps: bool) -> None:
    texts = 500 + np.arange(20)[:, None] * 30 + np.arange(30)  # twenty texts of 30 tokens that stand nowhere else
    shared = {"train_length": 400, "target_length": 1280, "tokenizer": byte_tokenizer()}
    shared |= {"data": Data(passkey=0.2, train_jumps=train_jumps), "written": texts}
    store = stored(tmp_path, words=400)
    data, plain = (
        dataset(store, **shared, teacher=Teacher(weight=0, written=share, written_weight=2)) for share in (0.3, 1e-9)
    )
    begins, chosen = np.arange(400) % 30 == 0, []
    for index in range(60):
        example = data[index]
        if equal(example, plain[index]):
            assert (example["input_ids"] < 500).all()
            assert not example["teacher_weights"].any()
            assert (example["teacher_positions"] == np.arange(400)).all()
            continue
        pieces = [(example["input_ids"][place] - 500) // 30 for place in range(0, 400, 30)]
        chosen += pieces
        assert len(set(pieces)) == 14  # a text that came twice would be copied, against what the teacher says
        assert (example["input_ids"] == np.concatenate([texts[piece] for piece in pieces])[:400]).all()
        assert (example["position_ids"] == np.arange(400)).all()
        kept = np.ones(400, dtype=bool) if train_jumps else ~begins
        assert (example["labels"] == np.where(kept, example["input_ids"], IGNORED)).all()
        assert (example["teacher_positions"] == np.arange(400) % 30).all()
        joined = (np.arange(400) >= 30) & (np.arange(400) % 30 < 30 // 4)  # where the model still reads the text before
        assert (example["teacher_weights"] == np.where(joined | (np.arange(400) % 30 == 29), 0, 2)).all()
    assert 8 < len(chosen) / 14 < 28
    assert set(chosen) == set(range(20))


def test_too_few_written_texts_to_fill_a_window_are_refused(store: TokenStore) -> None:
    texts, few, all_ = np.zeros((12, 8), dtype=np.int64), Teacher(written=1e-9), Teacher(written=1)
    with pytest.raises(DataError, match=r"written holds 12 texts of 8 tokens, and a window of 100 needs 13 of them"):
        dataset(store, train_length=100, target_length=1280, written=texts, teacher=few)
    dataset(store, train_length=96, target_length=1280, written=texts, teacher=all_)[0]
    full = {
        "train_length": 96,
        "target_length": 100,
        "positions": Positions(scheme="full"),
    }  # reads windows of the target
    with pytest.raises(
        DataError, match=r"a window of 100 needs 13 of them, each once; write more, or set teacher\.written to 0"
    ):
        dataset(store, **full, written=texts, teacher=few)
    dataset(store, train_length=100, target_length=1280, written=texts)


def test_shares_of_prompts_are_drawn_apart(tmp_path: Path) -> None:
    store = stored(tmp_path, words=400)
    options = {"train_length": 400, "target_length": 1280, "tokenizer": byte_tokenizer()}
    shares = Data(passkey=0.3, retrieval=0.3), Data(passkey=0.3), Data()
    data, only, plain = (dataset(store, **options, data=share) for share in shares)
    passkeys = [i for i in range(200) if not equal(only[i], plain[i])]
    prompts = [i for i in range(200) if not equal(data[i], plain[i])]
    assert all(equal(data[i], only[i]) for i in passkeys)
    assert 40 < len(passkeys) < 80 < len(prompts) < 160


def test_the_share_of_retrieval_prompts_goes_in_a_line_to_its_end(tmp_path: Path) -> None:
    store = stored(tmp_path, words=400)
    settings = {"train_length": 400, "target_length": 1280, "tokenizer": byte_tokenizer(), "examples": 1000}
    plain, always = dataset(store, **settings), dataset(store, **settings, data=Data(retrieval=0.8))

    def places(**shares: float) -> np.ndarray:
        data = dataset(store, **settings, data=Data(**shares))
        found = [*data.__getitems__(range(500)), *data.__getitems__(range(999, 499, -1))[::-1]]
        prompts = [not equal(example, plain[i]) for i, example in enumerate(found)]
        assert all(equal(found[i], always[i]) for i in np.flatnonzero(prompts))
        return np.add.reduceat(prompts, range(0, 1000, 250)) / 250

    assert places(retrieval=0.8, retrieval_end=0.0) == pytest.approx([0.7, 0.5, 0.3, 0.1], abs=0.08)
    assert places(retrieval=0.0, retrieval_end=0.8) == pytest.approx([0.1, 0.3, 0.5, 0.7], abs=0.08)
    assert places(retrieval=0.8) == pytest.approx([0.8] * 4, abs=0.08)


def test_full_length_windows_hold_prompts_as_long_as_themselves(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    store = stored(tmp_path, words=400)
    settings = {"train_length": 400, "target_length": 1280, "data": Data(passkey=1), "tokenizer": tokenizer}
    data = dataset(store, positions=Positions(scheme="full"), **settings)
    longest = max(1280 - int(np.argmax(example["labels"] == IGNORED)) for example in data.__getitems__(range(30)))
    assert longest > 800


def test_a_context_that_may_leave_no_label_is_refused(store: TokenStore) -> None:
    dataset(store, data=Data(min_context=31))
    with pytest.raises(
        DataError, match=r"min_context 32 may leave no label of 64 tokens in 2 chunks; choose a value below 32"
    ):
        dataset(store, data=Data(min_context=32))


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
    with pytest.raises(
        DataError, match=r"tokens of text are fewer than one example of 256; .*how many examples to draw"
    ):
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


def test_passkey_examples_hold_a_whole_prompt_and_its_answer(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    store = stored(tmp_path, words=120)
    data = dataset(store, train_length=400, target_length=1280, data=Data(passkey=1), tokenizer=tokenizer)
    texts = [tokenizer.decode(e["input_ids"]) for e in data.__getitems__(range(5))]
    for text in texts:
        before, _, answer = text.rpartition("The pass key is ")
        assert f"The pass key is {answer[:5]}. Remember it." in before


def test_collate_stacks() -> None:
    rows = [{"input_ids": np.arange(3)}, {"input_ids": np.arange(3) + 1}]
    batch = collate(rows)
    assert batch["input_ids"].tolist() == [[0, 1, 2], [1, 2, 3]]
    assert batch["input_ids"].dtype == torch.int64


def test_the_full_scheme_reads_documents_of_the_target_length(tmp_path: Path) -> None:
    for name, words in (("long", 900), ("short", 30)):
        (tmp_path / f"{name}.txt").write_text("word " * words)
    options = {"train_length": 64, "positions": Positions(scheme="full")}
    text = Data(source=str(tmp_path), held_out=0)
    data = PoseDataset.from_source(text, byte_tokenizer(), target_length=1024, **options)
    assert len(data.documents) == 1
    assert len(data[0]["input_ids"]) == 1024
    with pytest.raises(DataError, match=r"8,192 tokens .* target$"):
        PoseDataset.from_source(text, byte_tokenizer(), target_length=8192, **options)


def test_what_cannot_be_drawn_from_is_explained(store: TokenStore) -> None:
    with pytest.raises(DataError, match="no document is left"):
        PoseDataset(store, np.array([], dtype=int), train_length=8, target_length=16)
    with pytest.raises(DataError, match="is shorter than an example of 100,000"):
        dataset(store, train_length=100_000, target_length=200_000)
    with pytest.raises(RecipeError, match="seed -1 must be at least 0 and a whole number; correct it"):
        dataset(store, seed=-1)
    with pytest.raises(DataError, match="needs a tokenizer"):
        dataset(store, data=Data(passkey=0.1))
    with pytest.raises(DataError, match="too short for a retrieval prompt"):
        dataset(store, data=Data(passkey=0.5), tokenizer=byte_tokenizer())
    with pytest.raises(DataError, match="too short for retrieval prompts of 254 tokens"):
        dataset(store, data=Data(retrieval=0.5), tokenizer=byte_tokenizer())
    with pytest.raises(RecipeError, match=r"data.passkey \+ data.retrieval = 1.5 must not exceed 1"):
        dataset(store, data=Data(passkey=0.5, retrieval=1), tokenizer=byte_tokenizer())
    with pytest.raises(RecipeError, match=r"data.passkey \+ teacher.written = 1.5 must not exceed 1"):
        dataset(store, data=Data(passkey=0.5), teacher=Teacher(written=1), tokenizer=byte_tokenizer())
    with pytest.raises(RecipeError, match=r"data.passkey \+ data.retrieval = 1.1 must not exceed 1"):
        dataset(store, data=Data(passkey=0.6, retrieval=0.5, retrieval_end=0), tokenizer=byte_tokenizer())
    with pytest.raises(DataError, match=r"data.retrieval_end = 0\.5 needs a tokenizer"):
        dataset(store, data=Data(retrieval_end=0.5))
    for none in (None, np.zeros(8, dtype=np.int64)):
        with pytest.raises(
            DataError, match=r"teacher.written = 1 needs texts; give written, an array \[texts, tokens\], or"
        ):
            dataset(store, teacher=Teacher(written=1), written=none)
    with pytest.raises(DataError, match="train length 7 is too short for 2 chunks; choose at least 8 tokens"):
        dataset(store, train_length=7)


def test_the_data_set_ends(store: TokenStore) -> None:
    data = dataset(store, examples=5)
    assert len(list(data)) == 5
    for index in (5, -1):
        with pytest.raises(IndexError, match=f"example {index} is not in 0..4"):
            data[index]


def test_from_source_reads_a_folder(tmp_path: Path) -> None:
    data = PoseDataset.from_source(
        Data(source=str(corpus(tmp_path / "text")), cache=str(tmp_path)),
        byte_tokenizer(),
        train_length=64,
        target_length="1k",
    )
    assert len(data) > 50
    assert data[0]["position_ids"].shape == (64,)


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
    assert (of(held_out=0, min_context=9)[0]["labels"][:9] == IGNORED).all()
    with pytest.raises(DataError, match=r"join documents, or lower data\.min_tokens$"):
        of(min_tokens=100_000)
    with pytest.raises(DataError, match=r"data.held_out = 0.999 leaves none of 30 documents to train on"):
        of(held_out=0.999)
    assert Data(source=tmp_path) == Data(source=str(tmp_path))


def test_lengths_may_be_written_as_people_write_them(store: TokenStore) -> None:
    written, counted = (dataset(store, train_length=64, target_length=length) for length in ("1k", 1024))
    assert equal(written[3], counted[3])
