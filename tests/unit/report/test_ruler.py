import csv
import json
import re
from dataclasses import replace

import pytest

from skipwise.report import figures
from skipwise.report.canvas import write
from skipwise.report.folder import Folder, read_folder
from skipwise.report.page import write_page
from skipwise.report.shown import Shown
from skipwise.report.summary import judgements, rows_of
from skipwise.report.tables import tables_of
from skipwise.results.records import RulerRecord
from tests.measured import evaluation_folder, readings

LENGTHS = (256, 512, 2048)


def answered(arm: str, task: str, length: int, score: float, *, real: bool = True) -> list[RulerRecord]:
    """Twenty prompts, all with one score."""
    return [RulerRecord(arm, task, length, 0, trial, real, "float32", "d", score=score) for trial in range(20)]


def evaluated(*, real: bool = True, at_home: float = 0.875) -> list:
    records = [*readings("m", 256, 15.0), *readings("m", 2048, 15.0), *readings("base", 256, 15.0)]
    for length, score in zip(LENGTHS, (0.875, 0.875, 0.75), strict=True):
        records += answered("m", "vt", length, score) + answered("m", "niah_single_2", length, score, real=real)
    records += answered("base", "vt", 256, at_home) + answered("base", "niah_single_2", 256, at_home, real=real)
    return records + answered("m", "cwe", 2048, 0.5)


@pytest.fixture
def folder(tmp_path) -> Folder:
    return read_folder(evaluation_folder(tmp_path / "e", evaluated()))


def test_a_table_has_the_averages_and_one_for_each_model_its_tasks(folder) -> None:
    average, ours, base = (table for table in tables_of(Shown([folder])) if table.group.startswith("ruler"))
    assert average.title == "RULER, average of 2 tasks in %, by prompt length (higher is better)"
    assert average.head == ["prompt", "256", "512", "2k"]
    assert average.rows == [
        ["m", "87.5 [74, 95]", "87.5 [74, 95]", "75.0 [60, 86]"],
        ["base", "87.5 [74, 95]", "–", "–"],
    ]
    assert [row[0] for row in ours.rows] == ["vt", "niah_single_2", "cwe"]
    assert ours.rows[2][1:] == ["–", "–", "50.0 [30, 70]"]
    assert base.title == "RULER by task in %: base"
    [brief, *_] = (table for table in tables_of(Shown([folder]), brief=True) if table.group == "ruler")
    assert brief.rows[0] == ["m", "87.5", "87.5", "75.0"]


@pytest.mark.parametrize(
    ("at_home", "said"),
    [
        (0.875, "it reads 512 tokens: the average of 2 tasks must be at least 85.6% (RULER's limit"),
        (0.5, "it reads 2,048 tokens: the average of 2 tasks must be at least 50.0% (what the base scores at 256"),
        (0.9375, "it reads 512 tokens"),
        (0.0, "RULER decides nothing: the base scores 0% at 256 tokens. On the same prompts of 256"),
    ],
)
def test_how_far_it_reads_is_said_by_rulers_rule(tmp_path, at_home: float, said: str) -> None:
    [judged] = judgements(rows_of([read_folder(evaluation_folder(tmp_path / "e", evaluated(at_home=at_home)))]))
    assert said in judged.ruler_sentence
    assert "By RULER's rule, on some of its tasks" in judged.ruler_sentence or not at_home
    apart = 100 * (0.875 - at_home)
    assert f"it scores {apart:+.1f} [" in judged.ruler_sentence
    _, change = judged.ruler_difference
    assert change.low < change.mean < change.high  # also where all differences are alike


def test_the_order_of_records_changes_no_length(tmp_path) -> None:
    """Three scores of one mean, whose sums differ by the order of adding."""
    scores = {"m": (0.2, 0.3, 0.1), "base": (0.1, 0.2, 0.3)}
    records = [*readings("m", 256, 15.0), *readings("m", 2048, 15.0), *readings("base", 256, 15.0)]
    for arm, each in scores.items():
        records += [
            RulerRecord(arm, "vt", 256, 0, trial, True, "float32", "d", score=s) for trial, s in enumerate(each)
        ]
    [judged] = judgements(rows_of([read_folder(evaluation_folder(tmp_path / "e", records))]))
    assert "it reads 256 tokens" in judged.ruler_sentence


def test_a_task_of_two_texts_is_marked_whatever_the_order(tmp_path) -> None:
    for real in (True, False):
        records = [
            RulerRecord("m", "niah_single_2", 256, 0, trial, real == (trial < 2), "float32", "d") for trial in range(4)
        ]
        records += [*readings("m", 256, 15.0), *readings("m", 2048, 15.0), *readings("base", 256, 15.0)]
        folder = read_folder(evaluation_folder(tmp_path / str(real), records))
        assert any("RULER-style" in table.title for table in tables_of(Shown([folder])))


def test_models_differ_in_the_average_that_is_shown(tmp_path) -> None:
    """A task that was not asked at every length counts in neither; numbers.csv has both."""
    records = []
    for arm, far in (("m", 1.0), ("n", 0.5)):
        records += [*readings(arm, 256, 15.0), *readings(arm, 2048, 15.0)]
        for length in (256, 2048):
            records += answered(arm, "vt", length, 0.5)
        records += answered(arm, "cwe", 2048, far)
    path = evaluation_folder(tmp_path / "e", records)
    facts = json.loads((path / "run.json").read_text())
    facts["evaluation"]["models"][1] |= {"label": "n", "control": False}
    (path / "run.json").write_text(json.dumps(facts))
    [table] = [one for one in tables_of(Shown([read_folder(path)])) if one.group == "differences"]
    assert [row for row in table.rows if row[0] == "RULER, 2k"] == [["RULER, 2k", "+0.0 [-28, +28]"]]
    write_page([path])
    numbers = {(r[0], r[2], r[3]): r[4:] for r in csv.reader((path / "numbers.csv").open())}
    assert numbers["n", "RULER, % more than m", "2048"][0] == "0.0"
    assert numbers["n", "RULER, average of 1 task, %", "2048"][0] == "50.0"


def test_scores_on_a_text_that_stands_in_are_not_called_rulers(tmp_path) -> None:
    path = evaluation_folder(tmp_path / "e", evaluated(real=False))
    titles = [table.title for table in tables_of(Shown([read_folder(path)])) if table.group.startswith("ruler")]
    assert all(title.startswith("RULER-style") for title in titles)
    text = write_page([path]).read_text()
    assert "niah_single_2 (style)" in text
    assert "their scores do not compare with published ones" in text
    rows = list(csv.reader((path / "numbers.csv").open()))
    assert ["m", "RULER-style, niah_single_2, %", "2048", "75.0"] in [[r[0], r[2], r[3], r[4]] for r in rows]


def test_the_page_shows_all_of_it(folder, tmp_path) -> None:
    text = write_page([tmp_path / "e"]).read_text()
    assert "it reads 512 tokens: the average of 2 tasks" in text.replace("\u00a0", " ")
    assert "RULER: 20 prompts of each task and length" in text
    assert "stands in" not in text
    for name in ("ruler", "ruler-tasks-1", "ruler-tasks-2"):
        assert (tmp_path / "e" / "figures" / f"{name}.svg").exists()
    assert re.search(r"RULER, average by prompt length", text)


def test_a_prompt_that_was_asked_again_counts_once(tmp_path) -> None:
    again = [replace(record, digest="e") for record in answered("m", "vt", 256, 0.5)]
    path = evaluation_folder(tmp_path / "e", [*evaluated(), *again])
    assert "RULER: 20 prompts of each task and length" in write_page([path]).read_text()


def test_figures_have_the_limit_and_every_cell(folder) -> None:
    plots = {plot.name: plot for plot in figures.ruler_plots(Shown([folder]))}
    assert [[*row[:2], row[3]] for row in plots["ruler"].data if row[0] == "m"] == [
        ["m", 256, 0.875], ["m", 512, 0.875], ["m", 2048, 0.75]
    ]  # fmt: skip
    assert "85.6%" in plots["ruler"].caption
    cells = {(row[1], row[2]): row[4] for row in plots["ruler-tasks-1"].data}
    assert cells[("cwe", 2048)] == pytest.approx(0.5)
    assert len(cells) == 7


@pytest.mark.filterwarnings("error:constrained_layout")
def test_a_long_name_of_a_variant_leaves_its_heat_map_room(tmp_path) -> None:
    task = "niah_multikey_1:keys=8,values=2,queries=3"
    records = [*readings("m", 256, 15.0), *answered("m", task, 256, 0.5, real=False)]
    plots = {
        plot.name: plot
        for plot in figures.ruler_plots(Shown([read_folder(evaluation_folder(tmp_path / "e", records))]))
    }
    assert "niah_multikey_1: keys=8,<" in write(plots["ruler-tasks"], tmp_path).svg


def test_unfinished_evaluations_count_rulers_prompts(folder) -> None:
    measured = len(folder.records)
    some = Folder("e", folder.records, {**folder.info, "records": measured + 1})
    assert f"{measured:,} of {measured + 1:,}" in some.unfinished
    assert Folder("e", folder.records, {**folder.info, "records": measured}).unfinished == ""
