"""The main job by the real command on real files: run, records, report, reload, resume, bad input."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file
from transformers import GPT2Config

from skipwise.data.text import is_held_out
from skipwise.model.loading import load_model
from skipwise.report.folder import read_folder
from skipwise.report.rows import judgements, other_text_warning, rows_of
from skipwise.results.files import read_json, write_json
from skipwise.results.records import OTHER_TEXT, ReadingRecord, TrainingRecord, TrialRecord, read_records
from skipwise.training.run import recipe_of
from tests.command_line import refused, run
from tests.tiny import checkpoint, corpus

pytestmark = pytest.mark.usefixtures("frozen_imports", "undrawn")
ARMS = ("original", "pi-only", "pose")
SMALL = {
    "method": "null",
    "target": "2k",
    "data.held_out": 0.3,
    "data.passkey": 0.1,
    "training.max_steps": 4,
    "training.batch_size": 4,
    "training.per_device_train_batch_size": 2,
    "training.learning_rate": 1e-3,
    "training.logging_steps": 1,
    "training.save_steps": 2,
    "training.precision": "float32",
    "evaluation.documents": 2,
    "evaluation.windows": "[256, 512]",
    "evaluation.prompt_lengths": "[512]",
    "evaluation.prompt_trials": 2,
}


def command(model: Path, text: Path, out: Path, *more: str, **changes: object) -> list[str]:
    words = ["extend", str(model), "--data", str(text), "--out", str(out)]
    for key, value in {**SMALL, **changes}.items():
        words += ["--set", f"{key}={value}"]
    return [*words, *more]


def of_kind(folder: Path, kind: type) -> list:
    return [record for record in read_records(folder / "results.jsonl") if isinstance(record, kind)]


def without_time(path: Path) -> list[dict]:
    """The lines of a file of results without what differs from one measurement to the next."""
    lines = map(json.loads, path.read_text().splitlines())
    return [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second", "check")} for line in lines]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("files")
    os.environ["SKIPWISE_CACHE"] = str(folder / "cache")
    return checkpoint(folder / "base", window=400), corpus(folder / "text", documents=24, words=200)


@pytest.fixture(scope="module")
def finished(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whole run by the command line, figures included."""
    out = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        run(patch, *command(*files, out))
    return out


def test_the_run_folder_holds_everything(finished: Path) -> None:
    for name in ("recipe.yaml", "run.json", "results.jsonl", "report.html", "model/README.md"):
        assert (finished / name).stat().st_size > 0, name
    for name in ("perplexity", "passkey", "loss", "coverage"):
        assert (finished / "figures" / f"{name}.svg").exists(), name
        assert (finished / "figures" / f"{name}.png").exists(), name
    facts = json.loads((finished / "run.json").read_text())
    assert facts["probe"]["forward"] > 0
    assert facts["data"]["fingerprint"]
    assert facts["seed"] == 0
    assert facts["versions"]["torch"]
    assert facts["training"]["steps"] == 4
    assert facts["command"].startswith("skipwise extend ")
    html = (finished / "report.html").read_text()
    assert "http://" not in html.replace("http://www.w3.org", "")


def test_the_records_hold_every_arm(finished: Path) -> None:
    readings = [r for r in of_kind(finished, ReadingRecord) if r.data != OTHER_TEXT]
    assert {(r.arm, r.window) for r in readings} == {(arm, w) for arm in ARMS for w in (256, 512)} | {("original", 400)}
    assert len({(r.document, r.tokens) for r in readings}) == 2
    trials = of_kind(finished, TrialRecord)
    assert [(r.arm, r.length, r.depths) for r in trials] == [(arm, 512, "random") for arm in ARMS for _ in range(2)]
    assert [r.step for r in of_kind(finished, TrainingRecord)] == [1, 2, 3, 4]


def test_the_price_on_other_text_is_measured_and_shown(finished: Path) -> None:
    readings = [r for r in of_kind(finished, ReadingRecord) if r.data == OTHER_TEXT]
    segments = {(r.arm, r.document): r.window for r in readings}
    assert segments == {(arm, kind): 400 for arm in ("original", "pose") for kind in ("prose", "mathematics", "code")}
    assert len(readings) == 6 * 32
    page = (finished / "report.html").read_text()
    assert "Short ability: other text inside the original window" in page
    assert ',prose,"cost on other text' in (finished / "numbers.csv").read_text()


def test_a_high_price_is_said_in_terminal_page_and_card(finished, monkeypatch, capsys, tmp_path) -> None:
    copy = shutil.copytree(finished, tmp_path / "run")
    monkeypatch.setattr("skipwise.report.rows.COST_LIMIT", -9)
    run(monkeypatch, "extend", "--resume", "--out", copy)
    warning = other_text_warning(read_folder(copy))
    assert "on prose and" in warning
    assert warning in " ".join(capsys.readouterr().out.split())
    for name in ("report.html", "model/README.md"):
        assert warning in (copy / name).read_text(), name
    assert (copy / "results.jsonl").read_bytes() == (finished / "results.jsonl").read_bytes()


def test_report_and_model_card_have_one_headline(finished: Path) -> None:
    [one] = judgements(rows_of([read_folder(finished)]))
    card = (finished / "model" / "README.md").read_text()
    assert f"\n\n{one.headline}.\n\n" in card
    page = (finished / "report.html").read_text().replace("\u00a0", " ")
    assert f"<h1>{one.headline}</h1>" in page
    assert one.effective.rule in page


def test_a_process_without_skipwise_loads_the_same_model(finished: Path, tmp_path: Path) -> None:
    positions = np.arange(2048 - 32, 2048)
    ids = np.arange(32) * 3 + 5
    ours = load_model(str(finished / "model"))
    with torch.no_grad():
        wanted = ours(
            input_ids=torch.tensor(ids)[None],
            position_ids=torch.tensor(positions)[None],
            attention_mask=torch.ones(1, 32, dtype=torch.long),
        ).logits
    script = tmp_path / "reload.py"
    script.write_text(
        "import sys, numpy, torch\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()\n"
        "tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "ids = torch.arange(32)[None] * 3 + 5\n"
        "at = torch.arange(2048 - 32, 2048)[None]\n"
        "with torch.no_grad():\n"
        "    logits = model(input_ids=ids, position_ids=at, attention_mask=torch.ones_like(ids)).logits\n"
        "assert 'skipwise' not in sys.modules\n"
        "assert tokenizer.model_max_length == 2048\n"
        "numpy.save(sys.argv[2], logits.numpy())\n"
    )
    subprocess.run([sys.executable, script, finished / "model", tmp_path / "out.npy"], check=True)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), wanted.numpy(), atol=1e-6)


def test_a_taken_folder_is_never_overwritten(finished, files, monkeypatch, capsys, tmp_path) -> None:
    before = (finished / "results.jsonl").read_bytes()
    message = refused(monkeypatch, capsys, *command(*files, finished))
    assert "holds another run" in message
    assert "--resume" in message
    assert "give another --out" in message
    message = refused(monkeypatch, capsys, *command(*files, finished, "--resume", seed=1))
    assert "seed = 0, now 1" in message
    assert (finished / "results.jsonl").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear")
    assert "of skipwise" in refused(monkeypatch, capsys, *command(*files, tmp_path / "mine"))


def test_a_running_folder_is_left_alone(finished, files, monkeypatch, capsys) -> None:
    with FileLock(finished / ".lock"):
        message = refused(monkeypatch, capsys, *command(*files, finished, "--resume"))
    assert "another process" in message


def test_changed_text_is_not_resumed_on(finished, files, monkeypatch, capsys, tmp_path) -> None:
    copy = shutil.copytree(finished, tmp_path / "run")
    document = files[1] / "document-3.txt"
    before = document.read_bytes()
    document.write_text("other " * 400)
    try:
        message = refused(monkeypatch, capsys, "extend", "--resume", "--out", copy)
    finally:
        document.write_bytes(before)
    assert "the training text has changed since" in message


def test_a_changed_base_is_not_resumed_on(finished, files, monkeypatch, capsys, tmp_path) -> None:
    copy = shutil.copytree(finished, tmp_path / "run")
    settings = files[0] / "generation_config.json"
    before = settings.read_bytes()
    settings.write_text('{"eos_token_id": 7}')
    try:
        message = refused(monkeypatch, capsys, "extend", "--resume", "--out", copy)
    finally:
        settings.write_bytes(before)
    assert "the base model has changed since" in message


def test_damaged_runs_are_explained(finished, files, monkeypatch, capsys, tmp_path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    (copy / "run.json").write_text("{bad")
    assert "run.json is damaged" in refused(monkeypatch, capsys, *command(*files, copy, "--resume"))
    (copy / "recipe.yaml").unlink()
    assert "holds no run of skipwise" in refused(monkeypatch, capsys, *command(*files, copy, "--resume"))


def test_a_run_goes_on_in_the_precision_that_it_began_with(finished, files, monkeypatch, capsys, tmp_path) -> None:
    """``auto`` chooses by the machine, and a resume may be on another one."""
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    facts = read_json(copy / "run.json")
    assert facts["fingerprints"]["precision"] == "float32"
    write_json(copy / "run.json", facts | {"fingerprints": facts["fingerprints"] | {"precision": "bf16"}})
    message = refused(monkeypatch, capsys, *command(*files, copy, "--resume"))
    assert "precision" in message
    assert "bf16" in message


def test_names_with_markup_are_printed_as_they_are(files, monkeypatch, capsys, tmp_path) -> None:
    odd = tmp_path / "text[/x]"
    shutil.copytree(files[1], odd)
    run(monkeypatch, *command(files[0], odd, tmp_path / "out", "--dry-run"))
    assert "text[/x]" in capsys.readouterr().out.replace("\n", "")


def test_resume_measures_only_what_is_missing(finished, files, monkeypatch, capsys, tmp_path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    lines = (copy / "results.jsonl").read_text().splitlines(keepends=True)
    (copy / "results.jsonl").write_text("".join(lines[:-2]) + lines[-2][:40])
    run(monkeypatch, "extend", "--resume", "--out", copy)
    after = (copy / "results.jsonl").read_text().splitlines(keepends=True)
    assert after[: len(lines) - 2] == lines[:-2]
    assert without_time(copy / "results.jsonl") == without_time(finished / "results.jsonl")
    before = (copy / "results.jsonl").read_bytes()
    run(monkeypatch, "extend", "--resume", "--out", copy)
    assert (copy / "results.jsonl").read_bytes() == before


def test_a_resumed_run_may_change_what_no_weight_depends_on(finished, monkeypatch, capsys, tmp_path) -> None:
    copy = shutil.copytree(finished, tmp_path / "run")
    last = sorted((copy / "checkpoints").glob("checkpoint-*"), key=lambda one: int(one.name.split("-")[1]))[-1]
    shutil.rmtree(last)  # so that steps are trained again
    shutil.rmtree(copy / "model")
    free = ["gradient_checkpointing=true", "save_total_limit=1", "report_to=tensorboard", "dataloader_num_workers=1"]
    run(
        monkeypatch,
        "extend",
        "--resume",
        "--out",
        copy,
        *(word for one in free for word in ("--set", f"training.{one}")),
    )
    ours, theirs = (load_file(one / "model" / "model.safetensors") for one in (copy, finished))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    message = refused(monkeypatch, capsys, "extend", "--resume", "--out", copy, "--set", "training.learning_rate=1e-5")
    assert "was begun with training.learning_rate" in message


def test_resume_measures_again_what_is_to_be_measured_on_other_text(finished, monkeypatch, tmp_path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    before = read_records(copy / "results.jsonl")
    run(monkeypatch, "extend", "--resume", "--out", copy, "--set", "evaluation.tokens_per_document=600")
    new = read_records(copy / "results.jsonl")[len(before) :]
    assert {(r.kind, r.arm, r.window) for r in new} == {
        *(("reading", arm, window) for arm in ARMS for window in (256, 512)),
        ("reading", "original", 400),
    }
    assert {r.tokens for r in new} == {599}
    rows = rows_of([read_folder(copy)])
    assert {r.tokens for row in rows for r in row.readings(512)} == {599}


def test_a_report_shows_the_readings_of_today_also_if_older_ones_were_made_later(
    finished, monkeypatch, tmp_path
) -> None:
    """Back at the first settings nothing is measured, and the last records in the file are those of the others."""
    copy, before = shutil.copytree(finished, tmp_path / "run"), rows_of([read_folder(finished)])
    for setting in ("evaluation.stride=64", "evaluation.tokens_per_document=600", "evaluation.other=true"):
        run(monkeypatch, "extend", "--resume", "--out", copy, "--set", setting)
        rows = rows_of([read_folder(copy)])
        read = [r for row in rows for window in row.perplexity for r in row.readings(window)]
        assert ({r.stride for r in read} == {64}) == ("stride" in setting)
        assert ({r.tokens for r in read} == {599}) == ("tokens" in setting)
    assert [row.perplexity for row in rows] == [row.perplexity for row in before]


def test_the_report_of_a_resumed_run_shows_what_its_recipe_asks_for(finished, monkeypatch, tmp_path) -> None:
    copy = shutil.copytree(finished, tmp_path / "run")
    less = ("evaluation.windows=[512]", "evaluation.prompt_trials=1", "evaluation.documents=1")
    run(monkeypatch, "extend", "--resume", "--out", copy, *(word for change in less for word in ("--set", change)))
    row = rows_of([read_folder(copy)])[-1]
    assert {window: len(row.readings(window)) for window in row.perplexity} == {512: 1}
    assert row.found == {"passkey": {512: (0, 1)}}
    page = (copy / "report.html").read_text().replace("\u00a0", " ")
    assert "Perplexity: 1 document of" in page
    assert "Retrieval: 1 prompt of each length" in page


def test_a_resumed_run_measures_on_more_texts(finished, files, monkeypatch, capsys, tmp_path) -> None:
    copy, other = tmp_path / "run", corpus(tmp_path / "other", documents=3, words=400)
    shutil.copytree(finished, copy)
    before = (copy / "results.jsonl").read_text()
    sources = f"evaluation.source=[{other}, {files[1]}]"
    run(monkeypatch, "extend", "--resume", "--out", copy, "--set", sources)
    assert (copy / "results.jsonl").read_text().startswith(before)
    measured = {(r.arm, r.window, r.data) for r in of_kind(copy, ReadingRecord) if r.window != 400}
    assert measured == {(a, w, str(t)) for a in ARMS for w in (256, 512) for t in (files[1], other)}
    assert len(of_kind(copy, TrialRecord)) == 6
    (other / "document-1.txt").write_text("other words " * 400)
    message = refused(monkeypatch, capsys, "extend", "--resume", "--out", copy, "--set", sources)
    assert f"the evaluation text {other} has changed" in message


def test_perplexity_on_the_training_text_reads_held_out_documents_alone(
    finished, files, monkeypatch, capsys, tmp_path
) -> None:
    held = {name for name in (f"document-{i}.txt" for i in range(24)) if is_held_out(name, 0.3)}
    words = ["--only", "perplexity", "--lengths", "512", "--documents", "24"]

    def documents(model: Path, text: Path, out: Path) -> list[str]:
        run(monkeypatch, "evaluate", model, *words, "--data", text, "--out", out)
        return [r.document for r in read_records(out / "results.jsonl") if r.window == 512]

    assert set(documents(finished / "model", files[1], tmp_path / "r")) == held
    # The same documents under other names in another place, and the model's folder out of its run.
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in (f"document-{i}.txt" for i in range(24)):
        shutil.copy(files[1] / name, copy / f"{'kept' if name in held else 'seen'}-{name}")
    shutil.copytree(finished / "model", tmp_path / "moved")
    assert set(documents(tmp_path / "moved", copy, tmp_path / "m")) == {f"kept-{name}" for name in held}
    assert len(documents(files[0], files[1], tmp_path / "b")) == 24  # the base was not trained on it


def test_report_is_made_again_from_the_records_alone(finished, monkeypatch, capsys, tmp_path) -> None:
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("results.jsonl", "run.json", "recipe.yaml"):
        shutil.copy(finished / name, copy)
    run(monkeypatch, "report", copy, finished, "--out", tmp_path / "both.html")
    assert (tmp_path / "both.html").stat().st_size > 10_000


def test_dry_run_prints_the_plan_and_writes_nothing(files, monkeypatch, capsys, tmp_path) -> None:
    run(monkeypatch, *command(*files, tmp_path / "out", "--dry-run"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "400 -> 2,048 tokens" in printed
    assert "training: 4 steps of 4 x 400 tokens = 6,400 tokens" in printed
    assert printed.count("positions 0..") == 3
    assert not (tmp_path / "out").exists()
    taken = tmp_path / "taken"
    taken.write_text("")
    told = refused(monkeypatch, capsys, *command(*files, taken, "--dry-run"))
    assert f"{taken} exists and holds no run of skipwise" in told


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": 256}, "target 256 must exceed the 400"),
        ({"positions.chunk": 3}, "unknown key positions.chunk (did you mean chunks?)"),
        ({"training.learning_rat": 1}, "did you mean learning_rate?"),
        ({"training.max_steps": "many"}, "training.max_steps = 'many'"),
        ({"train_length": -5}, "train_length = -5"),
        ({"positions.chunks": 401}, "chunks 401 must lie in 1..400"),
        ({"data.min_tokens": 100000}, "100,000"),
        ({"evaluation.stride": 300}, "stride"),
        ({"training.batch_size": 3}, "batch_size"),
        ({"data.passkey": 0.5, "train_length": 64}, "length 64 is too short for a"),
        ({"train_length": 2}, "too short for 2 chunks"),
        ({"evaluation.tokens_per_document": 1}, "tokens_per_document 1 must be at least the largest window, 512"),
        ({"evaluation.source": "nope"}, "nope"),
        ({"evaluation.prompt_lengths": "[10]"}, "10 tokens are too few for passkey (from "),
    ],
)
def test_bad_settings_are_explained(files, monkeypatch, capsys, tmp_path, changes, message) -> None:
    assert message in refused(monkeypatch, capsys, *command(*files, tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()


def test_bad_models_and_text_are_explained(files, monkeypatch, capsys, tmp_path) -> None:
    GPT2Config(n_layer=1, n_embd=8, n_head=1).save_pretrained(tmp_path / "gpt2")
    message = refused(monkeypatch, capsys, *command(tmp_path / "gpt2", files[1], tmp_path / "a"))
    assert "gpt2" in message
    checkpoint(tmp_path / "small", window=400, vocab_size=97)
    message = refused(monkeypatch, capsys, *command(tmp_path / "small", files[1], tmp_path / "b"))
    assert "document-0.txt" in message
    assert "97" in message
    assert "tokenizer" in message
    (tmp_path / "broken.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    message = refused(monkeypatch, capsys, *command(files[0], tmp_path / "broken.jsonl", tmp_path / "c"))
    assert "broken.jsonl" in message
    assert "line 2" in message
    assert not any((tmp_path / name).exists() for name in "abc")


def test_each_arm_is_measured_on_its_own_model(finished) -> None:
    nll = {r.arm: sum(r.nll) for r in of_kind(finished, ReadingRecord) if r.window == 512}
    assert len(set(nll.values())) == 3


def test_measurements_go_by_arm_and_rising_window(finished) -> None:
    made = [(r.arm, r.window) for r in of_kind(finished, ReadingRecord) if r.data != OTHER_TEXT]
    windows = {"original": (256, 400, 512), "pi-only": (256, 512), "pose": (256, 512)}
    assert made == [(arm, w) for arm in ARMS for w in windows[arm] for _ in range(2)]


def test_what_is_measured_on_was_held_out_by_name(finished) -> None:
    facts = json.loads((finished / "run.json").read_text())
    held = {name for name in (f"document-{i}.txt" for i in range(24)) if is_held_out(name, 0.3)}
    (measured,) = facts["evaluation"]["documents"].values()
    assert measured
    assert set(measured) <= held
    assert facts["data"]["held_out"] == len(held)
    assert facts["data"]["kept"] <= 24 - len(held)


def test_a_run_killed_in_training_ends_in_the_same_model(finished, monkeypatch, tmp_path) -> None:
    copy = shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(copy / "model")
    shutil.rmtree(copy / "checkpoints" / "checkpoint-4")
    run(monkeypatch, "extend", "--resume", "--out", copy)
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (copy, finished))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert [r.step for r in of_kind(copy, TrainingRecord)] == [1, 2, 3, 4]


def test_other_evaluation_settings_may_be_resumed_with(finished, monkeypatch, capsys, tmp_path) -> None:
    copy = shutil.copytree(finished, tmp_path / "run")
    created = json.loads((copy / "run.json").read_text())["created"]
    words = ["--set", "evaluation.prompt_lengths=[512, 600]", "--set", "data.workers=1"]
    run(monkeypatch, "extend", "--resume", "--out", copy, *words)
    assert [r.length for r in of_kind(copy, TrialRecord)] == [512] * 6 + [600] * 6
    assert json.loads((copy / "run.json").read_text())["evaluation"]["tasks"] == ["passkey"]
    assert recipe_of(copy).evaluation.prompt_lengths == [512]  # as the run was begun
    facts = json.loads((copy / "run.json").read_text())
    assert facts["evaluation"]["prompt_lengths"] == [512, 600]
    assert facts["created"] == created


def test_a_model_that_lost_its_weights_is_not_taken_for_whole(finished, monkeypatch, capsys, tmp_path) -> None:
    copy = shutil.copytree(finished, tmp_path / "run")
    (copy / "model" / "model.safetensors").unlink()
    message = refused(monkeypatch, capsys, "extend", "--resume", "--out", copy)
    assert "has lost model.safetensors; delete the folder, and --resume saves the model again" in message
    shutil.rmtree(copy / "model")
    run(monkeypatch, "extend", "--resume", "--out", copy)
    facts, before = (read_json(folder / "run.json") for folder in (copy, finished))
    assert facts["training"] == before["training"]  # no step was left to train, so that session tells nothing of speed
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (copy, finished))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_disk_that_is_full_at_the_model_is_said(finished, monkeypatch, capsys, tmp_path) -> None:
    copy = shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(copy / "model")

    def full(*args, **kwargs) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("skipwise.training.run.save_extended", full)
        message = refused(patch, capsys, "extend", "--resume", "--out", copy)
    assert "the disk is full" in message
    assert "the model" in message
    assert "checkpoint 4 is intact" in message


def test_a_disk_that_is_full_anywhere_is_said(finished, monkeypatch, capsys, tmp_path) -> None:
    copy = shutil.copytree(finished, tmp_path / "run")

    def full(*args, **facts) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "run.json")

    with monkeypatch.context() as patch:
        patch.setattr("skipwise.results.run_folder.RunFolder.record", full)
        message = refused(patch, capsys, "extend", "--resume", "--out", copy)
    assert "the disk cannot be written (run.json): No space left on device; what was written is kept" in message
    with monkeypatch.context() as patch:
        patch.setattr("skipwise.report.page.draw_figures", full)
        message = refused(patch, capsys, "report", copy, "--out", tmp_path / "page")
    assert "the disk cannot be written" in message
    assert "another --out" not in message
