"""The page of a run, several runs or an evaluation: its numbers, that it is inert, and its refusals."""

import csv
import html
import re

import pytest

from skipwise.errors import RunError
from skipwise.report.numbers import ReportData
from skipwise.report.page import write_page
from skipwise.report.rows import read_folder
from tests.measured import ORIGINAL, PI_ONLY, POSE, WINDOWS, arm, evaluation_folder, readings, run_folder, trials


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    run = run_folder(tmp_path_factory.mktemp("runs") / "nano-2k", [*ORIGINAL, *PI_ONLY, *POSE])
    return write_page([run])


def test_page_is_self_contained_and_runs_nothing(page):
    text = page.read_text()
    tags = re.findall(r"<(\w+)([^>]*)>", text)
    assert not {"script", "img", "link", "iframe", "object"} & {tag for tag, _ in tags}
    assert not [attributes for _, attributes in tags if re.search(r"\son\w+=", attributes)]
    assert not re.findall(r'\s(?:src|href|xlink:href)="(?:http|//|data:)', text)
    assert "url(http" not in text
    assert '<td data-head="256">15.7<small>15.6 to 15.8</small></td>' in text
    [judged] = ReportData([read_folder(page.parent)]).judged
    assert judged.headline in html.unescape(text).replace("\u00a0", " ")
    assert (page.parent / "figures" / "perplexity.svg").exists()
    assert write_page([page.parent]).read_text() == text  # equal records, equal page


def test_numbers_csv_has_every_number_of_the_page(page):
    with open(page.parent / "numbers.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    numbers = {(r["model"], r["measure"], r["length"]): r for r in rows}
    assert len(numbers) == len(rows)
    sliding = numbers["PoSE", "perplexity by sliding window", "1024"]
    assert float(sliding["value"]) == pytest.approx(15.2)
    assert float(sliding["low_95"]) < 15.2 < float(sliding["high_95"])
    assert float(numbers["no training", "found, passkey, %", "512"]["value"]) == pytest.approx(70)
    assert numbers["PoSE", "effective length", ""]["value"] == "2048"
    assert float(numbers["PoSE", "cost, nats inside the original window", ""]["value"]) == pytest.approx(
        -0.0258, abs=1e-4
    )
    for measure in ("loss by position, nats", "gain by far text, nats", "loss over the base, nats"):
        assert ("PoSE", measure, "2048") in numbers


def test_names_from_files_are_escaped(tmp_path, undrawn):
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
    second = run_folder(
        tmp_path / "b" / "run", [*ORIGINAL, *arm("no_skip", [15.3, 15.0, 15.6, 16.4], [100, 100, 70, 0])]
    )
    page = write_page([first, second, first], tmp_path / "both")
    text = page.read_text()
    for part in ("a/run · PoSE", "b/run · no skips", '<td data-head="a/run">nano</td><td data-head="b/run">nano'):
        assert part in text
    assert page == tmp_path / "both" / "report.html"
    assert not (first / "report.html").exists()


def test_files_of_the_users_own_are_kept(tmp_path, undrawn):
    run = run_folder(tmp_path / "run", POSE[:7])
    with pytest.raises(RunError):  # which do not go together
        write_page([run, evaluation_folder(tmp_path / "e", readings("m", 256, 15.0))], tmp_path / "both")
    notes = tmp_path / "notes.html"
    notes.write_text("<html>mine</html>")
    with pytest.raises(RunError):
        write_page([run], notes)
    assert notes.read_text() == "<html>mine</html>"
    for _ in range(2):
        assert write_page([run], tmp_path / "new" / "mine.html").name == "mine.html"
