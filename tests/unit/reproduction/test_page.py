"""Pages: notes, facts of runs, and the archive behind the published ones."""

import json
from dataclasses import replace

import pytest

from reproduction.archive import ARCHIVE, DOCS, pack, unpack
from reproduction.claims import Falls, Finds, Recovers
from reproduction.exhibits import EXHIBITS
from reproduction.page import Pages, _facts, _section, read_notes, write_pages
from reproduction.reproduce import NOTES, Asked
from reproduction.runs import seeds_in
from reproduction.scales import SCALES
from skipwise.errors import RecipeError, RunError
from tools.reproduction_docs import publish


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The published records as a folder, and what plans their arms."""
    out = tmp_path_factory.mktemp("published")
    known = unpack(ARCHIVE, out)
    return out, Asked(["all"], replace(SCALES["nano"], bases=known.bases), seeds_in(out), known.changes)


@pytest.mark.parametrize("name", [name for name in EXHIBITS if name != "coverage"])
def test_the_published_pages_agree_with_the_published_records(published, tmp_path, name) -> None:
    """If this fails: make reproduce ARGS="all --page-only"."""
    out, asked = published
    text = _section(EXHIBITS[name], asked.plan(name), out, tmp_path)[0]
    page = (DOCS / "reproduction" / f"{name}.md").read_text()
    title, _, body = text.partition("\n\n")
    assert page == f"{title}\n\n{read_notes(NOTES)[name]}\n\n{body}"
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "figures").glob("*.csv")}
    assert drawn == {name: (DOCS / "reproduction" / "figures" / name).read_bytes() for name in drawn}


def test_no_published_arm_is_lost(published) -> None:
    out, asked = published
    planned = {run.folder(out).name for name in EXHIBITS for run in asked.plan(name)}
    assert {arm.name for arm in (out / "arms").iterdir()} <= planned


def test_arms_that_no_exhibit_has_are_not_published(tmp_path) -> None:
    """Under other changes than theirs all arms of a command would be such."""
    archive = tmp_path / "records.jsonl.zst"
    archive.write_bytes(ARCHIVE.read_bytes())
    (tmp_path / "out" / "arms" / "pose-000000000000").mkdir(parents=True)
    with pytest.raises(SystemExit, match="no exhibit has the arms pose-000000000000 under"):
        publish(tmp_path / "out", archive, {})
    assert archive.read_bytes() == ARCHIVE.read_bytes()


def test_the_published_page_is_short_and_links_to_every_exhibit() -> None:
    page = (DOCS / "reproduction.md").read_text()
    assert len(page.splitlines()) < 160
    for name in EXHIBITS:
        assert f"(reproduction/{name}.md)" in page
    for told in ("84%", "-13 to +36 points", "the same number of windows", "beta2"):
        assert told in page


def test_rules_of_the_paper_are_on_the_page() -> None:
    assert Falls("pose") in EXHIBITS["main"].claims
    assert Recovers("pose") in EXHIBITS["main"].claims
    assert {Finds(arm, most=0.1, beyond=True) for arm in ("pi-only", "randpos")} <= set(EXHIBITS["passkey"].claims)


def test_an_archive_gives_back_what_was_packed_and_the_same_bytes(tmp_path) -> None:
    out, archive = tmp_path / "out", tmp_path / "records.jsonl.zst"
    arm = out / "arms" / "pose-1"
    arm.mkdir(parents=True)
    (arm / "recipe.yaml").write_text("model: /home/me/.cache/bases/GPT-J-12ab/model\nseed: 2\n")
    (arm / "run.json").write_text(json.dumps({"seed": 2, "command": "with paths"}))
    records = [{"schema": 2, "kind": "training"}, {"schema": 2, "kind": "coverage"}]
    (arm / "results.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (out / "costs.jsonl").write_text('{"kind": "cost"}\n')
    pack(out, archive, {"data.source": "train"})
    again = tmp_path / "again"
    known = unpack(archive, again)
    assert known.changes == {"data.source": "train"}
    assert (seeds_in(again), known.bases) == ([2], {"GPT-J": "GPT-J-12ab"})
    assert json.loads((again / "arms" / "pose-1" / "run.json").read_text()) == {"seed": 2}
    assert (again / "arms" / "pose-1" / "results.jsonl").read_text() == f"{json.dumps(records[0])}\n"
    assert (again / "costs.jsonl").read_text() == '{"kind": "cost"}\n'
    before = archive.read_bytes()
    pack(again, archive, known.changes)
    assert archive.read_bytes() == before


@pytest.mark.parametrize("content", [None, b"", b"no archive"])
def test_a_damaged_archive_is_named(tmp_path, content) -> None:
    archive = tmp_path / "records.jsonl.zst"
    if content is not None:
        archive.write_bytes(content)
    with pytest.raises(RunError, match=r"records.jsonl.zst cannot be read .* take it from the repository again"):
        unpack(archive, tmp_path / "out")


def test_what_a_block_of_code_holds_is_no_heading_of_the_notes(tmp_path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("first\n\n## main\n\nseen:\n\n```\n## output\n```\n\nso.\n## passkey\nfound\n")
    assert read_notes(path) == {"": "first", "main": "seen:\n\n```\n## output\n```\n\nso.", "passkey": "found"}
    path.write_text("## again\n\n    make reproduce\n")
    assert read_notes(path) == {"again": "    make reproduce"}
    path.write_text("## mian\n")
    with pytest.raises(RecipeError, match=r"'mian' is no section; there are main, .*, findings"):
        read_notes(path)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ('{"training": {"steps": 3}}', "run.json is damaged .*seconds.* remove .* and the arm is made again"),
        ('{"machine": {"cores": 2}}', "run.json is damaged .*processor.* and the arm is made again"),
    ],
)
def test_a_damaged_run_is_named(tmp_path, facts, message) -> None:
    (tmp_path / "run.json").write_text(facts)
    with pytest.raises(RunError, match=message):
        _facts(tmp_path)


def test_an_out_that_cannot_be_made(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "x"):
        with pytest.raises(RunError, match=r"cannot be made .*; give another --out"):
            write_pages({}, out, Pages(out, out / "reproduction.md"), {})
