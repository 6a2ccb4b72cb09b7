"""LoRA by the real command: what is saved, resumed and refused."""

import shutil
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file

from skipwise.model.config import weights_fingerprint
from skipwise.model.loading import load_model
from skipwise.results.files import read_json
from skipwise.results.records import read_records
from skipwise.training.run import recipe_of
from tests.command_line import refused, run
from tests.integration.test_extend import SMALL, command, files  # noqa: F401
from tests.tiny import checkpoint

ALSO = "[embeddings, norms]"
QUICK = {"evaluation.models": "[trained]", "evaluation.num_prompts": 0, "evaluation.other_texts": "false"}


pytestmark = pytest.mark.usefixtures("frozen_imports", "undrawn")


@pytest.mark.parametrize(
    ("saved", "precision", "dtype"), [("merged", "bf16", "bfloat16"), ("adapter", "float32", "float32")]
)
def test_a_run_is_saved_as_asked_and_resumed_exactly(files, monkeypatch, tmp_path, saved, precision, dtype) -> None:  # noqa: F811
    out = tmp_path / "run"
    changes = {"lora.save_as": saved, "lora.modules_to_save": ALSO}
    changes |= {"training.precision": precision, "training.save_dtype": dtype}
    run(monkeypatch, *command(*files, out, "--lora", **QUICK, **changes))
    assert recipe_of(out).lora.save_as == saved
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
    again = shutil.copytree(out, tmp_path / "again")
    shutil.rmtree(again / "model")
    shutil.rmtree(again / "checkpoints" / "checkpoint-4")
    run(monkeypatch, "extend", "--resume", "--out", again)
    resumed = load_file(again / "model" / weights.with_suffix(".safetensors").name)
    assert all(torch.equal(resumed[name], trained[name]) for name in trained)


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
def test_a_base_in_4_bits_is_trained_on_and_the_whole_one_is_saved(files, monkeypatch, tmp_path) -> None:  # noqa: F811
    out = tmp_path / "run"
    wide = checkpoint(tmp_path / "base", window=400, hidden_size=128, intermediate_size=256)  # its kernels ask for it
    run(monkeypatch, *command(wide, files[1], out, **QUICK, **{"lora.load_in_4bit": True}))
    trained, base = (load_model(str(folder)).state_dict() for folder in (out / "model", wide))
    moved = {name for name in base if not torch.equal(base[name], trained[name])}
    assert all(name.endswith("proj.weight") for name in moved)
    assert len(moved) == 14  # seven a layer
    for name in moved:  # rounded to 4 bits they would be a tenth away
        assert (trained[name] - base[name]).norm() < 0.02 * base[name].norm()


def test_an_adapter_is_whole_or_refused_and_measured_like_any_model(files, monkeypatch, capsys, tmp_path) -> None:  # noqa: F811
    out = tmp_path / "run"
    words = command(*files, out, **QUICK, **{"lora.save_as": "adapter"})
    at = words.index(f"training.learning_rate={SMALL['training.learning_rate']}")
    run(monkeypatch, *words[: at - 1], *words[at + 1 :])
    assert recipe_of(out).training.learning_rate == 2e-4  # ten times that of all weights
    text = ["--only", "perplexity", "--data", files[1], "--lengths", "256", "--documents", "1", "--out", tmp_path / "e"]
    run(monkeypatch, "evaluate", out / "model", *text)
    assert {record.window for record in read_records(tmp_path / "e" / "results.jsonl")} == {256}
    assert read_json(out / "model" / "skipwise.json")["base_fingerprint"] == weights_fingerprint(str(files[0]))
    (out / "model" / "adapter_model.safetensors").unlink()
    assert "adapter_model.safetensors" in refused(monkeypatch, capsys, "extend", "--resume", "--out", out)
