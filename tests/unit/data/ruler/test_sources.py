"""RULER's texts: which files are read, what stands in for them, what is said where they are missing."""

import json

import pytest

from skipwise.data.ruler import RulerData, read_ruler_data, ruler_prompt
from skipwise.data.ruler.questions import read_library
from skipwise.data.ruler.sources import sentences
from skipwise.errors import DataError
from tests.questions import HOTPOT, SQUAD, write_questions
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


def test_without_essays_a_text_stands_in() -> None:
    shipped = read_ruler_data()
    assert len(shipped.words) > 10_000
    assert not shipped.real_essays


def test_essays_are_repeated_where_they_end() -> None:
    data = RulerData(["One.", "Two", "three."], True)
    assert data.essays(7) == "One. Two three. One. Two three. One."
    assert data.essays(3) == "One. Two three."


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("It is. Is it? Yes!", ["It is.", "Is it?", "Yes!"]),
        ('He said "no." She (too!) went.', ['He said "no."', "She (too!)", "went."]),
        ("Version 2.0 of it", ["Version 2.0 of it"]),
    ],
)
def test_sentences_end_at_marks_before_a_space(text, cut) -> None:
    assert sentences(text) == cut
    assert " ".join(sentences(text)) == text


def test_questions_keep_their_order_and_documents_are_sorted(tmp_path) -> None:
    write_questions(tmp_path)
    squad, hotpotqa = read_library(tmp_path, "squad.json"), read_library(tmp_path, "hotpotqa.json")
    assert squad.documents == sorted(squad.documents)
    assert [question.text for question in squad.questions[:3]] == [
        f"What does paragraph {i} of article {n} say?" for n, i in ((0, 0), (0, 2), (1, 0))
    ]
    first = squad.questions[0]
    assert first.answers == ("answer 0-0",)
    assert [squad.documents[i][:22] for i in (*first.needed, *first.related)] == [
        f"Article 0, paragraph {i}" for i in range(3)
    ]
    assert [question.text for question in hotpotqa.questions] == [asked["question"] for asked in HOTPOT]
    assert all(len(question.needed) == 10 for question in hotpotqa.questions)


@pytest.mark.parametrize(("task", "file"), [("qa_squad", "squad.json"), ("qa_hotpot", "hotpotqa.json")])
def test_missing_questions_are_named(tmp_path, task, file) -> None:
    (tmp_path / "PaulGrahamEssays.json").write_text('{"text": "One day."}')
    for data in (read_ruler_data(), read_ruler_data(tmp_path)):
        with pytest.raises(DataError, match=file):
            ruler_prompt(byte_tokenizer(), task, 4096, 0, 0, data)


@pytest.mark.parametrize("text", ["{", "[]", '{"data": 3}', '{"data": []}', json.dumps(SQUAD)[:-5]])
@pytest.mark.parametrize("name", ["squad.json", "hotpotqa.json"])
def test_damaged_questions_are_refused(tmp_path, text, name) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=name):
        read_library(tmp_path, name)


def test_a_question_without_an_answer_is_not_asked(tmp_path) -> None:
    unanswered = json.loads(json.dumps(SQUAD))
    unanswered["data"][0]["paragraphs"][0]["qas"][0]["answers"] = []
    (tmp_path / "squad.json").write_text(json.dumps(unanswered), encoding="utf-8")
    assert read_library(tmp_path, "squad.json").questions[0].text == "What does paragraph 2 of article 0 say?"


def test_unreadable_essays_are_refused(tmp_path) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(DataError, match=folder.name):
            read_ruler_data(folder)
    (tmp_path / "PaulGrahamEssays").mkdir()
    (tmp_path / "PaulGrahamEssays" / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="PaulGrahamEssays"):
        read_ruler_data(tmp_path)
    (tmp_path / "PaulGrahamEssays.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="PaulGrahamEssays"):
        read_ruler_data(tmp_path)
