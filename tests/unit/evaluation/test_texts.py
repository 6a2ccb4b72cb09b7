"""What is read of a text: held-out documents only, the longest first, and segments spread over documents."""

import io

import numpy as np
import pytest
from rich.console import Console

from skipwise.data.text import is_held_out
from skipwise.errors import DataError, RecipeError
from skipwise.evaluation.texts import (
    EvaluationText,
    Segment,
    fair_documents,
    filled_windows,
    longest_documents,
    spread_segments,
)
from skipwise.model.origin import Origin
from skipwise.recipes.schema import Data


class Store(list):
    """Stands for a token store of documents of these lengths."""

    def __init__(self, *lengths: int) -> None:
        super().__init__(np.arange(n) for n in lengths)
        self.lengths, self.names = np.array(lengths, dtype=int), [f"d{i}" for i in range(len(lengths))]
        self.digests = np.arange(len(lengths), dtype="<u8")

    def document(self, i: int) -> np.ndarray:
        return self[i]


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=500)


MINE = Data(source="mine", held_out=0.3)
STDLIB = Data(source="stdlib")


@pytest.mark.parametrize(
    ("text", "trained_on", "share"),
    [
        (Data(source="other"), [], None),
        (Data(source="other"), [MINE], None),
        (Data(source="mine"), [MINE], 0.3),
        (Data(source="mine"), [MINE, Data(source="mine", held_out=0.2)], 0.2),
        (Data(source="mine", held_out=0.9), [MINE], 0.3),  # what training held out counts, not what is asked
        (Data(source="mine", split="test"), [MINE], None),  # another split holds other documents
        (STDLIB, [], 0.1),  # the embedded model was trained on it
        (STDLIB, [Data(source="stdlib", held_out=0.3)], 0.1),
        (STDLIB, [Data(source="stdlib", held_out=0.05)], 0.05),
        (STDLIB, [MINE], 0.1),
    ],
)
def test_which_share_may_be_read(text, trained_on, share, console) -> None:
    store = Store(*range(1, 201))
    fair = fair_documents(store, text, [Origin("base", 64, one) for one in trained_on], console)
    assert fair.tolist() == [i for i in range(200) if share is None or is_held_out(f"d{i}", share)]
    told = (
        ""
        if share is None
        else f"{text.source}: {len(fair)} of 200 documents are read to measure; the others are for training"
    )
    assert console.file.getvalue().startswith(told)
    assert bool(console.file.getvalue()) == bool(told)


def test_documents_that_were_trained_on_are_known_by_their_text_wherever_they_lie(console) -> None:
    store, text = Store(*range(1, 9)), Data(source="a copy")
    made = [Origin("base", 64, MINE, np.array([1, 5, 99], dtype="<u8"))]
    assert fair_documents(store, text, made, console).tolist() == [0, 2, 3, 4, 6, 7]
    made.append(Origin("base", 64, MINE, np.array([0], dtype="<u8")))
    assert fair_documents(store, text, made, console).tolist() == [2, 3, 4, 6, 7]
    by_name = fair_documents(store, MINE, made, console).tolist()
    assert by_name == [i for i in (2, 3, 4, 6, 7) if is_held_out(f"d{i}", 0.3)]


@pytest.mark.parametrize("name", ["text", "./text", "text/", "{}"])
def test_a_folder_is_known_however_it_is_written(tmp_path, monkeypatch, console, name) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    made = [Origin("base", 64, Data(source="text", held_out=0.4))]
    fair = fair_documents(Store(*range(1, 99)), Data(source=name.format(tmp_path / "text")), made, console)
    assert fair.tolist() == [i for i in range(98) if is_held_out(f"d{i}", 0.4)]


def test_the_longest_documents_that_fill_the_window_are_taken_and_cut(console) -> None:
    store, candidates = Store(9, 50, 30, 70), np.array([0, 1, 2])
    assert filled_windows(store, candidates, [32, 16], console) == [16, 32]
    assert console.file.getvalue() == ""
    taken = longest_documents(store, candidates, at_least=32, most=2, limit=40)
    assert [(one.document, len(one.tokens)) for one in taken] == [("d1", 40)]
    taken = longest_documents(store, candidates, at_least=20, most=2, limit=None)
    assert [(one.document, len(one.tokens)) for one in taken] == [("d1", 50), ("d2", 30)]
    assert filled_windows(store, candidates, [64, 8, 20], console) == [8, 20]
    said = console.file.getvalue()
    assert "perplexity at 64 tokens is left out: the longest document to measure on, d1, has 50" in said


def test_text_that_cannot_be_measured_on_is_explained(console) -> None:
    other = r"text \(--set evaluation.source=OTHER of extend, --data OTHER of the other commands\), or"
    none = np.array([], dtype=int)
    with pytest.raises(
        DataError, match=f"no document of 2 is left to measure on, .*: measure on another {other} before training raise"
    ):
        filled_windows(Store(9, 5), none, [4], console)
    with pytest.raises(
        DataError, match=f"no document of 1 is left .*: measure on another {other} before training split"
    ):
        filled_windows(Store(9), none, [4], console)
    with pytest.raises(
        DataError, match=f"d0, has 9 tokens and does not fill a window of 16: measure on longer {other} at a smaller"
    ):
        filled_windows(Store(9, 5), np.arange(2), [16, 32], console)
    with pytest.raises(RecipeError, match="tokens_per_document 20 must be at least the largest window, 32"):
        longest_documents(Store(90, 50), np.arange(2), at_least=32, most=1, limit=20)


def test_every_document_gives_a_segment_before_any_gives_a_second() -> None:
    store = Store(9, 50, 30, 70)
    segments = spread_segments(store, np.arange(4), 20, 5)
    assert [(one.document, one.begin) for one in segments] == [
        ("d3", 0), ("d1", 0), ("d2", 0), ("d3", 20), ("d1", 20)
    ]  # fmt: skip
    assert {len(one.tokens) for one in segments} == {20}
    np.testing.assert_array_equal(segments[4].tokens, store.document(1)[20:40])
    assert len(spread_segments(store, np.arange(4), 20, 99)) == 3 + 2 + 1
    assert [one.document for one in spread_segments(store, np.array([2]), 30, 9)] == ["d2"]  # exactly as long
    assert spread_segments(store, np.array([0]), 20, 5) == []


def test_a_text_is_told_in_one_sentence_and_identified_by_its_tokens() -> None:
    documents = [Segment(f"d{i}", 0, np.arange(n)) for i, n in enumerate((90, 80, 70, 60))]
    text = EvaluationText("x", documents, [32], {}, "f")
    assert text.described == "x: reading 4 documents (d0, d1, d2, ...), 60 to 90 tokens of each"
    one = EvaluationText("x", documents[:1], [32], {}, "f")
    assert one.described == "x: reading 1 document (d0), 90 tokens of each"
    same = EvaluationText("y", [Segment(d.document, 0, d.tokens.astype(np.uint16)) for d in documents], [], {}, "g")
    assert same.digest == text.digest
    assert EvaluationText("x", documents[:3], [32], {}, "f").digest != text.digest
