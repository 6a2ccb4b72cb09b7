"""Text of other kinds: how it is cut, and that a text that was trained on is not read."""

import io

import numpy as np
import pytest
from rich.console import Console

from skipwise.data.shipped import KINDS, shipped_text
from skipwise.data.tokenising import tokenise
from skipwise.evaluation.other_text import cut_segments, longest_segment, most_segments, other_text
from skipwise.model.origin import Origin
from skipwise.recipes.schema import Data
from skipwise.results.records import OTHER_TEXT
from tests.tiny import byte_tokenizer


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=500)


@pytest.mark.parametrize(
    ("tokens", "window", "begins", "length"),
    [
        (260, 30, [30 * n for n in range(8)], 30),  # the last 20 tokens are not read
        (240, 30, [30 * n for n in range(8)], 30),
        (239, 30, [29 * n for n in range(8)], 29),  # shorter than the window, so that there are eight
        (16, 30, [2 * n for n in range(8)], 2),
        (15, 30, [], 0),  # nothing to score
        (0, 30, [], 0),
        (100_000, 1024, [1024 * n for n in range(16)], 1024),  # 16,384 tokens
        (100_000, 60_000, [2048 * n for n in range(8)], 2048),  # as many tokens, and eight segments
        (100_000, 256, [256 * n for n in range(32)], 256),  # 32 segments
    ],
)
def test_a_document_is_cut_into_segments_that_fit_the_window(tokens, window, begins, length) -> None:
    document = np.arange(tokens)
    cut = cut_segments("prose", document, window)
    assert [segment.begin for segment in cut] == begins
    for segment in cut:
        assert segment.tokens.tolist() == list(range(segment.begin, segment.begin + length))
    assert len(cut) <= most_segments(longest_segment(window))


def test_every_kind_is_read_and_needs_no_text_of_the_user(console) -> None:
    text = other_text(byte_tokenizer(), 512, [Origin("base", 512, Data())], console)
    [(length, segments)] = text.segments.items()
    assert (text.source, text.documents, text.windows, length) == (OTHER_TEXT, [], [], 512)
    assert [segment.document for segment in segments] == [kind for kind in KINDS for _ in range(32)]
    code = b"".join(bytes(byte_tokenizer().decode(s.tokens), "utf-8") for s in segments if s.document == "code")
    assert b"stb_sprintf" in code
    assert console.file.getvalue() == ""


def test_a_document_that_was_trained_on_is_left_out(console, tmp_path) -> None:
    (tmp_path / "book.txt").write_text(shipped_text("prose"), encoding="utf-8")
    data = Data(source=str(tmp_path / "book.txt"), cache=str(tmp_path / "cache"))
    store = tokenise(data, byte_tokenizer(), Console(quiet=True))
    text = other_text(byte_tokenizer(), 512, [Origin("base", 512, data, store.digests)], console)
    assert {segment.document for segment in text.segments[512]} == {"mathematics", "code"}
    assert console.file.getvalue().startswith("the prose that ships with skipwise is in the training text")
