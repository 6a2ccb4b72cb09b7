import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from skipwise.data.ruler import TASKS, read_ruler_data, ruler_prompt
from skipwise.errors import RecipeError, TooShortError
from skipwise.evaluation.models import EvaluatedModel
from skipwise.evaluation.runner import plan_prompts
from skipwise.evaluation.specification import Specification, read_tasks
from skipwise.results.records import RulerRecord
from tests.tiny import byte_tokenizer

MODEL = EvaluatedModel("m", "", 2048, 4096)
ASKED = Specification(documents=0, tasks=("ruler:vt",), prompt_lengths=(2048,), trials=3, seed=5)
DATA = read_ruler_data()


def test_names_of_tasks_are_read_as_people_write_them() -> None:
    assert read_tasks(["passkey", "ruler:vt", "niah_multikey_1"]) == ("passkey", "ruler:vt", "ruler:niah_multikey_1")
    assert read_tasks(["ruler:vt:hops=2", "chains=3", "cwe"]) == ("ruler:vt:hops=2,chains=3", "ruler:cwe")
    assert read_tasks(["vt", " ruler:vt", "vt:hops=4", "ruler:vt:chains=1"]) == ("ruler:vt",)
    assert read_tasks(["vt:chains=3,hops=2"]) == read_tasks(["vt:hops=2,chains=3"]) == ("ruler:vt:hops=2,chains=3",)
    without_questions = tuple(f"ruler:{task}" for task in TASKS if not task.startswith("qa_"))
    assert read_tasks(["ruler"]) == without_questions
    assert len(without_questions) == 11


@pytest.mark.parametrize(("name", "said"), [("ruler:vtt", "vt"), ("ruler:vt:hop=2", "hops"), ("passkeys", "passkey")])
def test_a_mistyped_task_is_refused_with_the_nearest(name: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        replace(ASKED, tasks=read_tasks([name]))


def test_requests_name_the_prompt_and_the_texts_it_is_made_from(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    [prompts] = plan_prompts(ASKED, MODEL, tokenizer)
    assert [(r.task, r.length, r.seed, r.trial) for r in prompts.requests] == [("vt", 2048, 5, n) for n in range(3)]
    (tmp_path / "PaulGrahamEssays.json").write_text('{"text": "One day. Another day."}')
    [others] = plan_prompts(replace(ASKED, ruler_data=tmp_path), MODEL, tokenizer)
    assert {r.key for r in others.requests}.isdisjoint(r.key for r in prompts.requests)


@pytest.mark.parametrize(
    ("written", "score"),
    [("nothing", 0.0), ("it is {0}", 0.2), ("{4} {3} {2} {1} {0}", 1.0), ("{4}{3}{2}{1}{0}, all LOWER", 1.0)],
)
def test_variables_are_scored_by_the_share_that_is_written(written: str, score: float) -> None:
    [prompts] = plan_prompts(ASKED, MODEL, byte_tokenizer())
    question = prompts.ask(prompts.requests[1]).question
    drawn = ruler_prompt(byte_tokenizer(), "vt", 2048, 5, 1, DATA)
    assert question.ids == drawn.ids
    said = written.format(*drawn.answers)
    assert question.score(said.lower() if "LOWER" in written else said) == pytest.approx(score)
    assert (question.most, question.settled) == (30, True)
    assert byte_tokenizer().decode(question.draft).strip() == drawn.answers[0]


def test_how_much_the_prompts_can_tell_is_said_before_they_are_asked() -> None:
    apart, limits = replace(ASKED, tasks=("passkey", "ruler:vt", "ruler:cwe"), trials=50).claims()
    assert "50 prompts can show 27 points in a task; 100 prompts can show 19 points in RULER's average (95%" in apart
    assert "5 points take 1,566 prompts" in apart
    assert "90% of the passkeys: of 50 prompts 50 must be right; 35 prompts are enough if all are right" in limits
    assert "RULER's limit of 85.6%: of 100 prompts 93 must be right; 23 prompts are enough" in limits
    [apart] = replace(ASKED, tasks=("keys",)).claims()
    assert "RULER" not in apart
    [_, limits] = replace(ASKED, tasks=("passkey",), trials=20).claims()
    assert "90% of the passkeys: 20 prompts cannot show it" in limits
    assert not list(replace(ASKED, tasks=()).claims())


def test_a_length_that_is_too_short_is_told(tmp_path: Path) -> None:
    said = Console(file=StringIO(), width=400)
    assert list(plan_prompts(replace(ASKED, prompt_lengths=(128,)), MODEL, byte_tokenizer(), said)) == []
    assert "128 tokens are too few for prompts of ruler:vt (from " in said.file.getvalue()
    assert "left out at this length for m" in said.file.getvalue()


def test_essays_that_a_prompt_repeats_are_told(tmp_path: Path) -> None:
    (tmp_path / "PaulGrahamEssays.json").write_text('{"text": "A short one."}', encoding="utf-8")
    said = Console(file=StringIO(), width=400)
    asked = replace(
        ASKED, tasks=("ruler:niah_single_2", "ruler:vt", "keys"), prompt_lengths=(1024,), ruler_data=tmp_path
    )
    assert len(list(plan_prompts(asked, MODEL, byte_tokenizer(), said))) == 3
    told = "prompts of 1,024 tokens repeat their essays or documents, which are fewer: ruler:niah_single_2, for m;"
    assert told in said.file.getvalue()


def test_a_length_that_only_some_trials_fit_is_left_out() -> None:
    """The words of each trial differ, so near the shortest length the first trial may fit and another not."""
    tokenizer = byte_tokenizer()

    def fits(length: int, trial: int) -> bool:
        try:
            ruler_prompt(tokenizer, "niah_single_2", length, 5, trial, DATA)
        except TooShortError:
            return False
        return True

    asked = replace(ASKED, tasks=("ruler:niah_single_2",), trials=12)
    edge = next(length for length in range(300, 600) if fits(length, 0) and not all(fits(length, n) for n in range(12)))
    said = Console(file=StringIO(), width=400)
    assert list(plan_prompts(replace(asked, prompt_lengths=(edge,)), MODEL, tokenizer, said)) == []
    assert f"{edge} tokens are too few" in said.file.getvalue()


def test_a_question_whose_documents_do_not_fit_is_found_before_anything_is_answered(tmp_path: Path) -> None:
    """The first question fits easily, another does not."""
    paragraphs = [
        {"context": text, "qas": [{"question": "What?", "is_impossible": False, "answers": [{"text": "a"}]}]}
        for text in ("a short one", "a" * 2000)
    ]
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    asked = replace(ASKED, tasks=("ruler:qa_squad",), prompt_lengths=(1200,), trials=2, ruler_data=tmp_path)
    said = Console(file=StringIO(), width=400)
    assert list(plan_prompts(asked, MODEL, byte_tokenizer(), said)) == []
    assert "1,200 tokens are too few for prompts of ruler:qa_squad" in said.file.getvalue()


def test_without_a_console_all_that_is_too_short_is_refused_at_once() -> None:
    asked = replace(ASKED, tasks=("ruler:vt", "passkey"), prompt_lengths=(100,))
    with pytest.raises(
        TooShortError, match=r"100 tokens are too few for prompts of ruler:vt .*, passkey .*give longer prompts"
    ):
        list(plan_prompts(asked, MODEL, byte_tokenizer()))


def test_answers_become_records(monkeypatch) -> None:
    from skipwise.evaluation import batches
    from skipwise.evaluation.retrieval import Answer
    from tests.tiny import llama

    def answers(model, tokenizer, questions, precision):
        for number, _question in enumerate(questions):
            yield Answer(number, "text", number / 2, 0.25)

    monkeypatch.setattr(batches, "answers", answers)
    [prompts] = plan_prompts(ASKED, MODEL, byte_tokenizer())
    records = list(prompts.answers(llama()))
    assert [(type(r), r.score, r.answer, r.seconds) for r in records] == [
        (RulerRecord, n / 2, "text", 0.25) for n in range(3)
    ]
    assert all(1900 < r.prompt_tokens <= 2048 - 30 for r in records)
    assert [r.key for r in records] == [r.key for r in prompts.requests]
