"""``skipwise evaluate`` by the real command on real files: resume, shares, comparison, the page, and bad input."""

import csv
import json
import shutil
from pathlib import Path

import datasets
import numpy as np
import pytest

from skipwise.data.documents import is_held_out
from skipwise.evaluation import evaluate as evaluate_module
from skipwise.model.fingerprint import weights_fingerprint
from skipwise.report.evaluation import read_evaluation
from skipwise.results.records import ReadingRecord, TrialRecord, read_records
from tests.integration.test_extend import refused, run
from tests.tiny import byte_tokenizer, checkpoint, corpus, cut_attention

ASKED = [
    "--lengths",
    "64,400",
    "--documents",
    "4",
    "--tasks",
    "passkey",
    "--trials",
    "3",
    "--precision",
    "float32",
]


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A base of 64 tokens, a model extended from it by a run of ours, and text."""
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    checkpoint(tmp_path / "base", window=64)
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
    model = checkpoint(tmp_path / "runs" / "mine" / "model", window=512, rope_parameters=yarn)
    facts = {"model": {"name": "base", "original_length": 64, "target_length": 512}}
    (model.parent / "run.json").write_text(json.dumps(facts))
    corpus(tmp_path / "text", documents=6, words=120)
    return model.relative_to(tmp_path)


def records(folder: Path) -> list:
    return read_records(folder / "results.jsonl")


def without_time(folder: Path) -> set:
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return {json.dumps({k: v for k, v in line.items() if k != "seconds"}, sort_keys=True) for line in lines}


def test_one_command_measures_all_and_reports_it(models, monkeypatch, capsys, tmp_path) -> None:
    run(monkeypatch, "evaluate", models, "--data", "text", *ASKED)
    printed = capsys.readouterr().out
    assert "mine: Fails at 400 tokens" in printed
    assert "Paid inside the original window, against base (base)" in printed
    assert "passkey at 64 tokens is left out of mine: length 64 is too short" in printed
    folder = tmp_path / "evaluations" / "mine"
    readings = [r for r in records(folder) if isinstance(r, ReadingRecord)]
    assert {(r.arm, r.window) for r in readings} == {("mine", 64), ("mine", 400), ("base (base)", 64)}
    assert len({r.document for r in readings}) == 4
    assert all(r.edges[0] == 1 and r.edges[-1] == 400 and 64 in r.edges for r in readings)
    trials = [r for r in records(folder) if isinstance(r, TrialRecord)]
    assert sorted((r.length, r.trial) for r in trials) == [(400, n) for n in range(3)]
    page = (folder / "report.html").read_text()
    assert "Fails at" in page
    assert "gain by far text" in page
    with open(folder / "numbers.csv", encoding="utf-8") as file:
        numbers = list(csv.DictReader(file))
    sliding = next(
        r for r in numbers if r["measure"] == "perplexity by sliding window" and r["length"] == "64"
    )
    nll = sum(sum(r.nll) for r in readings if (r.arm, r.window) == ("mine", 64))
    assert float(sliding["value"]) == pytest.approx(np.exp(nll / (4 * 399)))
    for name in ("perplexity", "gain", "excess", "first-tokens", "depth-passkey"):
        assert {f.suffix for f in (folder / "figures").glob(f"{name}.*")} == {".svg", ".png", ".csv"}
    before = page
    run(monkeypatch, "report", folder)
    assert (folder / "report.html").read_text() == before


def test_a_killed_evaluation_goes_on_and_measures_only_what_is_missing(
    models, monkeypatch, capsys, tmp_path
) -> None:
    run(monkeypatch, "evaluate", models, "--data", "text", *ASKED, "--out", "whole")
    whole = without_time(tmp_path / "whole")
    shutil.copytree("whole", "cut")
    lines = (tmp_path / "whole" / "results.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "cut" / "results.jsonl").write_bytes(b"".join(lines[:5]) + lines[5][:40])
    capsys.readouterr()
    run(monkeypatch, "evaluate", models, "--data", "text", *ASKED, "--out", "cut")
    assert "the last record was cut off by a kill" in capsys.readouterr().out
    assert without_time(tmp_path / "cut") == whole
    assert (tmp_path / "cut" / "results.jsonl").read_bytes().startswith(b"".join(lines[:5]))
    monkeypatch.setattr(evaluate_module, "loaded", None)  # nothing is missing: no model is loaded
    run(monkeypatch, "evaluate", models, "--data", "text", *ASKED, "--out", "cut")


def test_two_machines_share_the_work_and_merge_it(models, monkeypatch, capsys, tmp_path) -> None:
    run(monkeypatch, "evaluate", models, "--data", "text", *ASKED, "--out", "whole")
    for part in ("1/2", "2/2"):
        run(monkeypatch, "evaluate", models, "--data", "text", *ASKED, "--share", part, "--out", part[0])
    ones, twos = without_time(tmp_path / "1"), without_time(tmp_path / "2")
    assert not ones & twos
    assert ones
    run(monkeypatch, "merge", "1", "2", "1", "--out", "both")
    assert without_time(tmp_path / "both") == without_time(tmp_path / "whole") == ones | twos
    assert (tmp_path / "both" / "numbers.csv").read_text() == (tmp_path / "whole" / "numbers.csv").read_text()
    assert "both exists" in refused(monkeypatch, capsys, "merge", "1", "2", "--out", "both")
    other = [*ASKED, "--seed", "1", "--out", "other"]
    run(monkeypatch, "evaluate", models, "--data", "text", *other)
    assert "differ in seed (1, 0)" in refused(monkeypatch, capsys, "merge", "1", "other", "--out", "x")
    lines = (tmp_path / "2" / "results.jsonl").read_text().splitlines()
    changed = next(line for line in lines if '"trial"' in line).replace('"hit": false', '"hit": true')
    (tmp_path / "1" / "results.jsonl").open("a").write(changed + "\n")
    message = refused(monkeypatch, capsys, "merge", "1", "2", "--out", "x")
    assert "answers ('trial', 'mine'" in message
    assert "measure that part again" in message
    assert not (tmp_path / "x").exists()


def test_several_models_stand_side_by_side(models, monkeypatch, capsys, tmp_path) -> None:
    run(monkeypatch, "evaluate", models, "base", "--data", "text", *ASKED, "--out", "both")
    found = read_evaluation(tmp_path / "both")
    assert [m.label for m in found.models] == ["mine", "base"]
    assert found.models[0].facts["base"] == "base"
    assert set(found.models[1].perplexity) == {64, 400}
    assert "2 models compared" in (tmp_path / "both" / "report.html").read_text()
    assert "one is named twice" in refused(monkeypatch, capsys, "evaluate", "base", "base")


def test_the_length_is_where_attention_ends_though_perplexity_stays(monkeypatch, capsys, tmp_path) -> None:
    """The embedded model reads 256 tokens; cut into blocks of 128, it reads 128, and its perplexity hardly says so."""
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text"
    text.mkdir()
    for module in ("textwrap", "bisect", "shlex"):
        shutil.copy(__import__(module).__file__, text / f"{module}.txt")
    asked = ["nano", "--original", "128", "--lengths", "128,256", "--tasks", "passkey", "--trials", "40"]
    asked += ["--data", text, "--precision", "float32"]
    run(monkeypatch, "evaluate", *asked, "--out", "whole")
    load = evaluate_module.loaded
    monkeypatch.setattr(evaluate_module, "loaded", lambda *a, **k: cut_attention(load(*a, **k), 128))
    run(monkeypatch, "evaluate", *asked, "--out", "cut")
    whole, cut = (read_evaluation(tmp_path / name).models[0] for name in ("whole", "cut"))
    assert whole.effective.tokens == 256
    assert cut.effective.tokens == 128
    assert "At 256 tokens it fails" in cut.effective.shortfall
    assert cut.perplexity[256].mean < 1.3 * whole.perplexity[256].mean
    gains = [m.buckets[-1].gain.mean for m in (whole, cut)]
    assert gains[0] > gains[1]
    assert "no more than its original 128" in (tmp_path / "cut" / "report.html").read_text()


def test_of_the_text_trained_on_only_what_was_held_out_is_read(models, monkeypatch, capsys, tmp_path) -> None:
    recipe = "model: base\ntarget: 512\ndata:\n  source: text\n  held_out: 0.4\n"
    (tmp_path / models.parent / "recipe.yaml").write_text(recipe)
    held = {f"document-{i}.txt" for i in range(6) if is_held_out(f"document-{i}.txt", 0.4)}
    assert 0 < len(held) < 6
    run(monkeypatch, "evaluate", models, "--data", "text", *ASKED, "--tasks", "none", "--out", "x")
    assert {r.document for r in records(tmp_path / "x")} == held
    assert f"of 6 documents the {len(held)} held out by name may be read" in capsys.readouterr().out


def test_a_split_and_a_field_of_ones_own_are_read(models, monkeypatch, capsys, tmp_path) -> None:
    texts = [path.read_text() for path in sorted((tmp_path / "text").iterdir())]
    rows = datasets.Dataset.from_list([{"body": text} for text in texts])
    datasets.DatasetDict(train=rows, test=rows.select([1, 4])).save_to_disk(str(tmp_path / "rows"))
    (tmp_path / models.parent / "recipe.yaml").write_text(
        f"data: {{source: {tmp_path / 'rows'}, held_out: 0.4}}\n"
    )
    words = ["--data", tmp_path / "rows", "--tasks", "none", "--text-field", "body"]
    run(monkeypatch, "evaluate", models, *ASKED, *words, "--split", "test", "--out", "x")
    assert {record.document for record in records(tmp_path / "x")} == {"rows:1", "rows:2"}
    words += ["--out", "y"]
    message = refused(monkeypatch, capsys, "evaluate", models, *ASKED, *words, "--split", "tset")
    assert "no split 'tset' (did you mean test?); choose of train, test: " in message
    message = refused(monkeypatch, capsys, "perplexity", models, *words[:2], "--documents", "1")
    assert "no field 'text'; the fields there: 'body'" in message
    words = [*words[:2], *words[4:6], "--split", "test", "--windows", "64", "--stride", "32"]
    run(monkeypatch, "perplexity", models, *words)


def test_what_cannot_be_asked_is_said(models, monkeypatch, capsys, tmp_path) -> None:
    def said(*words: str) -> str:
        return " ".join(refused(monkeypatch, capsys, "evaluate", models, "--data", "text", *words).split())

    assert "task 'lins' is unknown (did you mean lines?)" in said("--tasks", "lins")
    assert "trials 0 must be at least 1" in said("--trials", "0")
    assert "share '3/2' must be PART/PARTS" in said("--share", "3/2")
    assert "'2x' is not a length" in said("--target", "2x")
    assert "does not fill a window of 5,000" in said("--lengths", "5000", "--tasks", "none")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "empty" in " ".join(refused(monkeypatch, capsys, "evaluate", models, "--data", empty).split())
    run(monkeypatch, "evaluate", models, "--data", "text", *ASKED, "--out", "x")
    message = said(*ASKED, "--seed", "4", "--out", "x")
    assert "x was begun with another question: seed (4, 0)" in message
    assert "holds a run, and no evaluation" in said(*ASKED, "--out", str(models.parent))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("mine")
    assert "exists and is no evaluation" in said(*ASKED, "--out", "notes")
    (tmp_path / "text" / "document-1.txt").write_text("another text " * 100)
    assert "text of mine has changed since" in said(*ASKED, "--out", "x")


def test_lengths_beyond_the_target_are_allowed_with_a_warning(models, monkeypatch, capsys) -> None:
    run(
        monkeypatch,
        "evaluate",
        models,
        "--data",
        "text",
        "--lengths",
        "64,600",
        "--tasks",
        "none",
        "--out",
        "x",
    )
    assert "mine was made for 512 tokens: what lies beyond is expected to fail" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_base_that_reads_other_tokens_is_refused(models, monkeypatch, capsys, tmp_path) -> None:
    other = checkpoint(tmp_path / "other", window=64, vocab_size=300)
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["again"])
    tokenizer.save_pretrained(other)
    message = refused(monkeypatch, capsys, "evaluate", models, "--base", "other", "--data", "text", *ASKED)
    assert "read the text as different tokens" in " ".join(message.split())


def test_a_tokenizer_without_digits_is_refused(models, monkeypatch, capsys, tmp_path) -> None:
    vocabulary = json.loads((tmp_path / models / "tokenizer.json").read_text())
    vocabulary["model"]["vocab"] = {t: i for t, i in vocabulary["model"]["vocab"].items() if t != "7"}
    (tmp_path / models / "tokenizer.json").write_text(json.dumps(vocabulary))
    message = refused(monkeypatch, capsys, "evaluate", models, "--base", "none", "--data", "text", *ASKED)
    assert "the tokenizer writes the digit 7 as" in message


def test_a_name_cannot_write_into_the_page(models, monkeypatch, capsys, tmp_path) -> None:
    evil = tmp_path / "<script>alert(1)<"
    shutil.copytree(tmp_path / "base", evil)
    run(monkeypatch, "evaluate", evil, "--base", "none", "--data", "text", *ASKED, "--out", "x")
    assert "<script>" not in (tmp_path / "x" / "report.html").read_text()


def test_what_is_unfinished_is_said_and_gets_no_headline(models, monkeypatch, capsys, tmp_path) -> None:
    run(monkeypatch, "evaluate", models, "--data", "text", *ASKED, "--share", "1/2", "--out", "x")
    printed = " ".join(capsys.readouterr().out.split())
    made, all_of_it = len(records(tmp_path / "x")), 3 * 4 + 3
    assert f"Unfinished: {made} of {all_of_it} records" in printed
    page = (tmp_path / "x" / "report.html").read_text()
    assert "<h1>Unfinished</h1>" in page
    run(monkeypatch, "merge", "x", "--out", "y")
    assert "Unfinished" in capsys.readouterr().out
    run(monkeypatch, "evaluate", models, "--data", "text", *ASKED, "--out", "x")
    assert "Unfinished" not in capsys.readouterr().out


@pytest.mark.parametrize("data", ["text", "./text", "text/", "{}"])
def test_held_out_is_known_however_the_text_is_named(models, monkeypatch, capsys, tmp_path, data) -> None:
    (tmp_path / models.parent / "recipe.yaml").write_text(
        "model: base\ndata:\n  source: text\n  held_out: 0.4\n"
    )
    data = data.format(tmp_path / "text")
    run(monkeypatch, "evaluate", models, "--data", data, *ASKED, "--tasks", "none", "--out", "x")
    assert 0 < len({r.document for r in records(tmp_path / "x")}) < 4
    part = [models, "--data", "text/document-5.txt", *ASKED, "--tasks", "none", "--out", "y"]
    run(monkeypatch, "evaluate", *part)
    assert "numbers may flatter it" in " ".join(capsys.readouterr().out.split())


def test_a_report_elsewhere_leaves_the_files_there_alone(models, monkeypatch, capsys, tmp_path) -> None:
    run(monkeypatch, "evaluate", models, "--data", "text", *ASKED, "--out", "x")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "numbers.csv").write_text("precious")
    assert "numbers.csv exists and is not ours" in refused(
        monkeypatch, capsys, "report", "x", "--out", "mine"
    )
    assert (tmp_path / "mine" / "numbers.csv").read_text() == "precious"
    run(monkeypatch, "report", "x", "--out", "new")
    run(monkeypatch, "report", "x", "--out", "new")
    message = refused(monkeypatch, capsys, "report", "x", "new", "--out", "z")
    assert "is an evaluation and not a run" in message


def test_a_part_is_measured_again_when_text_or_precision_changed(
    models, monkeypatch, capsys, tmp_path
) -> None:
    words = ["perplexity", models, "--data", "text", "--windows", "64", "--stride", "32", "--documents", "2"]
    words += ["--out", "r.jsonl", "--precision"]
    count = lambda: len(read_records(tmp_path / "r.jsonl"))  # noqa: E731
    run(monkeypatch, *words, "float32")
    run(monkeypatch, *words, "float32")
    assert count() == 2
    run(monkeypatch, *words, "bf16")
    assert count() == 4
    (tmp_path / "text" / "document-5.txt").write_text("another text of the same name " * 30)
    run(monkeypatch, *words, "float32")
    assert count() == 5
    checkpoint(tmp_path / models, window=512, initializer_range=0.3)
    weights_fingerprint.cache_clear()
    run(monkeypatch, *words, "float32")
    assert count() == 7


def test_a_model_that_answers_by_what_it_read_before_is_refused(
    models, monkeypatch, capsys, tmp_path
) -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    checkpoint(tmp_path / "dynamic", window=64, rope_parameters=dynamic)
    message = refused(monkeypatch, capsys, "evaluate", "dynamic", "--data", "text", *ASKED)
    assert "rope_type dynamic" in message


def test_a_damaged_run_json_is_said(models, monkeypatch, capsys, tmp_path) -> None:
    run(monkeypatch, "evaluate", models, "--data", "text", *ASKED, "--out", "x")
    (tmp_path / "x" / "run.json").write_text('{"evaluation": {"models": 3}}')
    assert "holds no evaluation that can be read" in refused(monkeypatch, capsys, "report", "x")
    assert "give one of them" in refused(monkeypatch, capsys, "evaluate", models, "--target", "1k", *ASKED)
