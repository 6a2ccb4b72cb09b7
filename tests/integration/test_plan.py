"""``skipwise plan`` by the real command, from a config alone."""

import re
from pathlib import Path
from unittest.mock import ANY

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
    run(monkeypatch, "plan", *words, "--set", "method=null")
    printed = capsys.readouterr().out
    lines = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    return {cells[0]: cells[1:] for cells in lines if len(cells) in (2, 3)}, printed


def test_pose_is_planned_beside_full_length_from_a_config_alone(model, monkeypatch, capsys) -> None:
    cells, printed = planned(monkeypatch, capsys, model, "--target", "16k")
    assert "2,048 -> 16,384 tokens (x8, fitted" in " ".join(printed.split())
    assert cells["windows a step"] == ["64 of 2k", "8 of 16k"]
    assert (
        cells["weights, each GPU"] == ["2.7 GB", "2.7 GB"] == cells["while loading, each GPU"]
    )  # 666.9 million x 4 bytes
    assert cells["optimizer, each GPU"] == ["5.3 GB", "5.3 GB"]
    assert cells["fits in 80.0 GB"] == ["yes", "yes"]
    pose, full = (float(cell.split()[0]) for cell in cells["activations, each GPU"])
    assert full > 3 * pose


def test_a_scaling_that_is_replaced_is_told_beside_what_the_model_reads_now(tmp_path, monkeypatch, capsys) -> None:
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    LlamaConfig(num_hidden_layers=2, max_position_embeddings=8192, rope_parameters=rope).save_pretrained(tmp_path)
    _, printed = planned(monkeypatch, capsys, tmp_path, "--target", "16k", "--existing-rope", "replace")
    told = " ".join(printed.split())
    assert "8,192 -> 16,384 tokens" in told
    assert all(value in told for value in ("linear x4", "x8", "2,048"))


def test_interpolation_and_units_of_memory_are_read(model, monkeypatch, capsys) -> None:
    words = [model, "--target", "16k", "--interpolation", "linear", "--gpu-memory", "24GiB"]
    cells, printed = planned(monkeypatch, capsys, *words)
    assert "(x8, linear" in " ".join(printed.split())
    assert "fits in 25.8 GB" in cells


def test_what_is_set_is_planned(model, monkeypatch, capsys) -> None:
    words = [model, "--target", "4k", "--lora"]
    weights = {}
    for base in ("auto", "float32", "4bit"):
        cells, _ = planned(monkeypatch, capsys, *words, "--set", f"lora.base={base}")
        weights[base] = float(cells["weights, each GPU"][0].split()[0]) * (
            1e3 if "GB" in cells["weights, each GPU"][0] else 1
        )
    assert weights["float32"] == pytest.approx(2 * weights["auto"], rel=0.05)
    assert weights["4bit"] < 0.6 * weights["auto"]  # half of this model is embeddings
    plain, _ = planned(monkeypatch, capsys, model, "--target", "4k")
    saving, _ = planned(monkeypatch, capsys, model, "--target", "4k", "--set", "training.gradient_checkpointing=true")
    assert saving["activations, each GPU"] != plain["activations, each GPU"]


def test_what_the_optimizer_keeps_is_planned(model, monkeypatch, capsys) -> None:
    """Of 666.9 million weights 131.1 million are an embedding."""
    for optim, kept in (("adamw_torch", "5.3 GB"), ("adamw_8bit", "2.1 GB"), ("lion_8bit", "1.1 GB")):
        cells, printed = planned(monkeypatch, capsys, model, "--target", "4k", "--set", f"training.optim={optim}")
        assert cells["optimizer, each GPU"] == [kept, kept]
        assert "is counted as AdamW" not in printed
    for words in (["galore_adamw"], ["adafactor", "--gpus", "8"]):
        _, printed = planned(
            monkeypatch, capsys, model, "--target", "4k", "--set", f"training.optim={words[0]}", *words[1:]
        )
        assert f"training.optim {words[0]} is counted as AdamW" in printed


def test_gpus_share_what_is_held(model, monkeypatch, capsys) -> None:
    words = [model, "--target", "16k", "--gpus", "8", "--gpu-memory", "3.5GB"]
    cells, printed = planned(monkeypatch, capsys, *words)
    assert cells["optimizer, each GPU"] == ["1.0 GB", "1.0 GB"]  # 12 bytes a parameter over eight
    assert cells["fits in 3.5 GB"][1] == "no"
    adapted, printed = planned(monkeypatch, capsys, *words, "--lora")
    assert adapted["gradients, each GPU"][0].endswith((" kB", " MB"))
    assert "--lora" not in printed


_EIGHT = "--set training.optim=adamw_8bit"
_LOW, _LORA = "--set training.gradient_checkpointing=true", "--lora --set lora.base=4bit"


@pytest.mark.parametrize(
    ("memory", "words", "change"),
    [
        ("14.5GB", [], _LOW),
        (
            "14.5GB",
            ["--set", "training.per_device_train_batch_size=2"],
            f"--set training.per_device_train_batch_size=1 {_LOW}",
        ),
        ("11.5GB", [], f"{_LOW} {_EIGHT}"),
        ("7.5GB", [], f"{_LOW} --lora"),
        ("3.5GB", [], f"{_LOW} {_LORA}"),
        ("3.6GB", ["--gpus", "8"], f"{_LOW} --lora --gpus 16"),
    ],
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


def test_a_plan_names_the_most_windows_in_a_pass_that_fit_too(model, monkeypatch, capsys) -> None:
    """Up to 16,384 tokens, with 1.5 GB left free; taken, the plan takes what was said and proposes no more."""

    def proposed(*words: str) -> tuple[int, str] | None:
        _, printed = planned(monkeypatch, capsys, model, "--target", "4k", *words)
        told = re.search(
            r"(\d+) windows in a pass fit too \(([\d.]+ GB) at the peak\).*per_device_train_batch_size=(\d+)",
            " ".join(printed.split()),
        )
        assert told is None or told[1] == told[3]
        return told and (int(told[1]), told[2])

    examples, peak = proposed("--gpu-memory", "80GB")
    assert examples == 8
    cells, _ = planned(
        monkeypatch, capsys, model, "--target", "4k", "--set", f"training.per_device_train_batch_size={examples}"
    )
    assert cells["at the peak, each GPU"][0] == peak
    assert proposed("--gpu-memory", "80GB", "--set", "training.per_device_train_batch_size=8") is None
    assert proposed("--gpu-memory", "80GB", "--set", "training.batch_size=6") == (6, ANY)
    assert proposed("--gpu-memory", "80GB", "--gpus", "8", "--set", "training.batch_size=32") == (4, ANY)
    less = float(peak.split()[0]) + 1.4
    assert proposed("--gpu-memory", f"{less:.1f}GB") == (4, ANY)


def test_a_plan_that_nothing_makes_fit_asks_for_larger_gpus(model, monkeypatch, capsys) -> None:
    _, printed = planned(monkeypatch, capsys, model, "--gpu-memory", "0.3GB")
    assert "--gpu-memory" in printed.split("does not fit")[1]
    _, printed = planned(monkeypatch, capsys, model, "--gpu-memory", "0.3GB", "--set", "positions.scheme=full")
    assert "full-length does not fit" in " ".join(printed.split())


def test_measuring_that_cannot_fit_is_printed(model, monkeypatch, capsys) -> None:
    _, printed = planned(monkeypatch, capsys, model, "--target", "64k", "--gpu-memory", "80GB")
    assert "Measuring does not fit" not in printed
    _, printed = planned(monkeypatch, capsys, model, "--target", "64k", "--gpu-memory", "5GB")
    assert "Measuring does not fit: passkey prompts of 65,536 tokens" in printed


def test_coverage_of_the_paper(model, monkeypatch, capsys) -> None:
    run(monkeypatch, "plan", model, "--target", "16k", "--coverage", "--set", "method=paper")
    assert f"{2047 / 14337:.4f}" in capsys.readouterr().out
    run(
        monkeypatch,
        "plan",
        model,
        "--target",
        "4k",
        "--coverage",
        "--set",
        "method=null",
        "--set",
        "positions.chunks=3",
    )
    assert "standard error" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu-memory", "lots"], "--gpu-memory 'lots' must be a number of gigabytes, as 80GB"),
        (["--gpus", "3"], "training.batch_size = 64 must be a multiple of 3"),
        (
            ["--set", "training.gradient_checkpiont=true"],
            "training.gradient_checkpiont is no field of transformers.TrainingArguments (did you mean",
        ),
        (["--target", "999999999999"], "target = '999999999999': Input should be less than or equal to 16777216"),
        (["--target", "4k", "--set", "train_length=8k"], "train_length 8,192 must not exceed the target 4,096"),
        (["--target", "1k"], "target 1,024 must exceed the 2,048 tokens"),
    ],
)
def test_bad_input_is_explained(model, monkeypatch, capsys, words, message) -> None:
    assert message in refused(monkeypatch, capsys, "plan", model, *words)


def test_full_length_has_as_many_tokens_at_a_time(model, monkeypatch, capsys) -> None:
    words = [model, "--target", "16k", "--set", "training.per_device_train_batch_size=16"]
    cells, _ = planned(monkeypatch, capsys, *words)
    assert cells["windows a step"] == ["64 of 2k", "8 of 16k"]
    assert cells["tokens in all"][0] == cells["tokens in all"][1]
    pose, full = (float(cell.split()[0]) for cell in cells["activations, each GPU"])
    assert full == pytest.approx(pose, rel=0.2)  # 2 x 16k at a time against 16 x 2k


def test_full_length_training_is_planned_in_windows_of_the_target(model, monkeypatch, capsys) -> None:
    words = [model, "--target", "16k", "--set", "positions.scheme=full", "--set", "training.batch_size=8"]
    cells, _ = planned(monkeypatch, capsys, *words)
    assert cells["windows a step"] == ["8 of 16k"]
    _, printed = planned(monkeypatch, capsys, *words, "--gpu-memory", "1GB")
    assert "train_length" not in printed  # it changes nothing of such a run


def test_a_window_on_each_gpu_at_least(model, monkeypatch, capsys) -> None:
    words = [model, "--target", "16k", "--gpus", "8", "--set", "training.batch_size=16"]
    assert planned(monkeypatch, capsys, *words)[0]["windows a step"] == ["16 of 2k", "8 of 16k"]


def test_experts_are_refused(tmp_path, monkeypatch, capsys) -> None:
    MixtralConfig(num_hidden_layers=2, num_local_experts=4).save_pretrained(tmp_path / "experts")
    told = refused(monkeypatch, capsys, "plan", tmp_path / "experts", "--target", "256k")
    assert "model_type mixtral is a mixture of 4 experts" in told
