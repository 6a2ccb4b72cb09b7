"""Results of each model: effective length, gain by far text, cost, other text."""

import io
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from skipwise.errors import RunError
from skipwise.report.numbers import Number, ReportData
from skipwise.report.page import Table, rich_table, tables_of
from skipwise.report.rows import COST_LIMIT, Folder, benchmarks_of, judge, read_folder, rows_of
from skipwise.report.sharing import eval_results, scalars
from skipwise.results.records import OTHER_TEXT, BenchmarkRecord, ReadingRecord, RulerRecord, append_record
from skipwise.results.scores import PAPER
from skipwise.results.statistics import FEWEST_SEGMENTS
from tests.measured import INFO, WINDOWS, evaluation_folder, readings, run_folder, trials

EDGES = [1, 64, 128, *WINDOWS]
KINDS = ("prose", "mathematics", "code")


def judged(*records, info=INFO):
    [one] = judge(rows_of([Folder("run", list(records), info)]))
    return one


def random_readings(seed: int, name: str, window: int) -> list[ReadingRecord]:
    rng = np.random.default_rng(seed)
    return [
        replace(r, nll=list(rng.uniform(1, 2, 6) * np.diff(EDGES)), hits=list(map(int, rng.integers(0, 50, 6))))
        for r in readings(name, window, 1.0)
    ]


def segments(arm: str, kind: str, nats: float, count: int = FEWEST_SEGMENTS, tokens: int = 256) -> list[ReadingRecord]:
    """Segments of one kind of other text; later ones have a higher loss."""
    request = ReadingRecord(arm, OTHER_TEXT, kind, "segment", 0, tokens, tokens, [1, tokens], "float32", "d")
    return [replace(request, begin=tokens * n, nll=[(nats + 0.5 * n) * (tokens - 1)], hits=[0]) for n in range(count)]


def other_text(**rises: float) -> list[ReadingRecord]:
    """Both arms on each kind; ``rises`` in nats by kind."""
    base = [r for kind in KINDS for r in segments("original", kind, 2.0)]
    return [*base, *(r for kind in KINDS for r in segments("pose", kind, 2.0 + rises.get(kind, 0.0)))]


def test_every_number_has_its_formula(tmp_path) -> None:
    whole, short, base = (
        random_readings(seed, name, window) for seed, name, window in ((0, "m", 2048), (1, "m", 256), (2, "base", 256))
    )
    records = [*whole, *reversed(short), *base[3:], *base[:3], *trials("m", 256, 40, 40), *trials("m", 2048, 39, 40)]
    [one] = judge(rows_of([read_folder(evaluation_folder(tmp_path / "e", records))]))
    row, every = one.row, slice(None)

    def total(read, buckets=every, what="nll") -> float:
        return sum(float(np.sum(getattr(r, what)[buckets])) for r in read)

    assert row.perplexity[2048].mean == pytest.approx(math.exp(total(whole) / (6 * 2047)))
    assert row.perplexity[256].mean == pytest.approx(math.exp(total(short) / (6 * 2047)))
    assert row.perplexity[2048].low < row.perplexity[2048].mean < row.perplexity[2048].high
    assert {edge: first.mean for edge, first in row.truncated().items()} == pytest.approx(
        {edge: math.exp(total(whole, slice(0, i + 1)) / (6 * (edge - 1))) for i, edge in enumerate(EDGES[1:])}
    )
    assert [b.begin for b in one.buckets] == EDGES[:-1]
    last = one.buckets[-1]
    assert last.loss.mean == pytest.approx(total(whole, 5) / (6 * 1024))
    assert last.gain.mean == pytest.approx((total(short, 5) - total(whole, 5)) / (6 * 1024))
    assert last.excess.mean == pytest.approx((total(whole, 5) - total(base, 5)) / (6 * 1024))
    assert [b.gain is None for b in one.buckets] == [True] * 3 + [False] * 3  # none inside the original length
    assert one.cost.mean == pytest.approx((total(short) - total(base)) / (6 * 2047))
    hits = total(short, what="hits") - total(base, what="hits")
    assert one.accuracy.mean == pytest.approx(hits / (6 * 2047))
    assert row.found == {"passkey": {256: (40, 40), 2048: (39, 40)}}


@pytest.mark.parametrize(("more", "warned"), [(0.02, False), (COST_LIMIT + 0.01, True)])
def test_a_high_cost_has_a_warning(more, warned) -> None:
    one = judged(*readings("original", 256, 15.0), *readings("pose", 256, 15.0 * math.exp(more)))
    assert one.cost.mean == pytest.approx(more)
    assert bool(one.warning) is warned
    assert one.effective.claimed(256) is None  # no passkey was asked


def test_a_measured_window_below_the_original_is_not_called_the_original() -> None:
    info = {**INFO, "model": {**INFO["model"], "original_length": 512}}
    rule = judged(
        *readings("original", 256, 15.0), *readings("pose", 256, 15.0), *trials("pose", 256, 4), info=info
    ).effective.rule
    assert "256 tokens" in rule
    assert "512" not in rule
    assert "original" not in rule.replace("(original)", "")


def test_a_repeated_measurement_replaces_the_older_one() -> None:
    records = [*readings("pose", 256, 9), *readings("pose", 256, 8, digest="e"), *trials("pose", 256, 10, 10)]
    [row] = rows_of([Folder("a", [*records, *(replace(t, digest="e", hit=False) for t in records[-10:])], INFO)])
    assert row.perplexity[256].mean == pytest.approx(8)
    assert row.found["passkey"][256] == (0, 10)
    record = BenchmarkRecord("m", "boolq", "acc", 0, 256, None, "float32", "0.4", "d", 4, 0.5)
    assert benchmarks_of([Folder("a", [record, replace(record, value=0.75)])]) == [replace(record, value=0.75)]
    some = replace(record, limit=10, samples=3, value=0.9)  # fewer questions
    assert benchmarks_of([Folder("a", [record, some])]) == [record]


def test_settings_of_a_resumed_run_select_its_records(tmp_path) -> None:
    settings = {"documents": {"held out": ["d0", "d2"]}, "windows": [512], "prompt_lengths": [512], "trials": 4}
    settings |= {
        "tasks": ["passkey"],
        "tokens": {"held out": [2048, 2048]},
        "other": False,
        "strides": {"256": 128, "512": 128},
    }
    records = [*readings("original", 256, 9), *readings("original", 512, 9), *readings("original", 1024, 9)]
    records += [*trials("original", 512, 1, 3, "keys"), *trials("original", 256, 5), *trials("original", 512, 5)]
    records += [replace(r, data="another") for r in readings("original", 512, 9)] + other_text()
    folder = read_folder(run_folder(tmp_path / "a", records, {**INFO, "evaluation": settings}))
    [row] = rows_of([folder])
    assert set(row.perplexity) == {256, 512}  # the original has its own window too
    assert [r.document for r in row.readings(512)] == ["d0", "d2"]
    assert row.found == {"passkey": {512: (4, 4)}}
    assert other_text_costs(folder) == {}
    folder = read_folder(run_folder(tmp_path / "b", records, {**INFO, "evaluation": {}}))
    assert set(rows_of([folder])[0].perplexity) == {256, 512, 1024}
    assert other_text_costs(folder)


def other_text_costs(folder: Folder) -> dict[str, Number]:
    """Change of the loss by kind of text."""
    return {number.text: number for number in ReportData([folder]).numbers if number.measure.short == "cost"}


def test_other_text_is_paired_by_segment() -> None:
    folder = Folder("run", other_text(prose=0.05, code=-0.02), INFO)
    costs, [table] = other_text_costs(folder), tables(folder)["other text"]
    assert table.rows[0][:3] == ["prose, loss (nats)", "3.750", "3.800"]  # 2.0 + 0.5 * 3.5
    prose = costs["prose"].value
    # Segments differ by 0.5 nats, their differences by none.
    assert [prose.low, prose.mean, prose.high] == pytest.approx([0.05] * 3)
    assert (costs["code"].value.mean, costs["mathematics"].value.mean) == (pytest.approx(-0.02), 0)
    for rise, warned in ((0.029, False), (0.031, True)):
        assert bool(ReportData([Folder("run", other_text(code=rise), INFO)]).warnings) is warned
    shared = [*segments("original", "prose", 2.0)[:3], *segments("pose", "prose", 2.1)]
    cost = other_text_costs(Folder("run", shared, INFO))["prose"]
    assert cost.count == 3
    assert math.isnan(cost.value.low)


def test_an_evaluation_counts_its_missing_records(tmp_path) -> None:
    records = [*readings("m", 256, 9), *trials("m", 256, 3, 4)]
    with pytest.raises(RunError):
        read_folder(evaluation_folder(tmp_path / "empty", []))
    folder = evaluation_folder(tmp_path / "e", records, records=12)
    assert "10 of 12" in read_folder(folder).unfinished
    append_record(folder / "results.jsonl", *records, *trials("m", 512, 1, 2))
    assert read_folder(folder).unfinished == ""


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


def test_the_papers_table_has_the_base_first_and_paired_differences(tmp_path) -> None:
    folder = read_folder(evaluation_folder(tmp_path / "e", [*paper("m", "1110"), *paper("base", "1010")]))
    [[table]] = tables(folder).values()
    assert table.head == ["task", "base", "m", "m less its base"]
    *tasks, average = table.rows
    assert [row[0] for row in tasks] == [f"{how.title}, {how.fewshot}-shot" for how in PAPER.values()]
    assert [row[1:] for row in tasks] == [["50.00 (1.00)", "75.00 (1.00)", "+25.00 (25.00)"]] * 6
    error = f"({1 / math.sqrt(6):.2f})"
    assert average == ["average", f"50.00 {error}", f"75.00 {error}", f"+25.00 ({25 / math.sqrt(6):.2f})"]
    assert max(map(len, printed(rich_table(table)).splitlines())) <= 80
    other = [replace(record, questions="others") for record in paper("m", "1110")[:2]]
    folder = read_folder(evaluation_folder(tmp_path / "other", [*other, *paper("base", "1010")]))
    [[table]] = tables(folder).values()
    assert [row[3].endswith("*)") for row in table.rows[:3]] == [True, True, False]  # not paired; not run


def test_models_differ_from_the_first_on_the_same_prompts() -> None:
    records = [*trials("m0", 256, 100), *trials("m1", 256, 90)]
    records += [*answered("m0", "vt", 256, 1.0), *answered("m1", "vt", 256, 0.875)]
    [table] = tables(Folder("e", records, {"evaluation": {"models": [{"label": "m0"}, {"label": "m1"}]}}))[
        "differences"
    ]
    assert [(row[0], row[1].split()[0]) for row in table.rows] == [("passkey, 256", "-10.0"), ("RULER, 256", "-12.5")]
