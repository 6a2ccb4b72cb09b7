"""The one list of numbers, and its tables in pages, terminals and Markdown."""

import io
import json
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from skipwise.report.folder import Folder, read_folder
from skipwise.report.model_card import eval_results
from skipwise.report.numbers import ReportData, format_number, format_share
from skipwise.report.tables import Table, evaluation_summary, rich_table, summary_markdown, summary_table, tables_of
from skipwise.report.trackers import scalars
from skipwise.results.records import BenchmarkRecord, RulerRecord
from skipwise.results.scores import PAPER
from skipwise.results.statistics import FEWEST_SEGMENTS
from tests.measured import INFO, ORIGINAL, PI_ONLY, POSE, evaluation_folder, readings, run_folder, trials
from tests.unit.report.test_rows import other_text, segments

BENCHMARK = BenchmarkRecord("m", "arc", "acc_norm", 25, 2048, None, "float32", "0.4", "d", 1172, 0.51234, 0.0146)


def run(*records) -> Folder:
    return Folder("run", list(records), INFO)


def tables(*folders: Folder, brief: bool = False) -> dict[str, list[Table]]:
    """Tables by group."""
    groups: dict[str, list[Table]] = {}
    for table in tables_of(ReportData(folders), brief=brief):
        groups.setdefault(table.group, []).append(table)
    return groups


def printed(renderable, width: int = 80, **settings) -> str:
    console = Console(file=io.StringIO(), width=width, **settings)
    console.print(renderable)
    return console.file.getvalue()


def answered(arm: str, task: str, length: int, score: float, *, real: bool = True) -> list[RulerRecord]:
    """Twenty prompts with one score."""
    return [RulerRecord(arm, task, length, 0, trial, real, "float32", "d", score=score) for trial in range(20)]


def ruler(*, real: bool = True, at_home: float = 0.875) -> list:
    records = [*readings("m", 256, 15.0), *readings("m", 2048, 15.0), *readings("base", 256, 15.0)]
    for length, score in zip((256, 512, 2048), (0.875, 0.875, 0.75), strict=True):
        records += answered("m", "vt", length, score) + answered("m", "niah_single_2", length, score, real=real)
    records += answered("base", "vt", 256, at_home) + answered("base", "niah_single_2", 256, at_home, real=real)
    return records + answered("m", "cwe", 2048, 0.5)


def several(count: int) -> Folder:
    """An evaluation of some models; each further one scores less."""
    labels = [f"m{n}" for n in range(count)]
    records = []
    for n, label in enumerate(labels):
        records += trials(label, 256, 100 - 10 * n) + answered(label, "vt", 256, 1 - 0.125 * n)
    return Folder("e", records, {"evaluation": {"models": [{"label": label} for label in labels]}})


def paper(arm: str, scores: str) -> list[BenchmarkRecord]:
    value = scores.count("1") / len(scores)
    return [
        BenchmarkRecord(arm, task, how.metric, how.fewshot, 2048, None, "float32", "0.4", "d", 4, value, 0.01,
                        scores=scores, questions="q")
        for task, how in PAPER.items()
    ]  # fmt: skip


def test_page_card_and_trackers_have_the_same_numbers(tmp_path) -> None:
    own = [r for w in (256, 2048) for r in (*readings("m", w, 15.0), *trials("m", w, 90))]
    records = [*own, *readings("base", 256, 14.0), *answered("m", "vt", 256, 0.5)]
    data = ReportData([read_folder(evaluation_folder(tmp_path / "e", records))])
    numbers = {(n.label, n.measure.short, n.length): n.value.mean for n in data.numbers if n.length}
    assert numbers["m", "passkey", 2048] == 0.9
    assert scalars(data) == {
        "results/perplexity 256/m": numbers["m", "perplexity", 256],
        "results/perplexity 2k/m": numbers["m", "perplexity", 2048],
        "results/passkey 256/m": 0.9,
        "results/passkey 2k/m": 0.9,
        "results/RULER vt 256/m": 0.5,
        "results/perplexity 256/base": numbers["base", "perplexity", 256],
    }
    hub = [(r.dataset_type, r.metric_type, r.metric_value) for r in eval_results(data)]
    assert hub == [
        *[("held out", "perplexity", 15.0)] * 2, *[("skipwise/passkey", "accuracy", 0.9)] * 2,
        ("skipwise/ruler-vt", "accuracy", 0.5),
    ]  # fmt: skip
    assert tables(*data.folders)["passkey"][0].rows == [["m", "90% [83, 94]", "90% [83, 94]"]]


def test_a_run_has_a_table_of_perplexity_and_one_of_each_task() -> None:
    found = tables(run(*ORIGINAL, *POSE, *trials("pose", 256, 7, 10, task="lines")))
    [perplexity], [passkey], [lines] = found["perplexity"], found["passkey"], found["lines"]
    assert list(found) == ["perplexity", "passkey", "lines"]
    assert perplexity.head == ["window", "256", "512", "1k", "2k"]
    assert perplexity.rows[1][:3] == ["PoSE", "15.3 [15.2, 15.4]", "15.0 [14.9, 15.1]"]
    assert passkey.rows[0] == ["original", "100% [96, 100]", "0% [0, 4]", "0% [0, 4]", "0% [0, 4]"]
    assert lines.rows == [["PoSE", "70% [40, 89]"]]
    assert perplexity.strong == passkey.strong == {1}
    assert lines.strong == frozenset()  # all models are extended


def test_tables_of_prompts_have_models_and_tables_of_text_both() -> None:
    read = [*readings("pose", 256, 15.0, "a"), *readings("pose", 256, 15.0, "b")]
    found = tables(run(*read, *trials("pose", 256, 9, 10)))
    assert [row[0] for row in found["perplexity"][0].rows] == ["PoSE (a)", "PoSE (b)"]
    assert [row[0] for row in found["passkey"][0].rows] == ["PoSE"]


def test_an_evaluation_has_positions_and_benchmarks(tmp_path) -> None:
    own = [r for w in (256, 2048) for r in readings("m", w, 15.0)]
    records = [*own, *readings("base", 256, 15.0), BENCHMARK, replace(BENCHMARK, arm="base", standard_error=None)]
    found = tables(read_folder(evaluation_folder(tmp_path / "e", records)))
    assert found["perplexity"][0].rows[1] == ["base", "15.0 [14.9, 15.1]", "–"]
    [benchmarks], [positions] = found["benchmarks"], found["position"]
    assert benchmarks.head == ["task", "m", "base"]
    assert benchmarks.rows == [["arc, 25-shot, acc_norm", "0.5123 (0.0146)", "0.5123"]]
    assert positions.head == ["position", "loss (nats)", "gain by far text (nats)", "over the base (nats)"]
    assert positions.rows[0] == ["1 .. 63", "2.708", "–", "+0.000 [+0.000, +0.000]"]
    assert positions.rows[-1] == ["1,024 .. 2,047", "2.708", "+0.000 [+0.000, +0.000]", "+0.000 [+0.000, +0.000]"]
    [alone] = tables(read_folder(evaluation_folder(tmp_path / "alone", own, base="")))["position"]
    assert len(alone.head) == len(alone.rows[0]) == 3  # no column without numbers


def test_the_papers_table_has_the_base_first_and_paired_differences(tmp_path) -> None:
    folder = read_folder(evaluation_folder(tmp_path / "e", [*paper("m", "1110"), *paper("base", "1010")]))
    [[table]] = tables(folder).values()
    base, own, difference = table.rows
    assert len(table.head) == 8
    assert base == ["base", *["50.00 (1.00)"] * 6, f"50.00 ({1 / math.sqrt(6):.2f})"]
    assert own[:2] == ["m", "75.00 (1.00)"]
    assert difference[1:] == [*["+25.00 (25.00)"] * 6, f"+25.00 ({25 / math.sqrt(6):.2f})"]
    [[brief]] = tables(folder, brief=True).values()
    assert max(map(len, printed(rich_table(brief)).splitlines())) <= 80


def test_unpaired_errors_have_a_star_and_missing_tasks_no_score(tmp_path) -> None:
    base = [replace(r, scores="", questions="") if r.task == "piqa" else r for r in paper("base", "1010")]
    folder = read_folder(evaluation_folder(tmp_path / "e", [*paper("m", "1110"), *base]))
    [[table]], [[brief]] = tables(folder).values(), tables(folder, brief=True).values()
    stars = [0, 0, 1, 0, 0, 0, 0, 1]  # also of the average
    assert [cell.count("*") for cell in table.rows[2]] == [cell.count("*") for cell in brief.rows[3]] == stars
    some = [replace(r, standard_error=None) for r in paper("m", "1010")[:2]]
    folder = read_folder(evaluation_folder(tmp_path / "some", [*some, *paper("base", "1010")]))
    [[table]] = tables(folder).values()
    assert table.rows[1] == ["m", "50.00", "50.00", *["–"] * 5]


def test_models_differ_from_the_first_on_the_same_prompts() -> None:
    [table] = tables(several(3))["differences"]
    assert table.head == ["prompt", "m1", "m2"]
    assert [row[0] for row in table.rows] == ["passkey, 256", "RULER, 256"]
    assert [cell.split()[0] for row in table.rows for cell in row[1:]] == ["-10.0", "-20.0", "-12.5", "-25.0"]
    assert "differences" not in tables(several(1))


def test_a_ruler_task_that_was_not_measured_at_every_length_is_in_no_average(tmp_path) -> None:
    records = []
    for arm, far in (("m", 1.0), ("n", 0.5)):
        records += [*answered(arm, "vt", 256, 0.5), *answered(arm, "vt", 2048, 0.5), *answered(arm, "cwe", 2048, far)]
    path = evaluation_folder(tmp_path / "e", records)
    facts = json.loads((path / "run.json").read_text())
    facts["evaluation"]["models"][1] |= {"label": "n", "control": False}
    (path / "run.json").write_text(json.dumps(facts))
    found = tables(read_folder(path))
    assert found["ruler"][0].rows[1] == ["n", "50.0 [30, 70]", "50.0 [30, 70]"]
    assert found["differences"][0].rows[-1] == ["RULER, 2k", "+0.0 [-28, +28]"]


def test_ruler_has_averages_and_a_table_of_tasks_for_each_model(tmp_path) -> None:
    folder = read_folder(evaluation_folder(tmp_path / "e", ruler()))
    [average], [own, base] = tables(folder)["ruler"], tables(folder)["ruler by task"]
    assert average.head == ["prompt", "256", "512", "2k"]
    assert average.rows == [
        ["m", "87.5 [74, 95]", "87.5 [74, 95]", "75.0 [60, 86]"], ["base", "87.5 [74, 95]", "–", "–"]
    ]  # fmt: skip
    assert own.rows[2] == ["cwe", "–", "–", "50.0 [30, 70]"]
    assert base.rows == [["vt", "87.5 [67, 96]"], ["niah_single_2", "87.5 [67, 96]"]]
    assert tables(folder, brief=True)["ruler"][0].rows[0] == ["m", "87.5", "87.5", "75.0"]
    found = tables(several(6))
    [tasks] = found["ruler by task"]
    assert len(found["ruler"][0].rows) == 6
    assert tasks.head == ["task", "m0", "m1", "m2", "m3"]


@pytest.mark.parametrize(("at_home", "tokens"), [(0.875, 512), (0.5, 2048), (0.9375, 512), (0.0, 0)])
def test_the_length_by_rulers_rule_depends_on_the_base(tmp_path, at_home: float, tokens: int) -> None:
    [judged] = ReportData([read_folder(evaluation_folder(tmp_path / "e", ruler(at_home=at_home)))]).judged
    length, change = judged.ruler_difference
    assert (judged.ruler.tokens, length) == (tokens, 256)
    assert change.mean == pytest.approx(0.875 - at_home)
    assert change.low < change.mean < change.high


def test_scores_on_a_stand_in_text_are_marked(tmp_path) -> None:
    folder = read_folder(evaluation_folder(tmp_path / "e", ruler(real=False)))
    found = tables(folder)
    assert all(t.title.startswith("RULER-style") for group in ("ruler", "ruler by task") for t in found[group])
    assert [row[0] for row in found["ruler by task"][1].rows] == ["vt", "niah_single_2 (style)"]


def test_other_text_has_a_row_for_each_kind_and_measure() -> None:
    [table] = tables(run(*ORIGINAL, *POSE, *other_text(prose=0.05)))["other text"]
    assert table.head == ["text", "base", "extended", "difference"]
    assert table.rows[0] == ["prose, loss (nats)", "3.750", "3.800", "+0.050 [+0.050, +0.050]"]
    assert len(table.rows) == 6
    few = FEWEST_SEGMENTS - 1
    [table] = tables(run(*segments("original", "prose", 2.0, few), *segments("pose", "prose", 2.05, few)))["other text"]
    assert "too few" in table.rows[0][-1]
    assert len(tables(*(replace(run(*other_text()), name=name) for name in "ab"))["other text"]) == 2


def test_the_terminal_has_every_number_of_a_run_in_80_columns() -> None:
    folder = run(*ORIGINAL, *PI_ONLY, *POSE, *readings("[red]x", 256, 1), *other_text(prose=0.05))
    text = printed(summary_table(folder), markup=True)
    assert printed(summary_table(folder), markup=False) == text
    assert re.search(r"original +15\.7 +79\.0 +109 +134 +100% +0% +0% +0%", text)
    assert "[red]x" in text
    assert "+0.050 [+0.050, +0.050]" in text
    assert max(map(len, text.splitlines())) <= 80
    wide = [
        r
        for k in range(7)
        for r in (*readings("original", 256 * 2**k, 100.0 + k), *trials("original", 256 * 2**k, k, 10))
    ]
    text = printed(summary_table(run(*wide)))
    assert re.search(r"original +100 +101 +102 +103 +104 +105 +106 *\n", text)
    assert re.search(r"original +0% +10% +20% +30% +40% +50% +60% *\n", text)


def test_the_markdown_table_is_whole_and_inert() -> None:
    lines = summary_markdown(ReportData([run(*ORIGINAL, *readings("a|<b>", 256, 1234))])).splitlines()
    assert lines[0].startswith("| arm | perplexity 256 | perplexity 512 |")
    assert lines[2] == "| original | 15.7 | 79.0 | 109 | 134 | 100% | 0% | 0% | 0% |"
    assert lines[3].startswith("| a\\|&lt;b&gt; | 1.2e3 | – |")
    assert summary_markdown(ReportData([run()])) == ""


def test_the_terminal_has_the_verdict_and_tables_of_an_evaluation(tmp_path) -> None:
    own = [*readings("m", 256, 15.0), *readings("m", 2048, 15.0), *trials("m", 256, 100), *trials("m", 2048, 30)]
    folder = read_folder(evaluation_folder(tmp_path / "e", [*own, *readings("base", 256, 15.0)], records=999))
    text = " ".join(printed(evaluation_summary(folder)).split())
    [judged] = ReportData([folder]).judged
    for part in (folder.unfinished, judged.headline, *judged.sentences, judged.effective.rule, "30% [22, 40]"):
        assert part in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(4.84, "4.84"), (9.996, "10.0"), (15.7, "15.7"), (99.97, "100"), (134.2, "134"), (999.9, "1.0e3"),
     (12_345, "1.2e4"), (math.inf, "∞"), (math.nan, "–")],
)  # fmt: skip
def test_perplexities_have_two_or_three_digits(value, text) -> None:
    assert format_number(value) == text


def test_shares_are_0_and_100_only_if_exact() -> None:
    assert [format_share(s) for s in (0, 0.004, 0.34, 0.996, 1)] == ["0%", "<1%", "34%", ">99%", "100%"]


def test_two_runs_have_labels_with_their_names(tmp_path) -> None:
    folders = [read_folder(run_folder(tmp_path / name, [*ORIGINAL, *POSE])) for name in "ab"]
    assert [row[0] for row in tables(*folders)["passkey"][0].rows] == ["original", "a · PoSE", "b · PoSE"]
