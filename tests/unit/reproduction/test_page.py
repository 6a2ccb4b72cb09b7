"""The published pages come out of the published records, and an archive gives back what was packed."""

import json
from dataclasses import replace

import pytest

from reproduction.archive import ARCHIVE, DOCS, pack, unpack
from reproduction.exhibits import EXHIBITS
from reproduction.page import _section, read_notes
from reproduction.reproduce import NOTES, Asked
from reproduction.runs import seeds_in
from reproduction.scales import SCALES
from skipwise.errors import RunError


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The published records as a folder, and the arms of each exhibit."""
    out = tmp_path_factory.mktemp("published")
    known = unpack(ARCHIVE, out)
    asked = Asked(["all"], replace(SCALES["nano"], bases=known.bases), seeds_in(out), known.changes)
    return out, {name: asked.plan(name) for name in EXHIBITS}


@pytest.mark.parametrize("name", [name for name in EXHIBITS if name != "coverage"])
def test_the_published_pages_agree_with_the_published_records(published, tmp_path, name) -> None:
    """If this fails: make reproduce ARGS="all --page-only"."""
    out, plans = published
    text = _section(EXHIBITS[name], plans[name], out, tmp_path)[0]
    page = (DOCS / "reproduction" / f"{name}.md").read_text()
    title, _, body = text.partition("\n\n")
    assert page == f"{title}\n\n{read_notes(NOTES)[name]}\n\n{body}"
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "figures").glob("*.csv")}
    assert drawn == {name: (DOCS / "reproduction" / "figures" / name).read_bytes() for name in drawn}


def test_no_published_arm_is_lost(published) -> None:
    out, plans = published
    planned = {run.folder(out).name for runs in plans.values() for run in runs}
    assert {arm.name for arm in (out / "arms").iterdir()} <= planned


def test_an_archive_gives_back_what_was_packed_and_the_same_bytes(tmp_path) -> None:
    out, archive, again = tmp_path / "out", tmp_path / "records.jsonl.zst", tmp_path / "again"
    arm = out / "arms" / "pose-1"
    arm.mkdir(parents=True)
    (arm / "recipe.yaml").write_text("model: /home/me/.cache/bases/GPT-J-12ab/model\nseed: 2\n")
    (arm / "run.json").write_text(json.dumps({"seed": 2, "command": "with paths"}))
    records = [{"schema": 2, "kind": "training"}, {"schema": 2, "kind": "coverage"}]
    (arm / "results.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (out / "costs.jsonl").write_text('{"kind": "cost"}\n')
    pack(out, archive, {"data.source": "train"})
    known = unpack(archive, again)
    assert (seeds_in(again), known.bases, known.changes) == ([2], {"GPT-J": "GPT-J-12ab"}, {"data.source": "train"})
    assert json.loads((again / "arms" / "pose-1" / "run.json").read_text()) == {"seed": 2}
    assert (again / "arms" / "pose-1" / "results.jsonl").read_text() == f"{json.dumps(records[0])}\n"
    before = archive.read_bytes()
    pack(again, archive, known.changes)
    assert archive.read_bytes() == before
    archive.write_bytes(before[:50])
    with pytest.raises(RunError):
        unpack(archive, tmp_path / "damaged")
