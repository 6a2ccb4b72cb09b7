"""Which text the windows of every scheme are cut from; where only some tokens are trained, each window holds one of them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from skipwise.data.examples import NOWHERE, Answers, ExampleRules, PoseDataset
from skipwise.data.store import TokenStore
from skipwise.data.text import IGNORED
from skipwise.errors import DataError
from skipwise.method.positions import SCHEMES
from skipwise.method.rng import Rng
from skipwise.recipes.schema import Positions
from skipwise.training.collator import PoseCollator
from tests.tiny import byte_tokenizer
from tests.unit.data.test_tokenised import store_of

TRAIN, TARGET = 64, 512


def labelled(folder: Path, *documents: tuple[int, list[tuple[int, int]]]) -> TokenStore:
    """Documents of so many tokens, of which those in the spans are trained."""
    ids = byte_tokenizer()("The ferry leaves at nine, and the market opens when it lands. " * 80)["input_ids"]
    records = []
    for tokens, spans in documents:
        labels = np.full(tokens, IGNORED)
        for begin, end in spans:
            labels[begin:end] = ids[begin:end]
        records.append({"input_ids": ids[:tokens], "labels": labels.tolist()})
    return store_of(folder, records)


POSITIONS = st.one_of(
    st.builds(
        Positions,
        chunks=st.integers(1, 3),
        content=st.sampled_from(["paper", "even", "zero", "aligned"]),
        no_skip_share=st.sampled_from([0.0, 0.5]),
    ),
    st.builds(Positions, scheme=st.sampled_from(["no_skip", "cream", "randpos"])),
)


@settings(deadline=None, max_examples=200)
@given(positions=POSITIONS, length=st.integers(TRAIN, 3 * TARGET), share=st.floats(0, 1), seed=st.integers(0, 9))
def test_the_aim_is_trained_and_the_window_is_lawful(
    positions: Positions, length: int, share: float, seed: int
) -> None:
    rules = ExampleRules(TRAIN, TARGET, positions)
    examples, place = 16, 1 + round(share * (length - 2))
    rng, lengths, aims = Rng.of(seed, 0, np.arange(examples)), np.full(examples, length), np.full(examples, place)
    plans, free = rules.plan(rng, lengths, aims), rules.plan(rng, lengths)
    assert (plans.position_ids() == free.position_ids()).all()
    assert (np.diff(plans.offsets, axis=1) >= 0).all()
    assert ((plans.offsets >= 0) & (plans.offsets <= (lengths - TRAIN)[:, None])).all()
    places = plans.content_indices()
    trained = rules.trained(places, places)
    trained[:, 0] = IGNORED  # nothing predicts the first token of a window
    assert (trained == place).any(axis=1).all()


def test_examples_without_an_aim_are_as_drawn() -> None:
    rules = ExampleRules(TRAIN, TARGET, Positions())
    rng, lengths = Rng.of(0, 0, np.arange(9)), np.full(9, 3 * TARGET)
    plans, free = rules.plan(rng, lengths, np.where(np.arange(9) % 2, 700, NOWHERE)), rules.plan(rng, lengths)
    assert (plans.offsets[::2] == free.offsets[::2]).all()
    assert (np.diff(plans.offsets[1::2]) == np.diff(free.offsets[1::2])).any()


def test_every_trained_token_is_drawn_as_often(tmp_path: Path) -> None:
    store = labelled(tmp_path, (300, [(0, 4), (100, 102), (299, 300)]), (80, [(0, 80)]), (90, [(3, 5)]))
    answers = Answers(store)
    assert answers.counts.tolist() == [3 + 2 + 1, 80 - 1, 2]
    rng = Rng.of(0, 0, np.arange(5000))
    places, counts = np.unique(answers.draw(rng, np.zeros(5000, dtype=int)), return_counts=True)
    assert places.tolist() == [1, 2, 3, 100, 101, 299]
    assert counts.min() > 700
    assert np.unique(answers.draw(rng, np.full(5000, 2))).tolist() == [3, 4]
    assert (answers.draw(rng, np.full(5000, 1)) == NOWHERE).all()


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_every_example_trains_something(tmp_path: Path, scheme: str) -> None:
    store = labelled(tmp_path, (3000, [(2990, 3000)]), (2000, [(5, 8)]), (900, [(0, 900)]), (700, []))
    options = {"train_length": TRAIN, "target_length": TARGET, "examples": 200, "positions": Positions(scheme=scheme)}
    data = PoseDataset(store, np.arange(4), **options)
    assert data.documents.tolist() == [0, 1, 2]  # the last has nothing to train
    for example in data.__getitems__(range(200)):
        assert (example["labels"][1:] != IGNORED).any()


def test_documents_that_train_nothing_are_refused(tmp_path: Path) -> None:
    store = labelled(tmp_path, (300, [(0, 1)]), (200, []))
    with pytest.raises(DataError):
        PoseDataset(store, np.arange(2), train_length=TRAIN, target_length=TARGET)


def test_the_collator_draws_around_labels() -> None:
    ids = np.arange(4000) % 90
    labels = np.full(4000, IGNORED)
    labels[3970:3975] = ids[3970:3975]
    collator = PoseCollator(TRAIN, TARGET)
    for epoch in range(50):
        collator.set_epoch(epoch)
        batch = collator([{"input_ids": ids, "labels": labels}, {"input_ids": ids}])
        assert (batch["labels"][:, 1:] != IGNORED).any(dim=1).all()


@pytest.mark.parametrize("target", [256, 2048])
@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_every_scheme_reads_all_parts_of_a_document_as_often(scheme: str, target: int) -> None:
    train, document, examples = 32, 1280, 10_000  # near its ends a document is read more rarely by all
    if scheme == "full_length" and target > document:
        pytest.skip("the document does not hold one example")

    def shares(scheme: str, content: str) -> np.ndarray:
        rules = ExampleRules(train, target, Positions(scheme=scheme, content=content))
        places = rules.plan(Rng.of(0, 0, np.arange(examples)), np.full(examples, document)).content_indices()
        return np.histogram(places, bins=10, range=(0, document))[0] / places.size

    even = shares("no_skip", "even")
    assert (np.abs(even[1:-1] - 0.1) < 0.01).all()
    if scheme != "full_length":  # long examples reach the ends of the document more rarely
        np.testing.assert_allclose(shares(scheme, "even"), even, atol=0.01)
    if scheme == "pose":
        np.testing.assert_allclose(shares(scheme, "zero"), even, atol=0.01)
        np.testing.assert_allclose(shares(scheme, "aligned"), even, atol=0.01)
        assert shares(scheme, "paper")[0] > 1.5 * even[0]
