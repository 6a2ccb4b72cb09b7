"""The one list of numbers, and its tables in pages, terminals and Markdown."""

import io
import math
import re
from dataclasses import replace

from rich.console import Console

from skipwise.report.folder import Folder, read_folder
from skipwise.report.model_card import eval_results
from skipwise.report.numbers import ReportData
from skipwise.report.tables import Table, missing_benchmarks, rich_table, summary_markdown, summary_table, tables_of
from skipwise.report.trackers import scalars
from skipwise.results.records import BenchmarkRecord, RulerRecord
from skipwise.results.scores import PAPER
from skipwise.results.statistics import FEWEST_SEGMENTS
from tests.measured import INFO, ORIGINAL, PI_ONLY, POSE, evaluation_folder, readings, trials
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
    assert missing_benchmarks(folder) == ""
    other = [replace(record, questions="others") for record in paper("m", "1110")[:2]]
    folder = read_folder(evaluation_folder(tmp_path / "other", [*other, *paper("base", "1010")]))
    [[table]] = tables(folder).values()
    assert ["*" in cell for cell in table.rows[2][1:4]] == [True, True, False]  # not paired; not run
    assert missing_benchmarks(replace(folder, records=other))


def test_other_text_has_a_row_for_each_kind_and_measure() -> None:
    [table] = tables(run(*ORIGINAL, *POSE, *other_text(prose=0.05)))["other text"]
    assert table.head == ["text", "base", "extended", "difference"]
    assert table.rows[0] == ["prose, loss (nats)", "3.750", "3.800", "+0.050 [+0.050, +0.050]"]
    assert len(table.rows) == 6
    few = FEWEST_SEGMENTS - 1
    [table] = tables(run(*segments("original", "prose", 2.0, few), *segments("pose", "prose", 2.05, few)))["other text"]
    assert "too few" in table.rows[0][-1]


def test_the_terminal_has_every_number_of_a_run_in_80_columns() -> None:
    folder = run(*ORIGINAL, *PI_ONLY, *POSE, *readings("[red]x", 256, 1), *other_text(prose=0.05))
    text = printed(summary_table(folder), markup=True)
    assert printed(summary_table(folder), markup=False) == text
    assert re.search(r"original +15\.7 +79\.0 +109 +134 +100% +0% +0% +0%", text)
    assert "[red]x" in text
    assert "+0.050 [+0.050, +0.050]" in text
    assert max(map(len, text.splitlines())) <= 80
    lengths = [256 * 2**k for k in range(7)]  # too wide for one table
    wide = [r for n in lengths for r in (*readings("original", n, 101.0), *trials("original", n, 1, 10))]
    text = printed(summary_table(run(*wide)))
    assert re.search(r"original( +101){7} *\n", text)
    assert re.search(r"original( +10%){7} *\n", text)


def test_the_markdown_table_is_whole_and_inert() -> None:
    lines = summary_markdown(ReportData([run(*ORIGINAL, *readings("a|<b>", 256, 1234))])).splitlines()
    assert lines[0].startswith("| arm | perplexity 256 | perplexity 512 |")
    assert lines[2] == "| original | 15.7 | 79.0 | 109 | 134 | 100% | 0% | 0% | 0% |"
    assert lines[3].startswith("| a\\|&lt;b&gt; | 1.2e3 | – |")
    assert summary_markdown(ReportData([run()])) == ""
