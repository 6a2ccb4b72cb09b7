"""RULER's texts: which files are read, what stands in for them, what is said where they are missing."""

import json

import pytest

from skipwise.data.ruler import RulerData, read_ruler_data, repeats, ruler_prompt
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


def test_a_prompt_that_repeats_its_essays_is_known() -> None:
    data = RulerData(["Once", "upon", "a", "time.", "There", "was", "a", "king."], True)
    tokenizer = byte_tokenizer()
    lengths = range(520, 620)
    texts = [tokenizer.decode(ruler_prompt(tokenizer, "niah_single_2", n, 0, 0, data).ids) for n in lengths]
    repeated = [repeats(tokenizer, "niah_single_2", n, data) for n in lengths]
    assert repeated == [text.count("Once") > 1 for text in texts]
    assert {True, False} <= set(repeated)
    assert not repeats(tokenizer, "niah_single_1", 4096, data)  # its sentences are repeated on purpose


def test_a_prompt_that_repeats_its_documents_is_known(tmp_path) -> None:
    data, tokenizer = read_ruler_data(write_questions(tmp_path)), byte_tokenizer()
    lengths = range(2600, 3800, 40)
    texts = [tokenizer.decode(ruler_prompt(tokenizer, "qa_squad", n, 0, 0, data).ids) for n in lengths]
    repeated = [repeats(tokenizer, "qa_squad", n, data) for n in lengths]
    assert repeated == [text.count("Article ") > len(data.squad.documents) for text in texts]
    assert {True, False} <= set(repeated)


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
    data = read_ruler_data(write_questions(tmp_path))
    assert data.squad.documents == sorted(data.squad.documents)
    assert [question.text for question in data.squad.questions[:3]] == [
        f"What does paragraph {i} of article {n} say?" for n, i in ((0, 0), (0, 2), (1, 0))
    ]
    first = data.squad.questions[0]
    assert first.answers == ("answer 0-0",)
    assert [data.squad.documents[i][:22] for i in (*first.needed, *first.related)] == [
        f"Article 0, paragraph {i}" for i in range(3)
    ]
    assert [question.text for question in data.hotpotqa.questions] == [asked["question"] for asked in HOTPOT]
    assert all(len(question.needed) == 10 for question in data.hotpotqa.questions)


@pytest.mark.parametrize(("task", "file"), [("qa_squad", "squad.json"), ("qa_hotpot", "hotpotqa.json")])
def test_missing_questions_are_named(tmp_path, task, file) -> None:
    with pytest.raises(
        DataError, match=f"no folder with RULER's data is given, but the questions come from {file}: put"
    ):
        ruler_prompt(byte_tokenizer(), task, 4096, 0, 0, read_ruler_data())
    with pytest.raises(
        DataError, match=f"{tmp_path} has none of PaulGrahamEssays.json, .* give the folder that holds them"
    ):
        read_ruler_data(tmp_path)
    (tmp_path / "PaulGrahamEssays.json").write_text('{"text": "One day."}')
    with pytest.raises(
        DataError, match=f"{tmp_path} has no {file}, but .* there under this name, or leave this task out"
    ):
        ruler_prompt(byte_tokenizer(), task, 4096, 0, 0, read_ruler_data(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "squad.json is not SQuAD's dev-v2.0.json: Invalid JSON: EOF .*; download it again"),
        ("{}", "squad.json is not SQuAD's dev-v2.0.json: data: Field required"),
        ("[]", "squad.json is not SQuAD's dev-v2.0.json: Input should be an object"),
        ('{"data": 3}', "squad.json is not SQuAD's dev-v2.0.json: data: Input should be a valid array"),
        ('{"data": []}', "squad.json has no question with an answer; put SQuAD's dev-v2.0.json there"),
        (
            json.dumps(SQUAD).replace("answer 0-0", " "),
            r"data.0.paragraphs.0.qas.0.answers.0.text: String should match",
        ),
        (json.dumps(SQUAD)[:-5], "Invalid JSON: EOF"),
    ],
)
def test_damaged_questions_are_refused(tmp_path, text, message) -> None:
    (tmp_path / "squad.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        _ = read_ruler_data(tmp_path).squad


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": [["title", "a sentence"]]}, "0.context.0.1: Input should be a valid array"),
        ({"context": []}, "0.context: List should have at least 1 item"),
        ({"answer": ""}, "0.answer: String should match"),
        ({"answer": None}, "0.answer: Input should be a valid string"),
    ],
)
def test_damaged_questions_on_two_documents_are_refused(tmp_path, changes, message) -> None:
    (tmp_path / "hotpotqa.json").write_text(json.dumps([HOTPOT[0] | changes, *HOTPOT[1:]]), encoding="utf-8")
    with pytest.raises(DataError, match=f"is not HotpotQA's hotpot_dev_distractor_v1.json: {message}"):
        _ = read_ruler_data(tmp_path).hotpotqa


def test_a_question_without_an_answer_is_not_asked(tmp_path) -> None:
    unanswered = json.loads(json.dumps(SQUAD))
    unanswered["data"][0]["paragraphs"][0]["qas"][0]["answers"] = []
    (tmp_path / "squad.json").write_text(json.dumps(unanswered), encoding="utf-8")
    assert read_ruler_data(tmp_path).squad.questions[0].text == "What does paragraph 2 of article 0 say?"


def test_unreadable_essays_are_refused(tmp_path) -> None:
    with pytest.raises(DataError, match=r"is not a folder; give the folder with RULER's data, or none"):
        read_ruler_data(tmp_path / "none")
    file = tmp_path / "PaulGrahamEssays.json"
    file.write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="is not RULER's essays: text: Field required"):
        read_ruler_data(tmp_path)
    file.write_text('{"text": " "}', encoding="utf-8")
    with pytest.raises(DataError, match=r"PaulGrahamEssays in .* has no words, but needles are hidden between words"):
        read_ruler_data(tmp_path)
    file.write_text(json.dumps({"text": "words without an end " * 100}), encoding="utf-8")
    with pytest.raises(DataError, match=r"has 400 words and 0 ends of sentences .*; give a text with one in 200 words"):
        read_ruler_data(tmp_path)
    file.write_text('{"text": ["a"]}', encoding="utf-8")
    with pytest.raises(
        DataError, match="is not RULER's essays: text: Input should be a valid string; download it again"
    ):
        read_ruler_data(tmp_path)
    file.unlink()
    (tmp_path / "PaulGrahamEssays").mkdir()
    (tmp_path / "PaulGrahamEssays" / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"an essay in .*PaulGrahamEssays cannot be read: .*; save it as UTF-8"):
        read_ruler_data(tmp_path)
