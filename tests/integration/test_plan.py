"""``skipwise plan`` by the real command, from a config alone."""

import re
from pathlib import Path

import pytest
from transformers import LlamaConfig, MixtralConfig

from tests.command_line import refused, run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that holds a config and nothing else: LLaMA-7B's width in two layers."""
    config = LlamaConfig(num_hidden_layers=2, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2)
    config.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def planned(monkeypatch, capsys, *words: object) -> tuple[dict[str, list[str]], str]:
    """The table's cells, the run's and full-length's, by the line's name; and all that was printed."""
    run(monkeypatch, "plan", *words)
    printed = capsys.readouterr().out
    lines = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    return {cells[0]: cells[1:] for cells in lines if len(cells) in (2, 3)}, printed


def test_pose_is_planned_beside_full_length_from_a_config_alone(model, monkeypatch, capsys) -> None:
    single = "training.per_device_train_batch_size=1"
    cells, printed = planned(monkeypatch, capsys, model, "--target", "16k", "--set", single)
    assert "2,048 -> 16,384 tokens (x8, fitted" in " ".join(printed.split())
    assert cells["windows a step"] == ["16 of 2k", "2 of 16k"]
    assert cells["tokens in all"][0] == cells["tokens in all"][1]
    assert cells["weights, each GPU"] == ["2.7 GB", "2.7 GB"]  # 666.9 million x 4 bytes
    assert cells["optimizer, each GPU"] == ["5.3 GB", "5.3 GB"]
    assert cells["fits in 80.0 GB"] == ["yes", "yes"]
    pose, full = (float(cell.split()[0]) for cell in cells["activations, each GPU"])
    assert full > 3 * pose


@pytest.mark.parametrize(
    ("words", "line", "cells"),
    [
        ("--gpu-memory 24GiB", "fits in 25.8 GB", ["yes", "yes"]),
        ("--gpu-memory 8GB --gpus 8", "fits in 8.0 GB", ["yes", "no"]),
        ("--set training.optim=adamw_8bit", "optimizer, each GPU", ["2.1 GB"] * 2),  # a fifth of it is an embedding
        ("--set lora.load_in_4bit=true", "weights, each GPU", ["745.8 MB"] * 2),  # half of this model is embeddings
        ("--gpus 8 --set lora.load_in_4bit=true", "weights, each GPU", ["745.8 MB"] * 2),  # not shared
        ("--set positions.scheme=full_length --set training.global_batch_size=8", "windows a step", ["8 of 16k"]),
    ],
)
def test_what_is_set_is_planned(model, monkeypatch, capsys, words: str, line: str, cells: list[str]) -> None:
    assert planned(monkeypatch, capsys, model, "--target", "16k", *words.split())[0][line] == cells


_LOW, _LORA = "--set training.gradient_checkpointing=true", "--lora --set lora.load_in_4bit=true"


@pytest.mark.parametrize(
    ("memory", "words", "change"),
    [("14.5GB", [], _LOW), ("3.5GB", [], f"{_LOW} {_LORA}"), ("3.6GB", ["--gpus", "8"], f"{_LOW} {_LORA}")],
)
def test_a_plan_that_does_not_fit_names_the_smallest_change_that_does(
    model, monkeypatch, capsys, memory: str, words: list[str], change: str
) -> None:
    """With it, the same command fits."""
    command = [model, "--target", "4k", "--gpu-memory", memory, *words]
    _, printed = planned(monkeypatch, capsys, *command)
    assert f"{change} (" in " ".join(printed.split())
    cells, _ = planned(monkeypatch, capsys, *command, *change.split())
    assert cells[f"fits in {float(memory.removesuffix('GB')):.1f} GB"][0] == "yes"


@pytest.mark.parametrize(
    ("words", "examples"),
    [
        ([], 8),
        (["--gpus", "8", "--set", "training.global_batch_size=32"], 4),
        (["--set", "training.per_device_train_batch_size=2"], 2),
    ],
)
def test_a_plan_has_the_most_windows_in_a_pass_that_fit(model, monkeypatch, capsys, words, examples: int) -> None:
    """Up to 16k tokens, unless the recipe has a number; without room beside their peak there are fewer."""
    command = [model, "--target", "4k", *words]
    cells, _ = planned(monkeypatch, capsys, *command, "--gpu-memory", "80GB")
    assert cells["windows in a pass"][0] == str(examples)
    if "--gpus" not in words:
        least = float(cells["at the peak, each GPU"][0].split()[0]) / 0.9  # above 15 GB a tenth is more than the room
        less, _ = planned(monkeypatch, capsys, *command, "--gpu-memory", f"{0.98 * least:.3f}GB")
        assert less["windows in a pass"][0] == str(examples if examples == 2 else examples // 2)


def test_what_cannot_fit_is_printed(model, monkeypatch, capsys) -> None:
    _, printed = planned(monkeypatch, capsys, model, "--gpu-memory", "0.3GB")
    assert "--gpu-memory" in printed.split("does not fit")[1]
    _, printed = planned(monkeypatch, capsys, model, "--target", "64k", "--gpu-memory", "5GB")
    assert "passkey prompts of 65,536" in " ".join(printed.split())


def test_coverage_of_the_paper(model, monkeypatch, capsys) -> None:
    run(monkeypatch, "plan", model, "--target", "16k", "--coverage", "--set", "method=paper")
    assert f"{2047 / 14337:.4f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"), [(["--gpu-memory", "lots"], "lots"), (["--gpus", "3"], "training.global_batch_size")]
)
def test_bad_input_is_refused(model, monkeypatch, capsys, words, named) -> None:
    assert named in refused(monkeypatch, capsys, "plan", model, *words)


def test_a_scaling_is_replaced_and_experts_are_refused(tmp_path, monkeypatch, capsys) -> None:
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    LlamaConfig(num_hidden_layers=2, max_position_embeddings=8192, rope_parameters=rope).save_pretrained(tmp_path)
    _, printed = planned(monkeypatch, capsys, tmp_path, "--target", "16k", "--interpolation", "yarn")
    assert all(value in " ".join(printed.split()) for value in ("8,192 -> 16,384", "linear x4", "x8", "2,048"))
    MixtralConfig(num_hidden_layers=2, num_local_experts=4).save_pretrained(tmp_path / "experts")
    assert "mixtral" in refused(monkeypatch, capsys, "plan", tmp_path / "experts", "--target", "256k")
