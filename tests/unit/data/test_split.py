from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipwise.data.documents import is_held_out
from skipwise.data.split import Split, split_documents
from skipwise.errors import DataError
from skipwise.recipes.schema import Data


def store(*lengths: int, conversations: bool = False) -> SimpleNamespace:
    """Documents 0.txt, 1.txt, ... of these lengths."""

    class Store(SimpleNamespace):
        def __len__(self) -> int:
            return len(lengths)

    names = [f"{i}.txt" for i in range(len(lengths))]
    return Store(lengths=np.array(lengths), names=names, holds_conversations=conversations)


@given(lengths=st.lists(st.integers(0, 60), min_size=1, max_size=40), share=st.floats(0, 0.9), least=st.integers(1, 60))
def test_documents_are_split_by_name_and_length(lengths: list[int], share: float, least: int) -> None:
    text = store(*lengths)
    out = [is_held_out(name, share) for name in text.names]
    long = [i for i, length in enumerate(lengths) if not out[i] and length >= max(least, 20)]
    data = Data(held_out=share, min_tokens=least)
    if not long:
        with pytest.raises(DataError, match=r"left to train on|leaves none of"):
            split_documents(text, data, 20, whole=False)
        return
    split = split_documents(text, data, 20, whole=False)
    assert split.train.tolist() == long
    assert split.held_out.tolist() == np.flatnonzero(out).tolist()
    assert split.dropped == len(lengths) - sum(out) - len(long)


@pytest.mark.parametrize(
    ("least", "conversations", "whole", "shortest", "setting"),
    [
        (None, False, False, 64, "train_length"),
        (None, False, True, 64, "target"),
        (32, False, False, 64, "train_length"),
        (100, False, False, 100, "data.min_tokens"),
        (None, True, False, 2, "data.min_tokens"),
        (10, True, False, 10, "data.min_tokens"),
        (10, True, True, 64, "target"),
        (100, True, True, 100, "data.min_tokens"),
    ],
)
def test_a_document_fills_a_window_but_conversations_are_packed(least, conversations, whole, shortest, setting) -> None:
    text = store(*range(1, 200), conversations=conversations)
    split = split_documents(text, Data(held_out=0, min_tokens=least), 64, whole=whole)
    assert (split.shortest, split.setting) == (shortest, setting)
    assert split.train.tolist() == list(range(shortest - 1, 199))


@pytest.mark.parametrize(
    ("lengths", "share", "message"),
    [
        ([10, 30, 20, 5], 0, r"of 4 documents none of 64 tokens .* holding out 0; the longest are 1.txt \(30\), 2.txt \(20\), 0.txt "),
        ([10, 30], 0, r"give longer text, join documents, or lower train_length$"),
        ([100, 100], 0.9999, r"data.held_out = 0.9999 leaves none of 2 documents to train on; give more documents, or lower it"),
        ([100], 0.9999, r"leaves none of 1 document to train on"),
    ],
)  # fmt: skip
def test_a_text_that_leaves_nothing_is_explained(lengths: list[int], share: float, message: str) -> None:
    with pytest.raises(DataError, match=message):
        split_documents(store(*lengths), Data(held_out=share), 64, whole=False)


def test_where_a_long_document_is_held_out_that_share_is_named() -> None:
    held = next(i for i in range(100) if is_held_out(f"{i}.txt", 0.1))
    lengths = [100 if i == held else 10 for i in range(held + 1)]
    with pytest.raises(DataError, match=r"or lower train_length or data\.held_out$"):
        split_documents(store(*lengths), Data(held_out=0.1), 64, whole=False)


def test_what_is_kept_is_told() -> None:
    nothing = np.empty(0, dtype=int)
    assert Split(np.arange(812), nothing, 2048, "train_length", 188).told == (
        "kept 812 of 1,000 documents, and left out 188 of fewer than 2,048 tokens. "
        "To keep more, lower `train_length` or join documents"
    )
    assert Split(np.arange(1000), nothing, 2048, "target", 0).told == (
        "kept 1,000 of 1,000 documents; none has fewer than 2,048 tokens"
    )
    assert Split(np.arange(1), nothing, 2048, "target", 0).told.startswith("kept 1 of 1 document;")
