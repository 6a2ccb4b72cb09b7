"""RULER's texts: which files are read, what stands in for them, what is said where they are missing."""

import json

import pytest

from skipwise.data.ruler import RulerData, read_ruler_data, ruler_prompt
from skipwise.data.ruler.sources import read_library, sentences
from skipwise.errors import DataError
from tests.questions import SQUAD
from tests.tiny import byte_tokenizer


def test_essays_are_read_from_rulers_file_or_from_text_files(tmp_path) -> None:
    folder = tmp_path / "PaulGrahamEssays"
    folder.mkdir()
    (folder / "b.txt").write_text("Three\n\nfour.", encoding="utf-8")
    (folder / "a.txt").write_text("One.  Two", encoding="utf-8")
    assert read_ruler_data(tmp_path) == RulerData(["One.", "Two", "Three", "four."], True, tmp_path)
    (tmp_path / "PaulGrahamEssays.json").write_text(json.dumps({"text": "Of\tRULER."}), encoding="utf-8")
    assert read_ruler_data(tmp_path) == RulerData(["Of", "RULER."], True, tmp_path)
    assert ruler_prompt(byte_tokenizer(), "niah_single_2", 900, 0, 0, read_ruler_data(tmp_path)).real_data
    assert not read_ruler_data().real_essays  # a text stands in


def test_sentences_end_at_marks_before_a_space() -> None:
    cut = ["It is.", "Is it?", "Yes!", 'He said "no."', "She (too!)", "went to version 2.0 of it"]
    assert sentences(" ".join(cut)) == cut


@pytest.mark.parametrize(("task", "file"), [("qa_squad", "squad.json"), ("qa_hotpot", "hotpotqa.json")])
def test_missing_questions_are_named(tmp_path, task, file) -> None:
    (tmp_path / "PaulGrahamEssays.json").write_text('{"text": "One day."}')
    for folder in (None, tmp_path):
        with pytest.raises(DataError, match=file):
            ruler_prompt(byte_tokenizer(), task, 4096, 0, 0, read_ruler_data(folder))


@pytest.mark.parametrize(
    ("file", "text"), [("squad.json", "{"), ("squad.json", "{}"), ("squad.json", json.dumps(SQUAD)[:-5])]
)
def test_damaged_questions_are_refused(tmp_path, file, text) -> None:
    (tmp_path / file).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=file):
        read_library(tmp_path, file)


def test_unreadable_essays_are_refused(tmp_path) -> None:
    with pytest.raises(DataError, match=str(tmp_path)):  # has none of the files
        read_ruler_data(tmp_path)
    (tmp_path / "PaulGrahamEssays.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="PaulGrahamEssays"):
        read_ruler_data(tmp_path)
