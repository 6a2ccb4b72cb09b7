"""The main job by the real command on real files: run, records, report, reload, resume, bad input."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from skipwise.data.text import is_held_out
from skipwise.model.config import load_config
from skipwise.model.extension import extension_of
from skipwise.model.loading import load_model
from skipwise.recipes.loading import load_recipe
from skipwise.results.files import read_json, write_json
from skipwise.results.records import OTHER_TEXT, ReadingRecord, TrainingRecord, TrialRecord, read_records
from tests.command_line import refused, run
from tests.tiny import checkpoint, corpus

pytestmark = pytest.mark.usefixtures("frozen_imports", "undrawn")
ARMS = ("original", "untrained", "pose")
SMALL = {
    "target": "2k",
    "data.held_out": 0.3,
    "training.max_steps": 4,
    "training.global_batch_size": 4,
    "training.per_device_train_batch_size": 2,
    "training.learning_rate": 1e-3,
    "training.logging_steps": 1,
    "training.save_steps": 2,
    "training.precision": "float32",
    "evaluation.documents": 2,
    "evaluation.windows": "[256, 512]",
    "evaluation.prompt_lengths": "[512]",
    "evaluation.num_prompts": 2,
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


def same_model(one: Path, other: Path) -> bool:
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (one, other))
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


def resume(monkeypatch, run_folder: Path, *changes: str) -> None:
    run(monkeypatch, "extend", "--resume", "--out", run_folder, *(word for one in changes for word in ("--set", one)))


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


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that a test may change."""
    return shutil.copytree(finished, tmp_path / "run")


def test_the_run_folder_holds_everything(finished: Path, files) -> None:
    for name in ("recipe.yaml", "report.html", "numbers.csv", "model/README.md", "figures/loss.svg"):
        assert (finished / name).stat().st_size > 0, name
    assert (
        str(files[1].parent) not in (finished / "model" / "README.md").read_text()
    )  # the hub's readers lack these folders
    facts = read_json(finished / "run.json")
    assert facts["training"]["steps"] == 4
    assert facts["probe"]["forward"] > 0
    assert facts["micro_batch"] == 2
    assert facts["command"].startswith("skipwise extend ")
    held = {name for name in (f"document-{i}.txt" for i in range(24)) if is_held_out(name, 0.3)}
    (measured,) = facts["evaluation"]["documents"].values()
    assert set(measured) <= held
    assert facts["data"]["held_out"] == len(held)
    assert facts["data"]["kept"] <= 24 - len(held)


def test_the_records_hold_every_arm_in_order(finished: Path) -> None:
    readings = of_kind(finished, ReadingRecord)
    windows = {"original": (256, 400, 512), "untrained": (256, 512), "pose": (256, 512)}
    made = [(r.arm, r.window) for r in readings if r.data != OTHER_TEXT]
    assert made == [(arm, w) for arm in ARMS for w in windows[arm] for _ in range(2)]
    assert len({sum(r.nll) for r in readings if r.window == 512}) == 6  # each arm has a model of its own
    other = {(r.arm, r.document, r.window) for r in readings if r.data == OTHER_TEXT}
    assert other == {(arm, kind, 400) for arm in ("original", "pose") for kind in ("prose", "mathematics", "code")}
    trials = of_kind(finished, TrialRecord)
    assert [(r.arm, r.length, r.depths) for r in trials] == [(arm, 512, "random") for arm in ARMS for _ in range(2)]
    assert [r.step for r in of_kind(finished, TrainingRecord)] == [1, 2, 3, 4]


def test_stock_transformers_loads_the_same_model(finished: Path) -> None:
    ids, positions = torch.arange(32)[None] * 3 + 5, torch.arange(2048 - 32, 2048)[None]
    stock = AutoModelForCausalLM.from_pretrained(finished / "model").eval()
    asked = {"input_ids": ids, "position_ids": positions, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        torch.testing.assert_close(stock(**asked).logits, load_model(str(finished / "model"))(**asked).logits)
    assert stock.config.rope_parameters["factor"] == 2048 / 400
    assert AutoTokenizer.from_pretrained(finished / "model").model_max_length == 2048


def test_a_short_training_keeps_the_window_and_the_rope(finished: Path, files, monkeypatch, tmp_path) -> None:
    long, out = finished / "model", tmp_path / "kept"
    few = {"target": "window", "train_length": 256, "training.max_steps": 1, "evaluation.windows": "null"}
    few["attn_implementation"] = "eager"
    run(monkeypatch, *command(long, files[1], out, **few))
    assert read_json(out / "run.json")["probe"]["attention"] == "eager"
    facts, rope = read_json(out / "run.json")["model"], read_json(long / "config.json")["rope_parameters"]
    assert (facts["original_length"], facts["target_length"], facts["interpolation"]) == (2048, 2048, "kept")
    assert (
        read_json(out / "model" / "config.json")["rope_parameters"].items() >= rope.items()
    )  # transformers adds the older name
    windows = [(r.arm, r.window) for r in of_kind(out, ReadingRecord) if r.data != OTHER_TEXT]
    assert dict.fromkeys(windows) == dict.fromkeys((arm, w) for arm in ("original", "pose") for w in (256, 512, 1024))
    recipe = load_recipe(None, {"model": str(out / "model"), "target": 4096, "interpolation": "yarn"})
    assert extension_of(load_config(str(out / "model")), recipe).factor == 4096 / 400  # from the first base's window


def test_a_taken_folder_is_never_overwritten(finished, files, monkeypatch, capsys, tmp_path) -> None:
    before = (finished / "results.jsonl").read_bytes()
    refused(monkeypatch, capsys, *command(*files, finished))
    assert "seed" in refused(monkeypatch, capsys, *command(*files, finished, "--resume", seed=1))
    assert (finished / "results.jsonl").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear")
    refused(monkeypatch, capsys, *command(*files, tmp_path / "mine"))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("place", "name", "content", "named"),
    [(0, "generation_config.json", '{"eos_token_id": 7}', "base model"), (1, "document-3.txt", "other " * 400, "text")],
)
def test_another_base_or_text_is_not_resumed_on(
    copy, files, monkeypatch, capsys, place: int, name: str, content: str, named: str
) -> None:
    path = files[place] / name
    before = path.read_bytes()
    path.write_text(content)
    try:
        assert named in refused(monkeypatch, capsys, "extend", "--resume", "--out", copy)
    finally:
        path.write_bytes(before)


def test_a_run_goes_on_in_the_precision_that_it_began_with(copy, files, monkeypatch, capsys) -> None:
    """``auto`` chooses by the machine, and a resume may be on another one."""
    facts = read_json(copy / "run.json")
    assert facts["fingerprints"]["precision"] == "float32"
    write_json(copy / "run.json", facts | {"fingerprints": facts["fingerprints"] | {"precision": "bf16"}})
    assert "bf16" in refused(monkeypatch, capsys, *command(*files, copy, "--resume"))


def test_resume_measures_only_what_is_missing(finished, copy, monkeypatch) -> None:
    lines = (copy / "results.jsonl").read_text().splitlines(keepends=True)
    (copy / "results.jsonl").write_text("".join(lines[:-2]) + lines[-2][:40])
    resume(monkeypatch, copy)
    after = (copy / "results.jsonl").read_text().splitlines(keepends=True)
    assert after[: len(lines) - 2] == lines[:-2]
    assert without_time(copy / "results.jsonl") == without_time(finished / "results.jsonl")


def test_a_killed_run_ends_in_the_same_model_whatever_no_weight_depends_on(finished, copy, monkeypatch, capsys) -> None:
    shutil.rmtree(copy / "checkpoints" / "checkpoint-4")
    shutil.rmtree(copy / "model")
    free = ("gradient_checkpointing=true", "save_total_limit=1", "dataloader_num_workers=1")
    resume(monkeypatch, copy, *(f"training.{one}" for one in free))
    assert same_model(copy, finished)
    assert [r.step for r in of_kind(copy, TrainingRecord)] == [1, 2, 3, 4]
    rate = "training.learning_rate"
    assert rate in refused(monkeypatch, capsys, "extend", "--resume", "--out", copy, "--set", f"{rate}=1e-5")


def test_a_model_that_lost_its_weights_is_refused_and_saved_again(finished, copy, monkeypatch, capsys) -> None:
    (copy / "model" / "model.safetensors").unlink()
    assert "model.safetensors" in refused(monkeypatch, capsys, "extend", "--resume", "--out", copy)
    shutil.rmtree(copy / "model")
    resume(monkeypatch, copy)
    trained, before = (read_json(folder / "run.json")["training"] for folder in (copy, finished))
    assert trained == before  # no step was trained
    assert same_model(copy, finished)


def test_perplexity_on_the_training_text_reads_held_out_documents_alone(finished, files, monkeypatch, tmp_path) -> None:
    held = {name for name in (f"document-{i}.txt" for i in range(24)) if is_held_out(name, 0.3)}
    words = ["--only", "perplexity", "--lengths", "512", "--documents", "24"]

    def documents(model: Path, text: Path, out: Path) -> list[str]:
        run(monkeypatch, "evaluate", model, *words, "--data", text, "--out", out)
        return [r.document for r in read_records(out / "results.jsonl") if r.window == 512]

    assert set(documents(finished / "model", files[1], tmp_path / "r")) == held
    # The same documents under other names in another place, and the model's folder out of its run.
    moved = tmp_path / "text"
    moved.mkdir()
    for name in (f"document-{i}.txt" for i in range(24)):
        shutil.copy(files[1] / name, moved / f"{'kept' if name in held else 'seen'}-{name}")
    shutil.copytree(finished / "model", tmp_path / "moved")
    assert set(documents(tmp_path / "moved", moved, tmp_path / "m")) == {f"kept-{name}" for name in held}
    assert len(documents(files[0], files[1], tmp_path / "b")) == 24  # the base was not trained on it


def test_dry_run_prints_the_plan_and_writes_nothing(files, monkeypatch, capsys, tmp_path) -> None:
    odd = shutil.copytree(files[1], tmp_path / "text[/x]")  # no markup
    run(monkeypatch, *command(files[0], odd, tmp_path / "out", "--dry-run"))
    printed = " ".join(capsys.readouterr().out.split())
    assert all(value in printed for value in ("400 -> 2,048", "6,400 tokens", "text[/x]"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"target": 256}, "256"), ({"positions.chunks": 401}, "401"), ({"data.min_tokens": 100000}, "100,000")],
)
def test_bad_settings_are_refused_before_anything_is_written(
    files, monkeypatch, capsys, tmp_path, changes, named
) -> None:
    assert named in refused(monkeypatch, capsys, *command(*files, tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()
