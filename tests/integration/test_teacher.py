"""A run with the base as a teacher, by the real command: the model is whole, a resume is exact, mistakes are explained."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from skipwise.engines.check import lengths_of
from skipwise.evaluation.specification import find_models
from skipwise.results.records import TrainingRecord, read_records
from skipwise.results.run_folder import RunFolder
from skipwise.training.run import recipe_of
from tests.command_line import refused, run
from tests.integration.test_extend import SMALL, command, files  # noqa: F401

pytestmark = pytest.mark.usefixtures("frozen_imports", "undrawn")
QUICK = {"evaluation.arms": "[trained]", "evaluation.prompt_trials": 0, "evaluation.windows": "[512]"}


def cut_off(whole: Path, to: Path) -> Path:
    """Copy a finished run as it was half way."""
    shutil.copytree(whole, to)
    shutil.rmtree(to / "model")
    shutil.rmtree(to / "checkpoints/checkpoint-4")
    return to


def same_weights(one: Path, other: Path) -> bool:
    first, second = (load_file(folder / "model/model.safetensors") for folder in (one, other))
    return all(torch.equal(first[name], second[name]) for name in first)


def losses(folder: Path) -> list[float]:
    return [record.loss for record in read_records(folder / "results.jsonl") if isinstance(record, TrainingRecord)]


def test_it_trains_and_resumes_to_the_same_bits(files, monkeypatch, tmp_path) -> None:  # noqa: F811
    run(monkeypatch, *command(*files, tmp_path / "taught", **{**QUICK, "teacher.weight": 2}))
    run(monkeypatch, "extend", "--resume", "--out", cut_off(tmp_path / "taught", tmp_path / "cut"))
    assert same_weights(tmp_path / "taught", tmp_path / "cut")
    run(monkeypatch, *command(*files, tmp_path / "plain", **QUICK))
    assert all(a > b for a, b in zip(losses(tmp_path / "taught"), losses(tmp_path / "plain"), strict=True))


def test_the_default_method_trains_beyond_the_target_and_promises_the_target(files, monkeypatch, tmp_path) -> None:  # noqa: F811
    """The config says what was trained, the card and the measurements what was asked for; a resume is exact."""
    plain = ("method", "data.passkey")
    words = command(*files, tmp_path / "run", **QUICK)
    words = [
        word
        for i, word in enumerate(words)
        if not word.startswith(plain) and not (word == "--set" and words[i + 1].startswith(plain))
    ]
    run(monkeypatch, *words)
    facts = RunFolder(tmp_path / "run").read()["model"]
    assert (facts["target_length"], facts["factor"]) == (2048, 6.4)
    assert recipe_of(tmp_path / "run").arm == "skipwise"
    config = json.loads((tmp_path / "run/model/config.json").read_text())
    assert (config["max_position_embeddings"], config["rope_parameters"]["factor"]) == (2560, 6.4)
    assert AutoTokenizer.from_pretrained(tmp_path / "run/model").model_max_length == 2048
    assert [found.target for found in find_models([str(tmp_path / "run/model")], "")] == [2048]
    card = (tmp_path / "run/model/README.md").read_text()
    assert "--max-model-len 2048`" in card
    assert "-c 2048`" in card
    assert "yarn x6.4, for 2,560 tokens: a margin of 0.25 of the target" in card
    assert lengths_of(str(tmp_path / "run/model"), None) == (400, 2048)
    run(monkeypatch, "extend", "--resume", "--out", cut_off(tmp_path / "run", tmp_path / "cut"))
    assert same_weights(tmp_path / "run", tmp_path / "cut")


def test_the_text_that_the_base_writes_is_kept(files, monkeypatch, capsys, tmp_path) -> None:  # noqa: F811
    """A resume trains on it again; lost, it is written again, and another one is refused."""
    asked = {**QUICK, "teacher.weight": 2, "teacher.written": 0.5, "train_length": 512}
    whole = tmp_path / "whole"
    run(monkeypatch, *command(*files, whole, **asked))
    texts = np.load(whole / "written.npy")
    assert texts.shape[1] == 400  # the base's window, behind which it writes nonsense
    for name, left in {"kept": texts, "lost": None, "other": texts + 1, "damaged": b"no array"}.items():
        cut = cut_off(whole, tmp_path / name)
        (cut / "written.npy").unlink()
        if isinstance(left, bytes):
            (cut / "written.npy").write_bytes(left)
        elif left is not None:
            np.save(cut / "written.npy", left)
        again = "extend", "--resume", "--out", cut
        if name in ("other", "damaged"):
            wanted = "the written text has changed" if name == "other" else "written.npy cannot be read"
            assert wanted in refused(monkeypatch, capsys, *again)
            continue
        run(monkeypatch, *again)
        assert same_weights(whole, cut)


def test_low_rank_additions_are_taught_by_the_base_that_they_are_added_to(files, monkeypatch, tmp_path) -> None:  # noqa: F811
    """They begin at zero, so the first step has the loss of training all weights."""
    taught = {**QUICK, "teacher.weight": 2, "training.max_steps": 1, "training.warmup_steps": 0}
    run(monkeypatch, *command(*files, tmp_path / "all", **taught))
    run(monkeypatch, *command(*files, tmp_path / "lora", "--lora", **taught))
    assert losses(tmp_path / "lora") == pytest.approx(losses(tmp_path / "all"), rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher.weight": -1}, "teacher.weight = -1: .*greater than or equal to 0"),
        ({"teacher.written_weight": 0}, "teacher.written_weight = 0: .*greater than 0"),
        ({"teacher.weight": 0}, r"teacher\.weight = 0"),
        ({"teacher.weight": 0, "teacher.written": 0.1}, r"teacher\.weight = 0"),
        ({"teacher.weight": 0, "teacher.written_weight": 1}, r"teacher\.weight = 0"),
        ({"teacher.written": 1.5}, "teacher.written = 1.5: .*less than or equal to 1"),
        ({"teacher.written": 0.7, "data.passkey": 0.4}, r"data.passkey \+ teacher.written = 1.1"),
        ({"teacher.wait": 1}, "unknown key teacher.wait .did you mean weight"),
        ({"teacher.weight": 1, "training.label_smoothing_factor": 0.1}, "training.label_smoothing_factor replaces"),
    ],
)
def test_bad_settings_are_explained(files, monkeypatch, capsys, tmp_path, changes, message) -> None:  # noqa: F811
    assert re.search(message, refused(monkeypatch, capsys, *command(*files, tmp_path / "none", **changes)))
