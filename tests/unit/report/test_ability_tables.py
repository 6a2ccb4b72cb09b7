"""The paper's table of benchmarks, what is said where it was not run, and several models side by side."""

import math
from dataclasses import replace

import pytest

from skipwise.report.ability_tables import benchmarks_sentence, paper_sentence
from skipwise.report.figures import ruler_plots
from skipwise.report.folder import Folder, read_folder
from skipwise.report.shown import Shown
from skipwise.report.tables import rich_table, tables_of
from skipwise.results.records import BenchmarkRecord
from skipwise.results.scores import PAPER
from tests.measured import evaluation_folder, readings, trials
from tests.unit.report.test_ruler import answered
from tests.unit.report.test_tables import shown


def paper(arm: str, value: float, error: float | None = 0.01) -> list[BenchmarkRecord]:
    return [
        BenchmarkRecord(arm, task, how.metric, how.fewshot, 2048, None, "float32", "0.4", "d", 9, value, error)
        for task, how in PAPER.items()
    ]


def several(count: int) -> Folder:
    """An evaluation of some models, of which each further one scores less."""
    labels = [f"m{n}" for n in range(count)]
    records = []
    for n, label in enumerate(labels):
        records += trials(label, 256, 100 - 10 * n) + answered(label, "vt", 256, 1 - 0.125 * n)
    return Folder("e", records, {"evaluation": {"models": [{"label": label} for label in labels]}})


def test_the_papers_table_has_the_base_first_and_the_difference_with_its_error(tmp_path) -> None:
    folder = read_folder(evaluation_folder(tmp_path / "e", [*paper("m", 0.49), *paper("base", 0.5)]))
    [table] = tables_of(Shown([folder]))
    assert table.head[1:] == [
        "BoolQ, 0-shot", "PIQA, 0-shot", "WinoGrande, 0-shot", "TruthfulQA, 0-shot", "ARC-C, 25-shot", "HellaSwag, 10-shot",
        "average",
    ]  # fmt: skip
    base, own, apart = table.rows
    assert base == ["base", *["50.00 (1.00)"] * 6, f"50.00 ({1 / math.sqrt(6):.2f})"]
    assert own[:2] == ["m", "49.00 (1.00)"]
    assert apart == ["m less its base", *["-1.00 (1.41*)"] * 6, f"-1.00 ({math.sqrt(2 / 6):.2f}*)"]
    assert table.title.endswith("in % (standard error; * not paired)")
    [brief] = tables_of(Shown([folder]), brief=True)
    assert max(map(len, shown(rich_table(brief)).splitlines())) <= 80
    assert benchmarks_sentence(folder) == ""


def answered_alike(arm: str, scores: str) -> list[BenchmarkRecord]:
    return [replace(r, samples=4, scores=scores, questions="q") for r in paper(arm, scores.count("1") / 4)]


def test_models_that_answered_the_same_questions_are_compared_question_by_question(tmp_path) -> None:
    records = [*answered_alike("m", "1110"), *answered_alike("base", "1010")]
    folder = read_folder(evaluation_folder(tmp_path / "e", records))
    [table] = tables_of(Shown([folder]))
    assert table.rows[2] == ["m less its base", *["+25.00 (25.00)"] * 6, f"+25.00 ({25 / math.sqrt(6):.2f})"]
    assert table.title.endswith("in % (standard error)")
    assert "over questions that both models answered, paired" in (told := paper_sentence([folder]))
    assert "With a *" not in told


def test_a_table_says_which_of_its_errors_are_not_paired(tmp_path) -> None:
    old = [replace(r, scores="", questions="") if r.task == "piqa" else r for r in answered_alike("base", "1010")]
    folder = read_folder(evaluation_folder(tmp_path / "e", [*answered_alike("m", "1110"), *old]))
    [table], [brief] = tables_of(Shown([folder])), tables_of(Shown([folder]), brief=True)
    assert [cell.count("*") for cell in table.rows[2]] == [0, 0, 1, 0, 0, 0, 0, 1]  # the average has a part of it
    assert [cell.count("*") for cell in brief.rows[3]] == [0, 0, 1, 0, 0, 0, 0, 1]
    assert "* not paired" in table.title
    assert "* not paired" in brief.title
    told = paper_sentence([folder])
    assert "paired: the differences of their scores" in told
    assert "With a * it is that of two models that answer different questions" in told
    assert paper_sentence([several(2)]) == ""


def test_a_task_that_is_missing_or_without_an_error_is_not_made_up(tmp_path) -> None:
    records = [*paper("m", 0.5, None)[:2], *paper("base", 0.5), replace(paper("m", 0.5)[0], metric="f1")]
    paper_table, rest = tables_of(Shown([read_folder(evaluation_folder(tmp_path / "e", records))]))
    assert paper_table.rows[1] == ["m", "50.00", "50.00", *["–"] * 5]
    assert paper_table.rows[2] == ["m less its base", "+0.00", "+0.00", *["–"] * 5]
    assert rest.rows == [["boolq, 0-shot, f1", "0.5000 (0.0100)"]]
    [exact] = [replace(paper("m", 1.0, 0.0)[0], metric="f1")]
    assert tables_of(Shown([Folder("e", [exact])]))[0].rows == [["boolq, 0-shot, f1", "1.0000 (0.0000)"]]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("skipwise evaluate m", "skipwise evaluate m --benchmarks paper --data-dir DIR runs them"),
        ("skipwise evaluate m --benchmarks x", "skipwise evaluate ... --benchmarks paper --data-dir DIR runs them"),
        ("skipwise evaluate m --benchmarks=x", "skipwise evaluate ... --benchmarks paper --data-dir DIR runs them"),
        ("skipwise evaluate 'my  m'", "skipwise evaluate 'my  m' --benchmarks paper --data-dir DIR runs them"),
        ("skipwise evaluate 'a --shard'", "skipwise evaluate 'a --shard' --benchmarks paper --data-dir DIR runs them"),
        ("skipwise evaluate '***/m'", "skipwise evaluate ... --benchmarks paper --data-dir DIR runs them"),
        ("skipwise evaluate it's", "skipwise evaluate ... --benchmarks paper --data-dir DIR runs them"),
        ("skipwise merge 'the evaluate of a' b", "skipwise evaluate ... --benchmarks paper --data-dir DIR runs them"),
        ("skipwise merge a b --out e", "skipwise evaluate ... --benchmarks paper --data-dir DIR runs them"),
        ("skipwise evaluate m --shard 2/2", "skipwise evaluate ... --benchmarks paper --data-dir DIR runs them"),
        (None, "skipwise evaluate ... --benchmarks paper"),
    ],
)
def test_benchmarks_that_were_not_run_are_named_with_their_command(tmp_path, command, told) -> None:
    facts = {} if command is None else {"command": command}
    folder = read_folder(evaluation_folder(tmp_path / "e", readings("m", 256, 15.0), **facts))
    assert told in benchmarks_sentence(folder)
    assert benchmarks_sentence(replace(folder, info={})) == ""  # of a run


def test_models_are_compared_with_the_first_on_the_same_prompts() -> None:
    [table] = [table for table in tables_of(Shown([several(3)])) if table.group == "differences"]
    assert table.head == ["prompt", "m1", "m2"]
    assert [row[0] for row in table.rows] == ["passkey, 256", "RULER, 256"]
    assert [cell.split()[0] for row in table.rows for cell in row[1:]] == ["-10.0", "-20.0", "-12.5", "-25.0"]
    assert not [table for table in tables_of(Shown([several(1)])) if table.group == "differences"]


@pytest.mark.parametrize(("models", "beside", "told"), [(2, 2, ""), (4, 4, ""), (5, 4, "the first 4 of 5 models")])
def test_at_most_four_models_stand_side_by_side(models, beside, told) -> None:
    folder = several(models)
    average, tasks = (table for table in tables_of(Shown([folder])) if table.group.startswith("ruler"))
    assert len(average.rows) == models
    assert tasks.head == ["task", *[f"m{n}" for n in range(beside)]]
    assert told in tasks.title
    assert (" models" in tasks.title) == bool(told)
    chart, *maps = ruler_plots(Shown([folder]))
    assert len(maps) == len({row[0] for row in chart.data}) == beside
    assert told in chart.caption
