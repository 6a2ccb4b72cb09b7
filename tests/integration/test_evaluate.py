"""``skipwise evaluate`` by the real command on real files: resume, shards, comparison, the page, and bad input."""

import csv
import io
import json
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import datasets
import numpy as np
import pytest

from benchmarks.cut_attention import in_blocks
from skipwise.data.text import is_held_out
from skipwise.evaluation.specification import EvaluatedModel
from skipwise.model.origin import Origin
from skipwise.recipes.schema import Data
from skipwise.report.folder import read_folder
from skipwise.report.rows import judgements, rows_of
from skipwise.results.records import OTHER_TEXT, ReadingRecord, TrialRecord, read_records
from tests.command_line import refused, run
from tests.tiny import byte_tokenizer, checkpoint, corpus

ASKED = ["--lengths", "64,400", "--documents", "4", "--tasks", "passkey", "--trials", "3", "--precision", "float32"]
OTHER = 3 * 32  # segments of text of other kinds, which each model reads

pytestmark = pytest.mark.usefixtures("undrawn")


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
    """A finished evaluation with its figures, in ``evaluations/mine`` of the folder, and what it printed."""
    folder = tmp_path_factory.mktemp("finished")
    shutil.copytree(made, folder, dirs_exist_ok=True)
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setenv("SKIPWISE_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        run(patch, "evaluate", "runs/mine/model", "--data", "text", *ASKED)
    return folder, " ".join(printed.getvalue().split())


@pytest.fixture
def evaluated(finished, tmp_path, monkeypatch):
    """A copy of the finished evaluation as ``x``, beside its models and text."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "evaluations" / "mine").rename(tmp_path / "x")
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    return Path("runs/mine/model")


def judged(folder: Path) -> list:
    return judgements(rows_of([read_folder(folder)]))


def records(folder: Path) -> list:
    return read_records(folder / "results.jsonl")


def without_time(folder: Path) -> set:
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return {json.dumps({k: v for k, v in line.items() if k != "seconds"}, sort_keys=True) for line in lines}


def test_one_command_measures_all_and_reports_it(finished, monkeypatch) -> None:
    printed, folder = finished[1], finished[0] / "evaluations" / "mine"
    [one] = judged(folder)
    assert f"mine: {one.headline}" in printed
    assert one.headline == "Too little was measured to say how far it reads"
    assert "Inside the original window the loss changed by" in printed
    assert "against base (base)" in printed
    assert "64 tokens are too few for passkey (from " in printed
    readings = [r for r in records(folder) if isinstance(r, ReadingRecord) and r.data != OTHER_TEXT]
    assert {(r.arm, r.window) for r in readings} == {("mine", 64), ("mine", 400), ("base (base)", 64)}
    assert len({r.document for r in readings}) == 4
    assert all(r.edges[0] == 1 and r.edges[-1] == 400 and 64 in r.edges for r in readings)
    trials = [r for r in records(folder) if isinstance(r, TrialRecord)]
    assert sorted((r.length, r.trial, r.depths) for r in trials) == [(400, n, "spread") for n in range(3)]
    page = (folder / "report.html").read_text().replace("\u00a0", " ")
    assert f"<h1>{one.headline}</h1>" in page
    assert one.effective.rule in page
    assert "gain by far text" in page
    with open(folder / "numbers.csv", encoding="utf-8") as file:
        numbers = list(csv.DictReader(file))
    sliding = next(r for r in numbers if r["measure"] == "perplexity by sliding window" and r["length"] == "64")
    nll = sum(sum(r.nll) for r in readings if (r.arm, r.window) == ("mine", 64))
    assert float(sliding["value"]) == pytest.approx(np.exp(nll / (4 * 399)))
    for name in ("perplexity", "gain", "excess", "first-tokens", "passkey-depth"):
        assert {f.suffix for f in (folder / "figures").glob(f"{name}.*")} == {".svg", ".png", ".csv"}
    monkeypatch.undo()  # draw
    before = (folder / "report.html").read_text()
    run(monkeypatch, "report", folder)
    assert (folder / "report.html").read_text() == before


def test_short_ability_is_shown(finished) -> None:
    printed, folder = finished[1], finished[0] / "evaluations" / "mine"
    read = [r for r in records(folder) if isinstance(r, ReadingRecord) and r.data == OTHER_TEXT]
    assert {(r.arm, r.window, r.mode) for r in read} == {("mine", 64, "segment"), ("base (base)", 64, "segment")}
    assert len(read) == 2 * OTHER
    own, base = ([sum(r.nll) for r in read if (r.arm, r.document) == (arm, "prose")] for arm in ("mine", "base (base)"))
    page = (folder / "report.html").read_text()
    for said in (printed, page):
        assert "Short ability: other text inside the original window: mine" in said
        assert f"{sum(own) / (32 * 63):.3f}" in said
        assert f"{(sum(own) - sum(base)) / (32 * 63):+.3f}" in said
        assert "prose, accuracy (%)" in said


def test_a_dry_run_says_what_the_prompts_can_show_and_measures_nothing(models, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(EvaluatedModel, "load", None)
    run(monkeypatch, "evaluate", models, "--data", "text", *ASKED, "--trials", "100", "--out", "x", "--dry-run")
    printed = " ".join(capsys.readouterr().out.split())
    assert "can show 19 points" in printed
    assert f"records: {3 * 4 + 100 + 2 * OTHER}; measuring about" in printed
    assert not (tmp_path / "x").exists()


def test_a_killed_evaluation_goes_on_and_measures_only_what_is_missing(
    evaluated, monkeypatch, capsys, tmp_path
) -> None:
    whole = without_time(tmp_path / "x")
    shutil.copytree("x", "cut")
    lines = (tmp_path / "x" / "results.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "cut" / "results.jsonl").write_bytes(b"".join(lines[:5]) + lines[5][:40])
    run(monkeypatch, "evaluate", evaluated, "--data", "text", *ASKED, "--out", "cut")
    assert without_time(tmp_path / "cut") == whole
    assert (tmp_path / "cut" / "results.jsonl").read_bytes().startswith(b"".join(lines[:5]))
    before = (tmp_path / "cut" / "results.jsonl").read_bytes()
    monkeypatch.setattr(EvaluatedModel, "load", lambda *_: pytest.fail("nothing is missing, and a model is loaded"))
    run(monkeypatch, "evaluate", evaluated, "--data", "text", *ASKED, "--out", "cut")
    assert (tmp_path / "cut" / "results.jsonl").read_bytes() == before


def test_two_machines_measure_a_shard_each_and_join_them(evaluated, monkeypatch, capsys, tmp_path) -> None:
    words = ["evaluate", evaluated, "--data", "text", *ASKED]
    for part in ("1/2", "2/2"):
        run(monkeypatch, *words, "--shard", part, "--out", part[0])
    ones, twos = without_time(tmp_path / "1"), without_time(tmp_path / "2")
    assert not ones & twos
    assert abs(len(ones) - len(twos)) <= 1
    capsys.readouterr()
    run(monkeypatch, *words, "--shard", "1/2", "--dry-run")
    assert f"records: {len(ones)};" in capsys.readouterr().out
    assert "9000" in refused(monkeypatch, capsys, *words, "--shard", "9000/9000", "--out", "empty")
    assert not (tmp_path / "empty").exists()
    assert "3/2" in refused(monkeypatch, capsys, *words, "--shard", "3/2", "--dry-run")
    monkeypatch.setattr(EvaluatedModel, "load", lambda *_: pytest.fail("measured again"))
    run(monkeypatch, *words, "--from", "1", "--from", "2", "--out", "both")
    assert "Unfinished" not in capsys.readouterr().out
    assert without_time(tmp_path / "both") == without_time(tmp_path / "x") == ones | twos
    assert "results.jsonl" in refused(monkeypatch, capsys, *words, "--from", "text", "--out", "y")


def test_what_is_unfinished_is_said_and_gets_no_headline(models, monkeypatch, capsys, tmp_path) -> None:
    run(monkeypatch, "evaluate", models, "--data", "text", *ASKED, "--shard", "1/2", "--out", "x")
    printed = " ".join(capsys.readouterr().out.split())
    made, all_of_it = len(records(tmp_path / "x")), 3 * 4 + 3 + 2 * OTHER
    assert f"Unfinished: {made} of {all_of_it} records" in printed
    page = (tmp_path / "x" / "report.html").read_text()
    assert "<h1>Unfinished</h1>" in page
    run(monkeypatch, "evaluate", models, "--data", "text", *ASKED, "--out", "x")
    assert "Unfinished" not in capsys.readouterr().out
    assert len(records(tmp_path / "x")) == all_of_it


def test_several_models_stand_side_by_side(models, monkeypatch, capsys, tmp_path) -> None:
    run(monkeypatch, "evaluate", models, "base", "--data", "text", *ASKED, "--out", "both")
    mine, base = judged(tmp_path / "both")
    assert [one.row.label for one in (mine, base)] == ["mine", "base"]
    assert (mine.row.base, base.row.base) == ("base", "")
    assert set(base.row.perplexity) == {64, 400}
    assert "2 models compared" in (tmp_path / "both" / "report.html").read_text().replace("\u00a0", " ")


def test_the_length_is_where_attention_ends_though_perplexity_stays(monkeypatch, capsys, tmp_path) -> None:
    """The embedded model reads 256 tokens; cut into blocks of 128, it reads 128, and its perplexity hardly says so."""
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text"
    text.mkdir()
    for module in ("textwrap", "bisect", "shlex", "fnmatch", "calendar", "heapq", "getopt"):  # fewer tell too little
        shutil.copy(__import__(module).__file__, text / f"{module}.txt")
    asked = ["nano", "--original", "128", "--lengths", "128,256", "--tasks", "passkey", "--trials", "36"]
    asked += ["--data", text, "--precision", "float32"]
    run(monkeypatch, "evaluate", *asked, "--out", "whole")
    load = EvaluatedModel.load
    monkeypatch.setattr(EvaluatedModel, "load", lambda *args: in_blocks(load(*args), 128))
    run(monkeypatch, "evaluate", *asked, "--out", "cut")
    [whole], [cut] = (judged(tmp_path / name) for name in ("whole", "cut"))
    assert whole.effective.tokens == 256
    assert cut.effective.tokens == 128
    assert "At 256 tokens it fails" in cut.effective.next
    assert cut.row.perplexity[256].mean < 1.3 * whole.row.perplexity[256].mean
    assert whole.buckets[-1].gain.mean > cut.buckets[-1].gain.mean
    assert "no more than its original 128" in (tmp_path / "cut" / "report.html").read_text()


def test_of_the_text_trained_on_only_what_was_held_out_is_read(models, monkeypatch, capsys, tmp_path) -> None:
    Origin("base", 64, Data(source="text", held_out=0.4)).write(models)
    held = {f"document-{i}.txt" for i in range(6) if is_held_out(f"document-{i}.txt", 0.4)}
    assert 0 < len(held) < 6
    run(monkeypatch, "evaluate", models, "--data", "text", *ASKED, "--tasks", "none", "--out", "x")
    assert {r.document for r in records(tmp_path / "x") if r.data != OTHER_TEXT} == held
    assert f"{len(held)} of 6 documents are not for training" in capsys.readouterr().out


def test_a_split_and_a_field_of_ones_own_are_read(models, monkeypatch, capsys, tmp_path) -> None:
    texts = [path.read_text() for path in sorted((tmp_path / "text").iterdir())]
    rows = datasets.Dataset.from_list([{"body": text} for text in texts])
    datasets.DatasetDict(train=rows, test=rows.select([1, 4])).save_to_disk(str(tmp_path / "rows"))
    Origin("base", 64, Data(source=str(tmp_path / "rows"), held_out=0.4)).write(models)
    words = ["--data", tmp_path / "rows", "--tasks", "none", "--text-field", "body"]
    run(monkeypatch, "evaluate", models, *ASKED, *words, "--split", "test", "--out", "x")
    assert {r.document for r in records(tmp_path / "x") if r.data != OTHER_TEXT} == {"rows:1", "rows:2"}
    words += ["--out", "y"]
    message = refused(monkeypatch, capsys, "evaluate", models, *ASKED, *words, "--split", "tset")
    assert "no split 'tset' (did you mean test?)" in message
    message = refused(monkeypatch, capsys, "evaluate", models, *words[:2], "--documents", "1")
    assert "no field 'text'" in message
    assert "'body'" in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "lins"], "did you mean lines?"),
        (["--tasks", "rular"], "did you mean ruler?"),
        (["--only", "perplexty"], "did you mean perplexity?"),
        (["--documents", "0", "--tasks", "none"], "no records"),
        (["--tasks", "passkey", "--documents", "0", "--lengths", "32", "--base", "none"], "no records"),
        (["--lengths", "5000", "--tasks", "none"], "window of 5,000"),
        (["--target", "2x"], "'2x' is not a length"),
        (["--target", "1k", *ASKED], "give one"),
        ([*ASKED, "--seed", "4", "--out", "x"], "seed"),
        ([*ASKED, "--out", "runs/mine"], "is no evaluation"),
        ([*ASKED, "--out", "text"], "is no evaluation"),
    ],
)
def test_bad_input_is_refused(evaluated, monkeypatch, capsys, words, message) -> None:
    assert message in refused(monkeypatch, capsys, "evaluate", evaluated, "--data", "text", *words)


def test_a_changed_text_is_refused(evaluated, monkeypatch, capsys, tmp_path) -> None:
    (tmp_path / "text" / "document-1.txt").write_text("another text " * 100)
    message = refused(monkeypatch, capsys, "evaluate", evaluated, "--data", "text", *ASKED, "--out", "x")
    assert "text text for mine has changed since" in message


def test_a_base_that_reads_other_tokens_is_refused(models, monkeypatch, capsys, tmp_path) -> None:
    other = checkpoint(tmp_path / "other", window=64, vocab_size=300)
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["again"])
    tokenizer.save_pretrained(other)
    message = refused(monkeypatch, capsys, "evaluate", models, "--base", "other", "--data", "text", *ASKED)
    assert "tokenise the text differently" in message


def test_a_tokenizer_without_digits_is_refused(models, monkeypatch, capsys, tmp_path) -> None:
    vocabulary = json.loads((tmp_path / models / "tokenizer.json").read_text())
    vocabulary["model"]["vocab"] = {t: i for t, i in vocabulary["model"]["vocab"].items() if t != "7"}
    (tmp_path / models / "tokenizer.json").write_text(json.dumps(vocabulary))
    (tmp_path / models / "skipwise.json").unlink()  # the seal
    message = refused(monkeypatch, capsys, "evaluate", models, "--base", "none", "--data", "text", *ASKED)
    assert "the digit 7" in message


def test_rulers_texts_stay_the_same_within_an_evaluation(models, monkeypatch, capsys, tmp_path) -> None:
    essays = tmp_path / "essays" / "PaulGrahamEssays.json"
    essays.parent.mkdir()
    words = ["evaluate", models, "--only", "prompts", "--tasks", "ruler:niah_single_2"]
    words += ["--lengths", "512", "--trials", "2", "--ruler-data", "essays"]
    for part, text in (("1/2", "One day. "), ("2/2", "Another day. ")):
        essays.write_text(json.dumps({"text": text * 100}))
        run(monkeypatch, *words, "--shard", part, "--out", part[0])
    message = refused(monkeypatch, capsys, *words, "--shard", "1/2", "--out", "1")
    assert "the text of RULER has changed since 1 was begun" in message


def test_a_name_cannot_write_into_the_page(models, monkeypatch, capsys, tmp_path) -> None:
    evil = tmp_path / "<script>alert(1)<"
    shutil.copytree(tmp_path / "base", evil)
    run(monkeypatch, "evaluate", evil, "--base", "none", "--data", "text", *ASKED, "--out", "x")
    assert "<script>" not in (tmp_path / "x" / "report.html").read_text()


def test_a_report_elsewhere_leaves_the_files_there_alone(evaluated, monkeypatch, capsys, tmp_path) -> None:
    (tmp_path / "mine.html").write_text("precious")
    refused(monkeypatch, capsys, "report", "x", "--out", "mine.html")
    assert (tmp_path / "mine.html").read_text() == "precious"
    run(monkeypatch, "report", "x", "--out", "new")
    run(monkeypatch, "report", "x", "--out", "new")
    shutil.copytree("x", "again")
    message = refused(monkeypatch, capsys, "report", "x", "again", "--out", "z")
    assert "evaluation" in message


def test_a_model_that_answers_by_what_it_read_before_is_refused(models, monkeypatch, capsys, tmp_path) -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    checkpoint(tmp_path / "dynamic", window=64, rope_parameters=dynamic)
    message = refused(monkeypatch, capsys, "evaluate", "dynamic", "--data", "text", *ASKED)
    assert "rope_type dynamic" in message


def test_a_damaged_run_json_is_said(evaluated, monkeypatch, capsys, tmp_path) -> None:
    (tmp_path / "x" / "run.json").write_text('{"evaluation": {"models": 3')
    assert "run.json is damaged" in refused(monkeypatch, capsys, "report", "x")
    message = refused(monkeypatch, capsys, "evaluate", evaluated, "--data", "text", *ASKED, "--out", "x")
    assert "run.json is damaged" in message
