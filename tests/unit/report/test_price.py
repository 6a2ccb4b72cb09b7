"""What an extension costs on other text: the table, the warning, and when there is none."""

import csv
import math
from dataclasses import replace

import pytest

from skipwise.report.folder import Folder, read_folder
from skipwise.report.page import write_page
from skipwise.report.price import price_warning, prices_of
from skipwise.report.shown import Shown
from skipwise.report.summary import COST_LIMIT, judgements, rows_of
from skipwise.report.tables import summary_markdown, summary_table, tables_of
from skipwise.results.records import OTHER_TEXT, ReadingRecord
from skipwise.results.statistics import FEWEST_SEGMENTS
from tests.measured import INFO, ORIGINAL, POSE, run_folder
from tests.unit.report.test_tables import shown

KINDS = ("prose", "mathematics", "code")


def segments(arm: str, kind: str, nats: float, count: int = FEWEST_SEGMENTS, tokens: int = 256) -> list[ReadingRecord]:
    """Segments of one kind, of which the later ones are harder to read."""
    how = ReadingRecord(arm, OTHER_TEXT, kind, "segment", 0, tokens, tokens, [1, tokens], "float32", "d")
    return [replace(how, begin=tokens * n, nll=[(nats + 0.5 * n) * (tokens - 1)], hits=[0]) for n in range(count)]


def priced(**rises: float) -> list[ReadingRecord]:
    """Both arms, each kind at 2 nats and more; ``rises`` in nats by kind."""
    base = [r for kind in KINDS for r in segments("original", kind, 2.0)]
    return [*base, *(r for kind in KINDS for r in segments("pose", kind, 2.0 + rises.get(kind, 0.0)))]


def run(*records) -> Folder:
    return Folder("run", [*ORIGINAL, *POSE, *records], INFO)


def test_the_price_is_paired_by_segment() -> None:
    prose, mathematics, code = prices_of(run(*priced(prose=0.05, code=-0.02)))
    assert [price.kind for price in (prose, mathematics, code)] == list(KINDS)
    assert (prose.arm, prose.segments, prose.tokens) == ("pose", 8, 256)
    assert prose.loss.base == pytest.approx(2.0 + 0.5 * 3.5)
    assert prose.loss.own == pytest.approx(prose.loss.base + 0.05)
    # Segments differ by 0.5 nats from one to the next, and their differences by none.
    assert [prose.loss.difference.low, prose.loss.difference.mean, prose.loss.difference.high] == pytest.approx(
        [0.05] * 3
    )
    assert code.loss.difference.mean == pytest.approx(-0.02)
    assert mathematics.loss.difference.mean == 0


def test_the_table_has_a_row_for_each_kind() -> None:
    [table] = [table for table in tables_of(Shown([run(*priced(prose=0.05))])) if table.group == "other text"]
    assert table.title == "Short ability: other text inside the original window"
    assert table.head == ["text", "base", "extended", "difference"]
    assert table.rows[0] == ["prose, loss (nats)", "3.750", "3.800", "+0.050 [+0.050, +0.050]"]
    assert [row[0] for row in table.rows] == [
        f"{kind}, {name}" for name in ("loss (nats)", "accuracy (%)") for kind in KINDS
    ]


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (1, "+0.050 [1 segment: too few for an interval]"),
        (FEWEST_SEGMENTS - 1, "+0.050 [7 segments: too few for an interval]"),
        (FEWEST_SEGMENTS, "+0.050 [+0.050, +0.050]"),
    ],
)
def test_few_segments_have_no_interval(count, told) -> None:
    [price] = prices_of(run(*segments("original", "prose", 2.0, count), *segments("pose", "prose", 2.05, count)))
    assert price.told(price.loss.difference) == told


@pytest.mark.parametrize(("rise", "warned"), [(-0.1, False), (0.0, False), (0.029, False), (0.031, True)])
def test_the_warning_begins_above_the_limit(rise, warned) -> None:
    assert COST_LIMIT == 0.03
    warning = price_warning(run(*priced(code=rise)))
    assert bool(warning) == warned
    if warned:
        assert warning.startswith(
            "Inside the original window the loss rises by 0.031 on code (nats per token), more than"
        )
        assert "--set teacher.weight=1" in warning


@pytest.mark.parametrize(
    ("weight", "written", "way"),
    [
        (None, None, "(--set teacher.weight=1)"),
        ("x", None, "(--set teacher.weight=1)"),
        (2.0, 16.0, "(--set teacher.weight=8, now 2)"),
        (0.0, 16.0, "(--set teacher.written_weight=64, now 16)"),
        (0.0, 300.0, "(--set teacher.written_weight=1000, now 300)"),
        (0.0, 1000.0, "than its base. Train on such text too."),
    ],
)
def test_the_way_out_begins_with_the_teacher_that_there_is(weight, written, way) -> None:
    settings = {"teacher.weight": weight, "teacher.written_weight": written}
    folder = replace(run(*priced(code=0.5)), info={"settings": settings})
    assert way in price_warning(folder)


def test_the_limit_itself_is_allowed(monkeypatch) -> None:
    folder = run(*priced(code=0.5))
    price = prices_of(folder)[-1].rise
    monkeypatch.setattr("skipwise.report.price.COST_LIMIT", price)
    assert price_warning(folder) == ""
    monkeypatch.setattr("skipwise.report.price.COST_LIMIT", math.nextafter(price, 0))
    assert price_warning(folder)


def test_only_kinds_that_cost_much_are_named() -> None:
    warning = price_warning(run(*priced(prose=0.05, mathematics=0.01, code=0.2)))
    assert "0.050 on prose and 0.200 on code (nats per token)" in warning
    assert "mathematics" not in warning


@pytest.mark.parametrize("arms", [("original",), ("pose",)])
def test_without_base_or_extended_model_there_is_no_price(arms) -> None:
    folder = run(*(r for r in priced(prose=1.0) if r.arm in arms))
    assert prices_of(folder) == []
    assert price_warning(folder) == ""
    assert not [table for table in tables_of(Shown([folder])) if table.group == "other text"]


def test_only_segments_that_both_have_read_count() -> None:
    base = segments("original", "prose", 2.0)
    [price] = prices_of(run(*base[:3], *segments("pose", "prose", 2.1)))
    assert (price.segments, price.rise) == (3, pytest.approx(0.1))


def test_other_text_changes_nothing_else() -> None:
    without, folder = run(), run(*priced(prose=0.5))
    assert judgements(rows_of([folder])) == judgements(rows_of([without]))
    assert summary_markdown(folder) == summary_markdown(without)


def test_terminal_page_and_numbers_show_the_price(tmp_path) -> None:
    records = [*ORIGINAL, *POSE, *priced(prose=0.05)]
    page = write_page([run_folder(tmp_path / "run", records)])
    folder = read_folder(page.parent)
    text, warning = page.read_text(), price_warning(folder)
    assert f'<p class="warning">{warning}</p>' in text
    assert '<td data-head="difference">+0.050<small>+0.050 to +0.050</small></td>' in text
    assert "8 segments of each, 256 tokens long." in text
    said = shown(summary_table(folder))
    assert max(map(len, said.splitlines())) <= 80
    assert "Short ability: other text inside the original window" in said
    assert warning in " ".join(said.split())
    with open(page.parent / "numbers.csv", newline="", encoding="utf-8") as file:
        numbers = {(r["model"], r["text"], r["measure"]): r for r in csv.DictReader(file)}
    name = "on other text, nats inside the original window"
    assert float(numbers["original", "prose", f"loss {name}"]["value"]) == pytest.approx(3.75)
    assert float(numbers["PoSE", "prose", f"loss {name}"]["value"]) == pytest.approx(3.8)
    assert float(numbers["PoSE", "prose", f"cost {name}"]["high_95"]) == pytest.approx(0.05)


def test_two_runs_are_told_apart(tmp_path) -> None:
    runs = [
        run_folder(tmp_path / name, [*ORIGINAL, *POSE, *priced(prose=rise)]) for name, rise in (("a", 0.1), ("b", 0))
    ]
    text = write_page(runs, tmp_path / "both").read_text()
    assert "original window (a)" in text
    assert "original window (b)" in text
    assert '<p class="warning">a: Inside the original window' in text
    assert '<p class="warning">b: ' not in text


def test_a_run_that_asks_no_more_for_it_shows_it_no_more(tmp_path) -> None:
    records = [*ORIGINAL, *POSE, *priced(prose=0.1)]
    for asked, shows in (({"other": True}, True), ({}, True), ({"other": False}, False)):
        folder = run_folder(tmp_path / f"{asked}", records, {**INFO, "evaluation": asked})
        assert bool(prices_of(read_folder(folder))) == shows
