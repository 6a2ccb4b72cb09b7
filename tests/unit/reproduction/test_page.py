"""Pages say what was not run, without records and with some; an archive gives back what was packed."""

import json

import pytest
import yaml

from reproduction.archive import DOCS, pack, publish_pages, unpack
from reproduction.exhibits import EXHIBITS
from reproduction.page import write_pages
from reproduction.runs import SCALES, plan_runs, seeds_in
from skipwise.cli.terminal import new_console
from skipwise.results.records import append_record
from tests.reproduced import segments, sliding, trials


@pytest.fixture
def out(tmp_path, monkeypatch):
    """A folder with records of a few rows of every kind of table, two seeds of some."""
    monkeypatch.setattr("reproduction.page.coverage_section", lambda figures: ("", []))
    out = tmp_path / "out"
    for name, rows in (
        ("passkey", ("original", "pose", "no_skip")),
        ("families", ("original", "linear")),
        ("original-ability", ("original", "pose")),
        ("efficiency", ("full_length", "pose")),
    ):
        for run in plan_runs(EXHIBITS[name], SCALES["nano"], out, seeds=(0, 1), changes={"evaluation.source": ["x"]}):
            if run.row not in rows or run.block not in ("linear, 8x", "GPT-J"):
                continue
            records = [sliding(9.0, window=w, document=d) for w in (256, 2048) for d in "ab"]
            records += [sliding(9.0 - n / 100, window=2048, step=n) for n in (10, 400) if name == "efficiency"]
            records += segments(2.0, 1.9, edges=(1, 256)) + segments((2.0, 1.9), (2.1, 1.8), edges=(1, 256, 2048))
            records += [t for n in (256, 2048) for t in trials(40 + run.recipe.seed, 50, run.recipe.seed, n)]
            folder = run.folder(out)
            if not folder.exists():
                folder.mkdir(parents=True)
                settings = {"seed": run.recipe.seed, "model": run.recipe.model}
                (folder / "recipe.yaml").write_text(yaml.safe_dump(settings))
                (folder / "run.json").write_text(json.dumps({"training": {"seconds": 36}, "command": "with paths"}))
            append_record(folder / "results.jsonl", *records)
    return out


def pages(out, folder, changes) -> dict[str, str]:
    plans = {
        name: plan_runs(EXHIBITS[name], SCALES["nano"], out, seeds=seeds_in(out), changes=changes) for name in EXHIBITS
    }
    write_pages(plans, out, folder / "reproduction", folder / "reproduction.md")
    return {path.stem: path.read_text() for path in folder.rglob("*.md")}


def test_without_records_every_exhibit_is_named_as_not_run(tmp_path, out) -> None:
    text = pages(tmp_path / "none", tmp_path / "docs", {})
    assert [*text] == ["reproduction"]
    assert ", ".join(EXHIBITS) in text["reproduction"]
    assert "| [" not in text["reproduction"]


def test_what_was_not_run_is_in_no_table(tmp_path, out, monkeypatch) -> None:
    monkeypatch.setattr("reproduction.tables.write", lambda *_, **__: None)  # figures, which take seconds
    text = pages(out, tmp_path, {"evaluation.source": ["x"]})
    assert "| RandPos |" not in text["passkey"]
    assert "RandPos" in text["passkey"]
    assert "linear, 16x" in text["passkey"]
    assert "## linear, 16x" not in text["passkey"]
    assert "RandPos" not in text["reproduction"]


def test_an_archive_gives_back_what_was_packed_without_paths(tmp_path, out, monkeypatch) -> None:
    monkeypatch.setattr("reproduction.tables.write", lambda *_, **__: None)  # figures, which take seconds
    archive, again, changes = tmp_path / "records.jsonl.zst", tmp_path / "again", {"evaluation.source": ["x"]}
    pack(out, archive, changes)
    assert unpack(archive, again) == changes
    assert pages(again, tmp_path / "b", changes) == pages(out, tmp_path / "a", changes)
    told = "".join(path.read_text() for path in again.rglob("*") if path.is_file())
    assert str(tmp_path) not in told
    assert "with paths" not in told


def test_the_published_pages_are_those_of_the_published_records(tmp_path) -> None:
    """If this fails: make reproduce ARGS="all --page-only"."""
    publish_pages(new_console(), tmp_path)
    for path in [tmp_path / "reproduction.md", *(tmp_path / "reproduction").glob("*.md")]:
        assert (DOCS / path.relative_to(tmp_path)).read_text() == path.read_text()
