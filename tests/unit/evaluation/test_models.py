"""Which models are evaluated: lengths and base from what is given, from the run, or from the config."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from skipwise.errors import ModelError, RecipeError
from skipwise.evaluation.models import subjects
from tests.tiny import checkpoint

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}


@pytest.fixture
def base(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return checkpoint(tmp_path / "base", window=32)


def made(folder: Path, **changes: object) -> Path:
    return checkpoint(folder, window=128, rope_parameters=changes or YARN)


def test_the_config_says_the_lengths_of_yarn(base, tmp_path) -> None:
    [one] = subjects([str(made(tmp_path / "m"))], None, None)
    assert (one.label, one.original, one.target, one.base, one.control) == ("m", 32, 128, "", False)


def test_under_ntk_the_base_says_the_original_length(base, tmp_path) -> None:
    name = str(made(tmp_path / "m", rope_type="default", rope_theta=4e4))
    [alone] = subjects([name], None, None)
    assert alone.original == alone.target == 128
    one, behind = subjects([name], "base", None)
    assert (one.original, one.base) == (32, "base (base)")
    assert (behind.label, behind.name, behind.control, behind.base) == ("base (base)", "base", True, "")
    assert subjects([name], None, 64)[0].original == 64


def test_a_run_says_base_and_lengths(base, tmp_path) -> None:
    model = made(tmp_path / "runs" / "mine" / "model", rope_type="default", rope_theta=4e4)
    facts = {"model": {"name": "base", "original_length": 32, "target_length": 128}}
    (model.parent / "run.json").write_text(json.dumps(facts))
    one, behind = subjects(["runs/mine/model/"], None, None)
    assert (one.label, one.original, one.base) == ("mine", 32, behind.label)
    assert [m.control for m in subjects(["runs/mine/model"], "", None)] == [False]
    shutil.rmtree(base)  # a base that is gone is not one
    assert [m.base for m in subjects(["runs/mine/model"], None, None)] == [""]
    (model.parent / "run.json").write_text("[")
    assert [m.original for m in subjects(["runs/mine/model"], None, None)] == [128]


def test_a_base_among_the_models_is_no_control(base, tmp_path) -> None:
    name = str(made(tmp_path / "m"))
    one, other = subjects([name, "base"], "base", None)
    assert (one.base, other.label, other.base, other.control) == ("base", "base", "", False)


def test_models_of_one_name_are_told_apart_and_none_is_named_twice(base, tmp_path) -> None:
    names = [str(made(tmp_path / folder / "m")) for folder in ("a", "b")]
    assert [m.label for m in subjects(names, None, None)] == names
    with pytest.raises(RecipeError, match="one is named twice"):
        subjects([names[0], names[0]], None, None)


def test_a_model_that_is_not_there_is_said(base) -> None:
    with pytest.raises(ModelError, match="'nowhere' is neither nano"):
        subjects(["nowhere"], None, None)
    with pytest.raises(ModelError, match="'nowhere' is neither nano"):
        subjects(["base"], "nowhere", None)


def test_weights_that_change_are_noticed(base, tmp_path) -> None:
    before = subjects(["base"], None, None)[0].weights
    checkpoint(tmp_path / "other", window=32, initializer_range=0.3)
    assert subjects(["other"], None, None)[0].weights != before


def test_a_model_without_rope_can_be_evaluated(tmp_path) -> None:
    GPT2LMHeadModel(
        GPT2Config(vocab_size=257, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    ).save_pretrained(tmp_path / "gpt2")
    [one] = subjects([str(tmp_path / "gpt2")], None, None)
    assert (one.original, one.target) == (64, 64)
