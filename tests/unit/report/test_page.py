"""The page and the tables: rule, numbers, escaping, messages."""

import json
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from skipwise.errors import RunError
from skipwise.report import summary_markdown, summary_table, write_report
from skipwise.report.summary import (
    format_number,
    format_share,
    results_table,
    verdict,
)
from skipwise.results.records import PasskeyRecord, PerplexityRecord, append_record

WINDOWS = [256, 512, 1024, 2048]


def perplexity(arm, window, value, data="held out"):
    import math

    return PerplexityRecord(arm, window, 128, 8, 1000, 1000 * math.log(value), "float32", 1.0, data)


def passkey(arm, length, hits, trials=10):
    depths = [i / trials for i in range(trials)]
    return PasskeyRecord(arm, length, 0, depths, [length] * trials, [i < hits for i in range(trials)], 1.0)


def arm_records(arm, perplexities, hits):
    return [
        *[perplexity(arm, w, p) for w, p in zip(WINDOWS, perplexities, strict=True)],
        *[passkey(arm, w, k) for w, k in zip(WINDOWS, hits, strict=True)],
    ]


ORIGINAL = arm_records("original", [15.7, 79, 109, 134], [10, 0, 0, 0])
PI_ONLY = arm_records("pi-only", [18.9, 18.5, 18.6, 19.3], [7, 7, 6, 3])
POSE = arm_records("pose", [15.3, 15.0, 15.2, 15.4], [10, 10, 9, 9])
INFO = {"model": {"name": "nano", "original_length": 256, "target_length": 2048}}


def make_run(folder, records, info=INFO, recipe="model: nano\n"):
    folder.mkdir(parents=True)
    for record in records:
        append_record(folder / "results.jsonl", record)
    if info is not None:
        (folder / "run.json").write_text(json.dumps(info))
    (folder / "recipe.yaml").write_text(recipe)
    return folder


@pytest.fixture
def undrawn(monkeypatch):
    """Leave the drawing out where the figures are not what is tested."""
    monkeypatch.setattr("skipwise.report.page.draw_figures", lambda *_: [])


class Tags(HTMLParser):
    """Every tag with its attributes, and whether what opens also closes."""

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
    run = make_run(tmp_path_factory.mktemp("runs") / "nano-2k", [*ORIGINAL, *PI_ONLY, *POSE])
    return write_report([run])


def test_page_is_in_the_run_folder_with_its_figures(page):
    assert page.name == "report.html"
    assert (page.parent / "figures" / "perplexity.svg").exists()


def test_page_is_self_contained_and_runs_nothing(page):
    tags = Tags(page.read_text())
    assert not tags.open
    assert not {"script", "img", "link", "iframe", "object"} & {tag for tag, _ in tags.seen}
    for _, attributes in tags.seen:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href"):
            assert not attributes.get(name, "").startswith(("http", "//", "data:"))
    assert "url(http" not in page.read_text()


def test_page_is_accessible(page):
    tags = Tags(page.read_text()).seen
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    labels = {attributes["aria-labelledby"] for _, attributes in tags if "aria-labelledby" in attributes}
    assert labels <= set(ids)
    assert all("aria-label" in attributes for tag, attributes in tags if tag == "svg")
    assert [tag for tag, _ in tags if tag == "h1"] == ["h1"]
    assert ("html", {"lang": "en"}) in tags


def test_page_leads_with_the_verdict_and_states_its_rule(page):
    text = page.read_text().replace("\u00a0", " ")
    assert re.search(r"<h1>\s*Reads 2,048 tokens, 8 times its original 256\s*</h1>", text)
    assert "at most 1.05 times the original&#39;s at 256 tokens (that is, 16.5)" in text
    assert "original rises from 15.7 to 134" in text


def test_same_records_make_the_same_page(page):
    before = page.read_text()
    assert write_report([page.parent]).read_text() == before


def test_names_from_files_are_escaped(tmp_path):
    attack = "<script>alert(1)</script>"
    info = {
        "model": {"name": attack, "x" + attack: [attack]},
        "command": ["skipwise", attack],
        "seed": attack,
    }
    records = [
        *[perplexity("original", w, 15, attack) for w in WINDOWS],
        *[perplexity(attack, w, 15, attack) for w in WINDOWS],
        *[perplexity(attack, w, 16, "other" + attack) for w in WINDOWS],
        passkey(attack, 256, 10),
    ]
    text = write_report([make_run(tmp_path / "a<b>&'\"", records, info, f"model: {attack}\n")]).read_text()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") > 10


def test_every_key_of_run_json_is_optional(tmp_path, undrawn):
    for i, info in enumerate([None, {}, {"model": None, "training": 3}, {"model": {"original_length": "x"}}]):
        text = write_report([make_run(tmp_path / str(i), [*ORIGINAL, *POSE], info)]).read_text()
        assert "Reads 2,048\u00a0tokens" in text


def test_several_runs_are_compared_on_a_page_of_their_own(tmp_path, undrawn):
    first = make_run(tmp_path / "a" / "run", [*ORIGINAL, *POSE])
    short = arm_records("short", [15.3, 15.0, 15.6, 16.4], [10, 10, 7, 0])
    second = make_run(tmp_path / "b" / "run", [*ORIGINAL, *short])
    page = write_report([first, second, first], tmp_path / "both")
    assert page == tmp_path / "both" / "report.html"
    text = page.read_text()
    assert "2 runs compared" in text
    assert "a/run: Reads 2,048 tokens" in text
    assert "b/run: Reads 512 tokens, 2 times its original 256, short of its target 2,048" in text
    assert "b/run · short" in text
    assert not (first / "report.html").exists()


def test_out_may_name_the_page(tmp_path):
    run = make_run(tmp_path / "run", POSE[4:])
    assert write_report([run], tmp_path / "x" / "mine.html").name == "mine.html"
    assert (tmp_path / "x" / "figures" / "passkey.png").exists()


def test_messages(tmp_path):
    run = make_run(tmp_path / "run", ORIGINAL)
    empty = make_run(tmp_path / "empty", [])
    broken = make_run(tmp_path / "broken", ORIGINAL)
    (broken / "run.json").write_text("{")
    with pytest.raises(RunError, match="no run folder was given"):
        write_report([])
    with pytest.raises(RunError, match="is not a folder"):
        write_report([tmp_path / "none"])
    with pytest.raises(RunError, match=r"holds no results .*--resume"):
        write_report([empty])
    with pytest.raises(RunError, match=r"run.json or recipe.yaml cannot be read"):
        write_report([broken])
    with pytest.raises(RunError, match=r"comparing 2 runs needs a place of its own; give --out"):
        write_report([run, broken])


@pytest.mark.parametrize(
    ("trained", "headline", "shortfall"),
    [
        (POSE, "Reads 2,048 tokens, 8 times its original 256", ""),
        (
            arm_records("pose", [15.3, 15.0, 16.6, 15.4], [10, 10, 8, 9]),
            "Reads 512 tokens, 2 times its original 256, short of its target 2,048",
            "At 1,024 tokens it fails: perplexity 16.6, over 16.5; passkey 80%, under 90%.",
        ),
        (
            arm_records("pose", [15.3, 17.0, 15.0, 15.0], [10] * 4),
            "Not extended: reads 256 tokens, no more than its original 256",
            "At 512 tokens it fails: perplexity 17.0, over 16.5.",
        ),
        (
            arm_records("pose", [30, 15, 15, 15], [10] * 4),
            "Not extended: fails the rule at the shortest length already",
            "At 256 tokens it fails: perplexity 30.0, over 16.5.",
        ),
    ],
)
def test_verdict_follows_the_rule(trained, headline, shortfall):
    found = verdict([*ORIGINAL, *PI_ONLY, *trained], 256, 2048)
    assert (found.headline, found.shortfall) == (headline, shortfall)


def test_verdict_says_what_was_not_measured():
    assert "trained model's perplexity was not measured" in verdict(ORIGINAL, 256, 2048).rule
    assert "original model's perplexity was not measured" in verdict(POSE, 256, 2048).rule
    no_passkey = verdict([*ORIGINAL, *POSE[:4]], 256, 2048)
    assert no_passkey.reads == 2048
    assert "Passkey retrieval was not measured" in no_passkey.rule
    assert verdict([*ORIGINAL, *POSE[:4], POSE[4]], 256, 2048).reads == 256


def test_table_merges_equal_baselines_and_keeps_texts_apart():
    table = results_table({"a": [*ORIGINAL, *POSE], "b": [*ORIGINAL, *POSE]})
    assert [row.label for row in table.rows] == ["original", "a · PoSE", "b · PoSE"]
    two = results_table({"a": [perplexity("pose", 256, 9, "x"), perplexity("pose", 256, 8, "y")]})
    assert [row.label for row in two.rows] == ["PoSE (x)", "PoSE (y)"]
    again = results_table({"a": [perplexity("pose", 256, 9), perplexity("pose", 256, 8)]})
    assert again.rows[0].perplexity[256].perplexity == pytest.approx(8)


def test_terminal_table_shows_every_number_in_80_columns():
    table = summary_table([*ORIGINAL, *PI_ONLY, *POSE, perplexity("[red]x", 256, 1)])
    texts = []
    for markup in (True, False):
        console = Console(width=80, record=True, markup=markup)
        console.print(table)
        texts.append(console.export_text())
    text = texts[0]
    assert texts[1] == text
    assert re.search(r"original +15\.7 +79\.0 +109 +134 +100% +0% +0% +0%", text)
    assert "[red]x" in text
    assert max(map(len, text.splitlines())) <= 80


def test_terminal_table_of_many_windows_is_cut_nowhere():
    windows = [256 * 2**k for k in range(7)]
    records = [perplexity("original", w, 100.0 + i) for i, w in enumerate(windows)]
    records += [passkey("original", w, i) for i, w in enumerate(windows)]
    console = Console(width=80, record=True)
    console.print(summary_table(records))
    text = console.export_text()
    assert re.search(r"original +100 +101 +102 +103 +104 +105 +106\n", text)
    assert re.search(r"original +0% +10% +20% +30% +40% +50% +60%\n", text)
    assert "…" not in text


def test_markdown_table_is_whole_and_inert():
    lines = summary_markdown([*ORIGINAL, perplexity("a|<b>", 256, 1234)]).splitlines()
    assert lines[0].startswith("| arm | perplexity 256 |")
    assert lines[2] == "| original | 15.7 | 79.0 | 109 | 134 | 100% | 0% | 0% | 0% |"
    assert lines[3].startswith("| a\\|&lt;b&gt; | 1.2e3 | – |")
    assert summary_markdown([]) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(4.84, "4.84"), (9.996, "10.0"), (15.7, "15.7"), (99.97, "100"), (134.2, "134"), (999.9, "1.0e3"),
     (12_345, "1.2e4"), (float("inf"), "∞"), (float("nan"), "–")],
)  # fmt: skip
def test_perplexities_are_written_sensibly(value, text):
    assert format_number(value) == text


def test_shares_round_to_0_and_100_only_where_exact():
    assert [format_share(s) for s in (0, 0.004, 0.34, 0.996, 1)] == ["0%", "<1%", "34%", ">99%", "100%"]


def test_only_a_report_of_ours_is_written_over(tmp_path, undrawn):
    run = make_run(tmp_path / "run", POSE)
    notes = tmp_path / "notes.html"
    notes.write_text("<html>mine</html>")
    with pytest.raises(RunError, match=r"notes\.html is no report of skipwise and is left as it is"):
        write_report([run], notes)
    assert notes.read_text() == "<html>mine</html>"
    page = write_report([run], tmp_path / "mine.html")
    assert write_report([run], page) == page


def test_places_that_cannot_hold_a_report_are_explained(tmp_path):
    run = make_run(tmp_path / "run", POSE[:4])
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"the report cannot be written to .*; give another --out"):
        write_report([run], tmp_path / "file" / "r.html")
    (run / "figures").touch()
    with pytest.raises(RunError, match=r"its figures to .*figures: "):
        write_report([run])
    (run / "report.html").mkdir()
    with pytest.raises(RunError, match=r"report\.html is a folder, and the report is a file"):
        write_report([run])


def test_run_json_nested_too_deeply(tmp_path) -> None:
    folder = make_run(tmp_path / "run", POSE)
    (folder / "run.json").write_bytes(b"[" * 100_000)
    with pytest.raises(RunError, match=r"run.json or recipe.yaml cannot be read"):
        write_report([folder])
    (folder / "run.json").unlink()
    (folder / "recipe.yaml").unlink()
    (folder / "recipe.yaml").mkdir()
    with pytest.raises(RunError, match=r"run.json or recipe.yaml cannot be read"):
        write_report([folder])
