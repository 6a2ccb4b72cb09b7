"""Tables: which numbers stand in them, how they are written, and how a terminal and Markdown show them."""

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from skipwise.report.folder import Folder, read_folder
from skipwise.report.shown import Shown
from skipwise.report.table import format_number
from skipwise.report.tables import (
    benchmarks_table,
    evaluation_summary,
    format_share,
    perplexity_table,
    summary_markdown,
    summary_table,
    tables_of,
    trials_table,
)
from skipwise.results.records import BenchmarkRecord
from tests.measured import INFO, ORIGINAL, PI_ONLY, POSE, evaluation_folder, readings, trials

BENCHMARK = BenchmarkRecord("m", "arc", "acc_norm", 25, 2048, None, "float32", "0.4", "d", 1172, 0.51234, 0.0146)


def run(*records) -> Folder:
    return Folder("run", list(records), INFO)


def shown(renderable, width: int = 80, **settings) -> str:
    console = Console(file=io.StringIO(), width=width, **settings)
    console.print(renderable)
    return console.file.getvalue()


def test_a_run_has_a_table_of_perplexity_and_one_of_each_task() -> None:
    lines = trials("pose", 256, 7, 10, task="lines")
    perplexity, passkeys, others = tables_of(Shown([run(*ORIGINAL, *POSE, *lines)]))
    assert perplexity.head == ["window", "256", "512", "1k", "2k"]
    assert perplexity.rows[1] == [
        "PoSE",
        "15.3 [15.2, 15.4]",
        "15.0 [14.9, 15.1]",
        "15.2 [15.1, 15.3]",
        "15.4 [15.3, 15.5]",
    ]
    assert passkeys.title == "Passkey found, by prompt length (higher is better)"
    assert passkeys.rows[0] == ["original", "100% [96, 100]", "0% [0, 4]", "0% [0, 4]", "0% [0, 4]"]
    assert others.rows == [["PoSE", "70% [40, 89]"]]
    assert perplexity.strong == passkeys.strong == {1}
    assert others.strong == frozenset()  # nothing stands out where all models are extended


def test_an_evaluation_has_intervals_positions_and_benchmarks(tmp_path) -> None:
    own = [r for w in (256, 2048) for r in (*readings("m", w, 15.0), *trials("m", w, 90))]
    records = [*own, *readings("base", 256, 15.0), BENCHMARK, replace(BENCHMARK, arm="base", value=0.5)]
    perplexity, passkeys, benchmarks, positions = tables_of(
        Shown([read_folder(evaluation_folder(tmp_path / "e", records))])
    )
    assert perplexity.rows == [["m", *["15.0 [14.9, 15.1]"] * 2], ["base", "15.0 [14.9, 15.1]", "–"]]
    assert passkeys.rows == [["m", "90% [83, 94]", "90% [83, 94]"]]
    assert benchmarks.head == ["task", "m", "base"]
    assert benchmarks.rows == [["arc, 25-shot, acc_norm", "0.5123 (0.0146)", "0.5000 (0.0146)"]]
    assert positions.rows[0] == ["1 .. 63", "2.708", "–", "+0.000 [+0.000, +0.000]"]
    assert positions.rows[-1] == ["1,024 .. 2,047", "2.708", "+0.000 [+0.000, +0.000]", "+0.000 [+0.000, +0.000]"]


def test_a_column_that_would_be_empty_is_left_out(tmp_path) -> None:
    alone = [r for w in (256, 2048) for r in readings("m", w, 15.0)]
    [_, positions] = tables_of(Shown([read_folder(evaluation_folder(tmp_path / "e", alone, base=""))]))
    assert positions.head == ["position", "loss (nats)", "gain by far text (nats)"]
    assert {len(row) for row in positions.rows} == {3}


def test_the_terminal_shows_every_number_of_a_run_in_80_columns() -> None:
    folder = run(*ORIGINAL, *PI_ONLY, *POSE, *readings("[red]x", 256, 1))
    text = shown(summary_table(folder), markup=True)
    assert shown(summary_table(folder), markup=False) == text
    assert re.search(r"original +15\.7 +79\.0 +109 +134 +100% +0% +0% +0%", text)
    assert "[red]x" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_table_of_many_windows_is_cut_nowhere() -> None:
    windows = [256 * 2**k for k in range(7)]
    records = [r for i, w in enumerate(windows) for r in readings("original", w, 100.0 + i)]
    records += [t for i, w in enumerate(windows) for t in trials("original", w, i, 10)]
    text = shown(summary_table(run(*records)))
    assert re.search(r"original +100 +101 +102 +103 +104 +105 +106 *\n", text)
    assert re.search(r"original +0% +10% +20% +30% +40% +50% +60% *\n", text)
    assert "…" not in text


def test_the_markdown_table_is_whole_and_inert() -> None:
    lines = summary_markdown(run(*ORIGINAL, *readings("a|<b>", 256, 1234))).splitlines()
    assert lines[0].startswith("| arm | perplexity 256 | perplexity 512 |")
    assert lines[2] == "| original | 15.7 | 79.0 | 109 | 134 | 100% | 0% | 0% | 0% |"
    assert lines[3].startswith("| a\\|&lt;b&gt; | 1.2e3 | – |")
    assert summary_markdown(run()) == ""


def test_the_terminal_says_of_an_evaluation_what_its_page_says(tmp_path) -> None:
    own = [*readings("m", 256, 15.0), *readings("m", 2048, 15.0), *trials("m", 256, 100), *trials("m", 2048, 30)]
    folder = read_folder(evaluation_folder(tmp_path / "e", [*own, *readings("base", 256, 15.0)], records=999))
    said = " ".join(shown(evaluation_summary(folder)).split())
    assert said.startswith("Unfinished: 218 of 999 records.")
    assert "m: Not extended: it reads 256 tokens, no more than its original 256" in said
    assert "At 2,048 tokens it fails: 30 of 100 passkeys found, 95% interval 22% to 40%, 90% needed." in said
    assert "Inside the original window the loss changed by +0.000" in said
    assert "30% [22, 40]" in said
    assert "The longest tested length such that" in said


SLIDING = [*readings("m", 256, 15.0), *readings("m", 2048, 12.0)]


def test_what_perplexity_shows_in_each_mode() -> None:
    sliding = perplexity_table("sliding", SLIDING, [256, 2048])
    assert [row[0] for row in sliding.rows] == ["256", "2k"]
    assert sliding.rows[1][1:] == ["12.0", "12.0 to 12.0", "6", "12,282"]
    truncated = perplexity_table("truncated", SLIDING[6:], [512, 2048])
    assert [row[:2] for row in truncated.rows] == [["512", "12.0"], ["2k", "12.0"]]
    positions = perplexity_table("by-position", SLIDING, [256, 2048])
    assert positions.rows[1] == ["256 .. 2,047", "2.485", "+0.223 [+0.223, +0.223]"]
    apart = [*readings("m", 256, 15.0, documents=1), *readings("m", 2048, 12.0, documents=2)[1:]]
    assert perplexity_table("by-position", apart, [2048]).rows[0][2] == "–"  # no document was read in both
    assert perplexity_table("sliding", SLIDING[:1], [256]).rows == [["256", "14.9", "–", "1", "2,047"]]


def test_what_passkey_shows() -> None:
    table = trials_table("passkey", [*trials("m", 2048, 45, 50), *trials("m", 256, 50, 50)])
    assert table.rows == [["256", "50 of 50", "100%", "93 to 100%"], ["2k", "45 of 50", "90%", "79 to 96%"]]


def test_what_benchmark_shows() -> None:
    table = benchmarks_table([BENCHMARK, replace(BENCHMARK, standard_error=None)])
    assert table.rows[0] == ["arc", "25", "acc_norm", "0.5123", "0.0146", "1,172"]
    assert table.rows[1][4] == "–"


@pytest.mark.parametrize(
    ("value", "text"),
    [(4.84, "4.84"), (9.996, "10.0"), (15.7, "15.7"), (99.97, "100"), (134.2, "134"), (999.9, "1.0e3"),
     (12_345, "1.2e4"), (math.inf, "∞"), (math.nan, "–")],
)  # fmt: skip
def test_perplexities_are_written_with_two_or_three_digits(value, text) -> None:
    assert format_number(value) == text


def test_shares_are_0_and_100_only_where_they_are_exact() -> None:
    assert [format_share(s) for s in (0, 0.004, 0.34, 0.996, 1)] == ["0%", "<1%", "34%", ">99%", "100%"]
