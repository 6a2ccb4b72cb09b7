"""The page of a run, several runs or an evaluation: its numbers, that it is inert, and its refusals."""

import csv
import html
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from skipwise.errors import RunError
from skipwise.report.folder import read_folder
from skipwise.report.numbers import ReportData
from skipwise.report.page import write_page
from skipwise.results.records import BenchmarkRecord, CoverageRecord
from tests.measured import ORIGINAL, PI_ONLY, POSE, WINDOWS, arm, evaluation_folder, readings, run_folder, trials

BOOLQ = BenchmarkRecord("m", "boolq", "acc", 0, 2048, None, "float32", "0.4", "d", 4, 0.5, 0.1)
COVERAGE = CoverageRecord("2 chunks", 256, 2048, [1, 2047], [1.0, 0.1], [0.0, 0.0])


class Tags(HTMLParser):
    """Every tag with its attributes; every tag that opens also closes."""

    void = frozenset({"meta", "br", "link", "img", "path", "use", "rect", "stop"})

    def __init__(self, text):
        super().__init__()
        self.seen, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    run = run_folder(tmp_path_factory.mktemp("runs") / "nano-2k", [*ORIGINAL, *PI_ONLY, *POSE])
    return write_page([run])


def test_page_is_self_contained_and_runs_nothing(page):
    text = page.read_text()
    tags = Tags(text)
    assert not tags.open
    assert not {"script", "img", "link", "iframe", "object"} & {tag for tag, _ in tags.seen}
    for _, attributes in tags.seen:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href"):
            assert not attributes.get(name, "").startswith(("http", "//", "data:"))
    assert "url(http" not in text
    assert (page.parent / "figures" / "perplexity.svg").exists()
    assert write_page([page.parent]).read_text() == text  # equal records, equal page


def test_page_is_accessible(page):
    tags = Tags(page.read_text()).seen
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    labels = {attributes["aria-labelledby"] for _, attributes in tags if "aria-labelledby" in attributes}
    assert labels <= set(ids)
    assert all("aria-label" in attributes for tag, attributes in tags if tag == "svg")
    assert [tag for tag, _ in tags if tag == "h1"] == ["h1"]
    assert ("html", {"lang": "en"}) in tags


def test_page_begins_with_the_verdict_and_the_rule(page):
    text = html.unescape(page.read_text()).replace("\u00a0", " ")
    [judged] = ReportData([read_folder(page.parent)]).judged
    assert re.search(rf"<h1>\s*{judged.headline}\s*</h1>", text)
    for sentence in (*judged.sentences, judged.effective.rule):
        assert sentence in text


def test_intervals_stand_under_their_values(page):
    text = page.read_text()
    assert '<td data-head="256">15.7<small>15.6 to 15.8</small></td>' in text
    assert '<td data-head="256">100%<small>96 to 100</small></td>' in text
    assert "[" not in re.sub(r"<[^>]*>", "", text[text.index("<table") : text.index("</table>")])


def test_every_cell_has_the_head_of_its_column_for_phones(page):
    for table in re.findall(r"<table class=\"stacks\"[^>]*>(.*?)</table>", page.read_text(), re.DOTALL):
        heads = re.findall(r'<th scope="col">([^<]*)</th>', table)
        for row in re.findall(r"<tr[^>]*>(<th scope=.row.>.*?)</tr>", table, re.DOTALL):
            assert re.findall(r'<td data-head="([^"]*)"', row) == heads[1:]


def test_a_base_that_fails_the_rule_is_in_the_headline(tmp_path, undrawn):
    own = [r for w in WINDOWS for r in (*readings("m", w, 15.0), *trials("m", w, 80))]
    base = [*readings("base", 256, 15.0), *trials("base", 256, 80)]
    text = write_page([evaluation_folder(tmp_path / "e", [*own, *base])]).read_text()
    assert "80%" in re.search(r"<h1>([^<]*)</h1>", text)[1]
    assert re.search(r'<th scope="row"><span class="dot"[^>]*></span>base</th><td data-head="256">80%', text)


@pytest.mark.parametrize(
    ("near", "far", "value"),
    [((2, 2), (), ""), ((0, 100), (), "0"), ((100, 100), (2, 2), ""), ((100, 100), (0, 100), "256")],
)
def test_numbers_csv_tells_an_unknown_effective_length_from_none(tmp_path, undrawn, near, far, value):
    own = [*readings("m", 256, 15.0), *trials("m", 256, *near)]
    if far:
        own += [*readings("m", 512, 15.0), *trials("m", 512, *far)]
    base = [*readings("base", 256, 15.0), *trials("base", 256, 100)]
    page = write_page([evaluation_folder(tmp_path / "e", [*own, *base])])
    with open(page.parent / "numbers.csv", newline="", encoding="utf-8") as file:
        [row] = [row for row in csv.DictReader(file) if row["measure"] == "effective length"]
    assert row["value"] == value


def test_numbers_csv_has_every_number_of_the_page(page):
    with open(page.parent / "numbers.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    numbers = {(r["model"], r["measure"], r["length"]): r for r in rows}
    assert len(numbers) == len(rows)
    sliding = numbers["PoSE", "perplexity by sliding window", "1024"]
    assert float(sliding["value"]) == pytest.approx(15.2)
    assert float(sliding["low_95"]) < 15.2 < float(sliding["high_95"])
    assert float(numbers["PI-only", "found, passkey, %", "512"]["value"]) == pytest.approx(70)
    assert numbers["PoSE", "effective length", ""]["value"] == "2048"
    assert float(numbers["PoSE", "cost, nats inside the original window", ""]["value"]) == pytest.approx(
        -0.0258, abs=1e-4
    )
    for measure in ("loss by position, nats", "gain by far text, nats", "loss over the base, nats"):
        assert ("PoSE", measure, "2048") in numbers


def test_names_from_files_are_escaped(tmp_path):
    attack = "<script>alert(1)</script>"
    info = {"model": {"name": attack, "x" + attack: [attack]}, "command": f"skipwise {attack}", "created": attack}
    records = [
        *(r for w in WINDOWS for r in readings("original", w, 15, attack)),
        *(r for w in WINDOWS for r in readings(attack, w, 15, attack)),
        *readings(attack, 256, 16, "other" + attack),
        *trials(attack, 256, 10, 10, attack),
    ]
    text = write_page([run_folder(tmp_path / "a<b>&'\"", records, info, f"model: {attack}\n")]).read_text()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") > 10


def test_several_runs_are_compared_on_one_page(tmp_path, undrawn):
    first = run_folder(tmp_path / "a" / "run", [*ORIGINAL, *POSE])
    second = run_folder(tmp_path / "b" / "run", [*ORIGINAL, *arm("short", [15.3, 15.0, 15.6, 16.4], [100, 100, 70, 0])])
    page = write_page([first, second, first], tmp_path / "both")
    text = page.read_text()
    for part in (
        "2 runs compared",
        "a/run · PoSE",
        "b/run · short",
        '<td data-head="a/run">nano</td><td data-head="b/run">nano',
    ):
        assert part in text
    assert page == tmp_path / "both" / "report.html"
    assert not (first / "report.html").exists()


def test_numbers_csv_of_an_evaluation_has_paired_differences(tmp_path, undrawn):
    both = [replace(BOOLQ, arm=name, scores=right, questions="q") for name, right in (("m", "1100"), ("base", "1001"))]
    folder = evaluation_folder(tmp_path / "e", [*readings("m", 256, 15.0), *readings("base", 256, 15.0), *both])
    write_page([folder])
    half = 1.959964 * 100 * math.sqrt(2 / 3 / 4)  # of the differences 0, 1, 0, -1
    [apart] = [row for row in csv.reader((folder / "numbers.csv").open()) if "less its base" in row[2]]
    assert apart[:5] == ["m", "", "benchmark boolq, % less its base's, paired", "", "0.0"]
    assert [*map(float, apart[5:])] == pytest.approx([-half, half])


@pytest.mark.parametrize(
    ("records", "facts"), [(readings("m", 256, 15.0), {"records": 50}), ([BOOLQ], {}), ([COVERAGE], {})]
)
def test_a_page_without_a_verdict_has_a_title(tmp_path, undrawn, records, facts):
    text = write_page([evaluation_folder(tmp_path / "e", records, **facts)]).read_text()
    title = re.search(r"<h1>([^<]+)</h1>", text)[1]
    assert title
    assert "Reads" not in title


def test_folders_that_do_not_go_together_are_refused(tmp_path):
    run = run_folder(tmp_path / "run", POSE[:2])
    evaluation = evaluation_folder(tmp_path / "e", readings("m", 256, 15.0))
    with pytest.raises(RunError, match="--out"):
        write_page([run, evaluation])
    with pytest.raises(RunError, match="evaluation"):
        write_page([run, evaluation], tmp_path / "both")


def test_files_of_the_users_own_are_kept(tmp_path, undrawn):
    run = run_folder(tmp_path / "run", POSE[:7])
    notes = tmp_path / "notes.html"
    notes.write_text("<html>mine</html>")
    with pytest.raises(RunError, match=r"notes\.html"):
        write_page([run], notes)
    assert notes.read_text() == "<html>mine</html>"
    for _ in range(2):
        assert write_page([run], tmp_path / "new" / "mine.html").name == "mine.html"
