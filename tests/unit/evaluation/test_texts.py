"""What is read of a text: held-out documents only, the longest first, and segments spread over documents."""

import io

import numpy as np
import pytest
from rich.console import Console

from skipwise.data.store import TokenStore, tokenise
from skipwise.data.text import KINDS, is_held_out, shipped_text
from skipwise.errors import DataError, RecipeError
from skipwise.evaluation.specification import (
    cut_segments,
    fair_documents,
    filled_windows,
    longest_documents,
    longest_segment,
    most_segments,
    other_text,
    spread_segments,
)
from skipwise.model.config import Origin
from skipwise.recipes.schema import Data
from skipwise.results.records import OTHER_TEXT
from tests.tiny import byte_tokenizer


class Store(list):
    """Stands for a token store of documents of these lengths."""

    def __init__(self, *lengths: int) -> None:
        super().__init__(np.arange(n) for n in lengths)
        self.lengths, self.names = np.array(lengths, dtype=int), [f"d{i}" for i in range(len(lengths))]
        self.digests = np.arange(len(lengths), dtype="<u8")

    def document(self, i: int) -> np.ndarray:
        return self[i]

    bos = None
    span = TokenStore.span


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=500)


MINE = Data(source="mine", held_out=0.3)
STDLIB = Data(source="stdlib")


@pytest.mark.parametrize(
    ("text", "trained_on", "share"),
    [
        (Data(source="other"), [MINE], None),
        (Data(source="mine"), [MINE, Data(source="mine", held_out=0.2)], 0.2),
        (Data(source="mine", held_out=0.9), [MINE], 0.3),  # what training held out counts, not what is asked
        (Data(source="mine", split="test"), [MINE], None),  # another split holds other documents
        (STDLIB, [], 0.1),  # the embedded model was trained on it
    ],
)
def test_which_share_may_be_read(text, trained_on, share, console) -> None:
    store = Store(*range(1, 201))
    fair = fair_documents(store, text, [Origin("base", 64, one) for one in trained_on], console)
    assert fair.tolist() == [i for i in range(200) if share is None or is_held_out(f"d{i}", share)]
    assert bool(console.file.getvalue()) == (share is not None)


def test_documents_that_were_trained_on_are_known_by_their_text_wherever_they_lie(console) -> None:
    store, text = Store(*range(1, 9)), Data(source="a copy")
    made = [Origin("base", 64, MINE, np.array([1, 5, 99], dtype="<u8"))]
    assert fair_documents(store, text, made, console).tolist() == [0, 2, 3, 4, 6, 7]
    by_name = fair_documents(store, MINE, made, console).tolist()
    assert by_name == [i for i in (0, 2, 3, 4, 6, 7) if is_held_out(f"d{i}", 0.3)]


def test_the_longest_documents_that_fill_the_window_are_taken_and_cut(console) -> None:
    store, candidates = Store(9, 50, 30, 70), np.array([0, 1, 2])
    assert filled_windows(store, candidates, [32, 16], console) == [16, 32]
    assert console.file.getvalue() == ""
    taken = longest_documents(store, candidates, at_least=32, most=2, limit=40)
    assert [(one.document, len(one.tokens)) for one in taken] == [("d1", 40)]
    taken = longest_documents(store, candidates, at_least=20, most=2, limit=None)
    assert [(one.document, len(one.tokens)) for one in taken] == [("d1", 50), ("d2", 30)]
    assert filled_windows(store, candidates, [64, 8, 20], console) == [8, 20]
    assert console.file.getvalue()
    for few in ([], [0]):
        with pytest.raises(DataError):
            filled_windows(store, np.array(few, dtype=int), [16, 32], console)
    with pytest.raises(RecipeError):
        longest_documents(store, candidates, at_least=32, most=1, limit=20)


def test_every_document_gives_a_segment_before_any_gives_a_second() -> None:
    store = Store(9, 50, 30, 70)
    segments = spread_segments(store, np.arange(4), 20, 5)
    assert [(one.document, one.begin) for one in segments] == [
        ("d3", 0), ("d1", 0), ("d2", 0), ("d3", 20), ("d1", 20)
    ]  # fmt: skip
    np.testing.assert_array_equal(segments[4].tokens, store.document(1)[20:40])
    assert len(spread_segments(store, np.arange(4), 20, 99)) == 3 + 2 + 1


@pytest.mark.parametrize(
    ("tokens", "window", "begins", "length"),
    [
        (260, 30, [30 * n for n in range(8)], 30),  # the last 20 tokens are not read
        (239, 30, [29 * n for n in range(8)], 29),  # shorter than the window, so that there are eight
        (15, 30, [], 0),  # nothing to score
        (100_000, 1024, [1024 * n for n in range(16)], 1024),  # 16,384 tokens
        (100_000, 60_000, [2048 * n for n in range(8)], 2048),  # as many tokens, and eight segments
    ],
)
def test_a_document_is_cut_into_segments_that_fit_the_window(tokens, window, begins, length) -> None:
    document = np.arange(tokens)
    cut = cut_segments("prose", document, window)
    assert [segment.begin for segment in cut] == begins
    for segment in cut:
        assert segment.tokens.tolist() == list(range(segment.begin, segment.begin + length))
    assert len(cut) <= most_segments(longest_segment(window))


def test_every_kind_is_read_but_what_was_trained_on(console, tmp_path) -> None:
    text = other_text(byte_tokenizer(), 512, [Origin("base", 512, Data())], console)
    [(length, segments)] = text.segments.items()
    assert (text.source, text.documents, text.windows, length) == (OTHER_TEXT, [], [], 512)
    assert [segment.document for segment in segments] == [kind for kind in KINDS for _ in range(32)]
    (tmp_path / "book.txt").write_text(shipped_text("prose"), encoding="utf-8")
    data = Data(source=str(tmp_path / "book.txt"))
    trained_on = tokenise(data, byte_tokenizer(), Console(quiet=True)).digests
    text = other_text(byte_tokenizer(), 512, [Origin("base", 512, data, trained_on)], console)
    assert {segment.document for segment in text.segments[512]} == {"mathematics", "code"}
