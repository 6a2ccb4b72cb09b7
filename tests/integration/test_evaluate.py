"""``skipwise evaluate`` by the real command on real files: resume, shards, comparison, the page, and bad input."""

import csv
import json
import shutil
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch

from skipwise.evaluation.specification import EvaluatedModel
from skipwise.model.config import Origin
from skipwise.recipes.schema import Data
from skipwise.report.rows import judge, read_folder, rows_of
from skipwise.results.records import OTHER_TEXT, ReadingRecord, TrialRecord, read_records
from tests.command_line import refused, run
from tests.tiny import byte_tokenizer, checkpoint, corpus

ASKED = ["--lengths", "64,400", "--documents", "4", "--tasks", "passkey"]
ASKED += ["--num-prompts", "3", "--precision", "float32"]
OTHER = 3 * 32  # segments of text of other kinds, which each model reads

pytestmark = pytest.mark.usefixtures("undrawn")


def in_blocks(model, block: int):
    """Let no token look beyond its own block of ``block`` positions: a model that reads no farther."""
    forward = model.forward

    def cut(*, position_ids: torch.Tensor, attention_mask: torch.Tensor, **inputs: object) -> object:
        queries, keys = position_ids[0][:, None], torch.arange(attention_mask.shape[1])[None]
        allowed = (keys <= queries) & (keys // block == queries // block)
        return forward(position_ids=position_ids, attention_mask=allowed[None, None], **inputs)

    model.forward = cut
    return model


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A base of 64 tokens, a model extended from it by a run of ours, and text."""
    folder = tmp_path_factory.mktemp("made")
    checkpoint(folder / "base", window=64)
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
    model = checkpoint(folder / "runs" / "mine" / "model", window=512, rope_parameters=yarn)
    Origin("base", 64, Data(source="elsewhere")).write(model)
    (model.parent / "run.json").write_text("{}")
    corpus(folder / "text", documents=6, words=120)
    return folder


@pytest.fixture
def models(made, tmp_path, monkeypatch):
    """The model's path; base, model and text may be changed."""
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return Path("runs/mine/model")


@pytest.fixture(scope="module")
def finished(made, tmp_path_factory):
    """A finished evaluation with its figures, in ``evaluations/mine`` of the folder."""
    folder = tmp_path_factory.mktemp("finished")
    shutil.copytree(made, folder, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKIPWISE_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        run(patch, "evaluate", "runs/mine/model", "--data", "text", *ASKED)
    return folder


@pytest.fixture
def evaluated(finished, models, tmp_path):
    """The model's path, with a copy of its finished evaluation as ``x``."""
    shutil.copytree(finished / "evaluations" / "mine", tmp_path / "x")
    return models


def judged(folder: Path) -> list:
    return judge(rows_of([read_folder(folder)]))


def records(folder: Path) -> list:
    return read_records(folder / "results.jsonl")


def without_time(folder: Path) -> set:
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return {json.dumps({k: v for k, v in line.items() if k != "seconds"}, sort_keys=True) for line in lines}


def test_one_command_measures_all_and_reports_it(finished, monkeypatch) -> None:
    folder = finished / "evaluations" / "mine"
    [one] = judged(folder)
    readings = [r for r in records(folder) if isinstance(r, ReadingRecord)]
    text, other = ([r for r in readings if (r.data == OTHER_TEXT) == asked] for asked in (False, True))
    assert {(r.arm, r.window) for r in text} == {("mine", 64), ("mine", 400), ("base (base)", 64)}
    assert len({r.document for r in text}) == 4
    assert all(r.edges[0] == 1 and r.edges[-1] == 400 and 64 in r.edges for r in text)
    assert {(r.arm, r.window, r.mode) for r in other} == {("mine", 64, "segment"), ("base (base)", 64, "segment")}
    assert len(other) == 2 * OTHER
    trials = [r for r in records(folder) if isinstance(r, TrialRecord)]
    assert sorted((r.length, r.trial, r.depths) for r in trials) == [(400, n, "spread") for n in range(3)]
    page = (folder / "report.html").read_text()
    assert f"<h1>{one.headline}</h1>" in page.replace("\u00a0", " ")
    with open(folder / "numbers.csv", encoding="utf-8") as file:
        numbers = list(csv.DictReader(file))
    sliding = next(r for r in numbers if r["measure"] == "perplexity by sliding window" and r["length"] == "64")
    nll = sum(sum(r.nll) for r in text if (r.arm, r.window) == ("mine", 64))
    assert float(sliding["value"]) == pytest.approx(np.exp(nll / (4 * 399)))
    monkeypatch.undo()  # draw
    run(monkeypatch, "report", folder)
    assert (folder / "report.html").read_text() == page


def test_a_dry_run_measures_nothing(models, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(EvaluatedModel, "load", None)
    run(monkeypatch, "evaluate", models, "--data", "text", *ASKED, "--num-prompts", "100", "--out", "x", "--dry-run")
    assert f"records: {3 * 4 + 100 + 2 * OTHER};" in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "x").exists()


def test_two_machines_measure_a_shard_each_and_join_them(evaluated, monkeypatch, capsys, tmp_path) -> None:
    words = ["evaluate", evaluated, "--data", "text", *ASKED]
    for part in ("1/2", "2/2"):
        run(monkeypatch, *words, "--shard", part, "--out", part[0])
    ones, twos = without_time(tmp_path / "1"), without_time(tmp_path / "2")
    assert not ones & twos
    assert abs(len(ones) - len(twos)) <= 1
    assert "3/2" in refused(monkeypatch, capsys, *words, "--shard", "3/2", "--dry-run")
    monkeypatch.setattr(EvaluatedModel, "load", lambda *_: pytest.fail("measured again"))
    run(monkeypatch, *words, "--from", "1", "--from", "2", "--out", "both")
    assert without_time(tmp_path / "both") == without_time(tmp_path / "x") == ones | twos


def test_several_models_stand_side_by_side(models, monkeypatch, capsys, tmp_path) -> None:
    run(monkeypatch, "evaluate", models, "base", "--data", "text", *ASKED, "--out", "both")
    mine, base = judged(tmp_path / "both")
    assert [one.row.label for one in (mine, base)] == ["mine", "base"]
    assert (mine.row.base, base.row.base) == ("base", "")
    assert set(base.row.perplexity) == {64, 400}


def test_the_length_is_where_attention_ends_though_perplexity_stays(monkeypatch, capsys, tmp_path) -> None:
    """The embedded model reads 256 tokens; cut into blocks of 128, it reads 128, and its perplexity hardly says so."""
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text"
    text.mkdir()
    for module in ("textwrap", "bisect", "shlex", "fnmatch", "calendar", "heapq", "getopt"):  # fewer tell too little
        shutil.copy(__import__(module).__file__, text / f"{module}.txt")
    asked = ["nano", "--original", "128", "--lengths", "128,256", "--tasks", "passkey", "--num-prompts", "36"]
    asked += ["--data", text, "--precision", "float32"]
    run(monkeypatch, "evaluate", *asked, "--out", "whole")
    load = EvaluatedModel.load
    monkeypatch.setattr(EvaluatedModel, "load", lambda *args: in_blocks(load(*args), 128))
    run(monkeypatch, "evaluate", *asked, "--out", "cut")
    [whole], [cut] = (judged(tmp_path / name) for name in ("whole", "cut"))
    assert whole.effective.tokens == 256
    assert cut.effective.tokens == 128
    assert cut.row.perplexity[256].mean < 1.3 * whole.row.perplexity[256].mean
    assert whole.buckets[-1].gain.mean > cut.buckets[-1].gain.mean


def test_a_split_and_a_field_of_ones_own_are_read(models, monkeypatch, capsys, tmp_path) -> None:
    texts = [path.read_text() for path in sorted((tmp_path / "text").iterdir())]
    rows = datasets.Dataset.from_list([{"body": text} for text in texts])
    datasets.DatasetDict(train=rows, test=rows.select([1, 4])).save_to_disk(str(tmp_path / "rows"))
    Origin("base", 64, Data(source=str(tmp_path / "rows"), held_out=0.4)).write(models)
    words = ["--data", tmp_path / "rows", "--tasks", "none", "--set", "data.text_field=body"]
    run(monkeypatch, "evaluate", models, *ASKED, *words, "--set", "data.split=test", "--out", "x")
    assert {r.document for r in records(tmp_path / "x") if r.data != OTHER_TEXT} == {"rows:1", "rows:2"}
    words += ["--out", "y"]
    assert "test" in refused(monkeypatch, capsys, "evaluate", models, *ASKED, *words, "--set", "data.split=tset")
    assert "body" in refused(monkeypatch, capsys, "evaluate", models, *words[:2], "--documents", "1")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--tasks", "lins"], "lines"),
        (["--lengths", "5000", "--tasks", "none"], "5,000"),
        (["--set", "evaluation.num_prompts=2"], "evaluation.num_prompts"),
        ([*ASKED, "--seed", "4", "--out", "x"], "seed"),
        ([*ASKED, "--out", "text"], "text"),
    ],
)
def test_bad_input_is_refused(evaluated, monkeypatch, capsys, words, named) -> None:
    assert named in refused(monkeypatch, capsys, "evaluate", evaluated, "--data", "text", *words)


def test_a_changed_text_is_refused(evaluated, monkeypatch, capsys, tmp_path) -> None:
    before = (tmp_path / "x" / "results.jsonl").read_bytes()
    (tmp_path / "text" / "document-1.txt").write_text("another text " * 100)
    assert "text" in refused(monkeypatch, capsys, "evaluate", evaluated, "--data", "text", *ASKED, "--out", "x")
    assert (tmp_path / "x" / "results.jsonl").read_bytes() == before


def test_a_base_that_reads_other_tokens_is_refused(models, monkeypatch, capsys, tmp_path) -> None:
    other = checkpoint(tmp_path / "other", window=64, vocab_size=300)
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["again"])
    tokenizer.save_pretrained(other)
    assert "other" in refused(monkeypatch, capsys, "evaluate", models, "--base", "other", "--data", "text", *ASKED)
