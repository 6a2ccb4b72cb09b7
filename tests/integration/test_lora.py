"""LoRA by the real command: what is saved, resumed and refused."""

import json
import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from skipwise.model.loading import load_model
from skipwise.model.origin import weights_fingerprint
from skipwise.results.files import read_json
from skipwise.results.records import read_records
from skipwise.training.run import recipe_of
from tests.command_line import refused, run
from tests.integration.test_extend import command
from tests.tiny import checkpoint, corpus

ALSO = "[embeddings, norms]"


pytestmark = pytest.mark.usefixtures("frozen_imports", "undrawn")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("files")
    os.environ["SKIPWISE_CACHE"] = str(folder / "cache")
    return checkpoint(folder / "base", window=400), corpus(folder / "text", documents=24, words=200)


@pytest.mark.parametrize(
    ("saved", "precision", "dtype"),
    [("merged", "float32", "float32"), ("merged", "bf16", "bfloat16"), ("adapter", "bf16", "float32")],
)
def test_a_run_is_saved_as_asked_measured_and_resumed_to_the_same_bits(
    files, monkeypatch, capsys, tmp_path, saved: str, precision: str, dtype: str
) -> None:
    out = tmp_path / "run"
    changes = {"lora.saved": saved, "lora.also": ALSO, "training.precision": precision, "training.save_dtype": dtype}
    run(monkeypatch, *command(*files, out, "--lora", **changes))
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r"LoRA of rank 16: [\d,]+ of [\d,]+ parameters are trained", printed)
    assert recipe_of(out).lora.saved == saved
    weights = out / "model" / ("model" if saved == "merged" else "adapter_model")
    trained = load_file(weights.with_suffix(".safetensors"))
    assert {weight.dtype for weight in trained.values()} == {getattr(torch, dtype)}
    base = load_model(str(files[0]), dtype=getattr(torch, dtype)).state_dict()
    if saved == "merged":
        assert set(trained) == set(base)
        moved = {name for name in base if not torch.equal(base[name], trained[name])}
        # Norms moved by less than bfloat16 can tell at 1.
        lost = {name for name in base if dtype == "bfloat16" and "norm" in name}
        assert moved | lost == set(base) - {"lm_head.weight"}
    else:
        assert not set(trained) & set(base)
    assert {record.arm for record in read_records(out / "results.jsonl") if record.kind == "reading"} == {
        "original",
        "pi-only",
        "pose",
    }
    again = shutil.copytree(out, tmp_path / "again")
    shutil.rmtree(again / "model")
    shutil.rmtree(again / "checkpoints" / "checkpoint-4")
    run(monkeypatch, "extend", "--resume", "--out", again)
    resumed = load_file(again / "model" / weights.with_suffix(".safetensors").name)
    assert all(torch.equal(resumed[name], trained[name]) for name in trained)


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
@pytest.mark.parametrize("saved", ["merged", "adapter"])
def test_a_base_in_4_bits_is_trained_on_and_the_whole_one_is_saved(files, monkeypatch, tmp_path, saved) -> None:
    out = tmp_path / "run"
    wide = checkpoint(tmp_path / "base", window=400, hidden_size=128, intermediate_size=256)  # its kernels ask for it
    run(monkeypatch, *command(wide, files[1], out, **{"lora.saved": saved, "lora.base": "4bit"}))
    trained, base = (load_model(str(folder)).state_dict() for folder in (out / "model", wide))
    moved = {name for name in base if not torch.equal(base[name], trained[name])}
    assert all(name.endswith("proj.weight") for name in moved)
    assert len(moved) == 14  # seven a layer
    for name in moved:  # rounded to 4 bits they would be a tenth away
        assert (trained[name] - base[name]).norm() < 0.02 * base[name].norm()


def test_activation_checkpointing_changes_no_bit(files, monkeypatch, tmp_path) -> None:
    found = []
    for name, checkpointing in (("plain", False), ("saving", True)):
        out = tmp_path / name
        changes = {"training.gradient_checkpointing": checkpointing, "lora.saved": "adapter"}
        run(monkeypatch, *command(*files, out, "--lora", **changes))
        found.append(load_file(out / "model" / "adapter_model.safetensors"))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert any(weight.abs().max() > 0 for name, weight in found[0].items() if "lora_B" in name)


def test_an_adapter_is_whole_or_refused_and_measured_like_any_model(files, monkeypatch, capsys, tmp_path) -> None:
    out = tmp_path / "run"
    run(monkeypatch, *command(*files, out, **{"lora.saved": "adapter"}))
    text = ["--only", "perplexity", "--data", files[1], "--lengths", "256", "--documents", "1", "--out", tmp_path / "e"]
    run(monkeypatch, "evaluate", out / "model", *text)
    assert "256" in capsys.readouterr().out
    assert "peft" in (out / "model" / "README.md").read_text()
    about = read_json(out / "model" / "skipwise.json")
    assert about["base_fingerprint"] == weights_fingerprint(str(files[0]))
    (out / "model" / "adapter_model.safetensors").unlink()
    message = refused(monkeypatch, capsys, "extend", "--resume", "--out", out)
    assert "has lost adapter_model.safetensors" in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora.targets": "[c_attn]"}, "c_attn"),
        ({"lora.rank": 0}, "lora.rank = 0: Input should be greater than or equal to 1"),
        ({"lora.ranks": 8}, "unknown key lora.ranks (did you mean rank?)"),
        ({"lora.also": "[biases]"}, "lora.also.0 = 'biases'"),
    ],
)
def test_bad_settings_are_explained(files, monkeypatch, capsys, tmp_path, changes, message) -> None:
    assert message in refused(monkeypatch, capsys, *command(*files, tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


def test_the_rate_is_ten_times_that_of_all_weights_unless_it_is_set(files, monkeypatch, tmp_path) -> None:
    words = ["extend", files[0], "--data", files[1], "--target", "2k", "--lora", "--out", tmp_path / "run"]
    small = ["training.max_steps=1", "training.batch_size=1", "evaluation.documents=1", "data.held_out=0.3"]
    measured = ["evaluation.windows=[256]", "evaluation.prompt_trials=0", "evaluation.arms=[trained]"]
    for assignment in (*small, *measured):
        words += ["--set", assignment]
    run(monkeypatch, *words)
    assert recipe_of(tmp_path / "run").training.learning_rate == 2e-4
    assert json.loads((tmp_path / "run" / "run.json").read_text())["probe"]["forward"] > 0
