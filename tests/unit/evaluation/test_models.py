"""Which models are evaluated: lengths and base from what is given, from the run, or from the config."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import BloomConfig

from skipwise.errors import ModelError
from skipwise.evaluation.specification import assumed_length, find_models
from skipwise.model.config import load_config
from skipwise.model.extension import plan_extension
from skipwise.model.origin import Origin
from skipwise.recipes.schema import Data
from tests.tiny import checkpoint

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}


@pytest.fixture
def base(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return checkpoint(tmp_path / "base", window=32)


def made(folder: Path, **changes: object) -> Path:
    return checkpoint(folder, window=128, rope_parameters=changes or YARN)


def test_under_ntk_the_base_says_the_original_length(base, tmp_path) -> None:
    name = str(made(tmp_path / "m", rope_type="default", rope_theta=4e4))
    [alone] = find_models([name])
    assert alone.original == alone.target == 128
    one, behind = find_models([name], "base")
    assert (one.original, one.base) == (32, "base (base)")
    assert (behind.label, behind.name, behind.control, behind.base) == ("base (base)", "base", True, "")
    assert find_models([name], None, 64)[0].original == 64


@pytest.mark.parametrize(("original", "lengths", "warned"), [(None, (32, 128), True), (128, (128, 512), False)])
def test_a_linear_scaling_without_original_length_is_warned_of(base, tmp_path, original, lengths, warned) -> None:
    name = str(made(tmp_path / "m", rope_type="linear", rope_theta=1e4, factor=4.0))
    [one] = find_models([name], "", original)
    assert (one.original, one.target) == lengths
    assert bool(assumed_length(one)) is warned


def test_of_other_scalings_and_own_models_no_length_is_assumed(base, tmp_path) -> None:
    own = made(tmp_path / "own", rope_type="linear", rope_theta=1e4, factor=4.0)
    Origin("base", 32, Data()).write(own)
    stated = made(tmp_path / "s", rope_type="linear", rope_theta=1e4, factor=4.0, original_max_position_embeddings=32)
    for name in (base, made(tmp_path / "yarn"), own, stated):
        assert not assumed_length(find_models([str(name)], "")[0])


def test_what_a_model_was_made_from_says_base_and_lengths(base, tmp_path) -> None:
    model = made(tmp_path / "runs" / "mine" / "model", rope_type="default", rope_theta=4e4)
    Origin("base", 32, Data()).write(model)
    one, behind = find_models(["runs/mine/model/"])
    assert (one.label, one.original, one.base) == ("mine", 32, behind.label)
    shutil.copytree(model, tmp_path / "moved")
    assert [m.original for m in find_models(["moved"])] == [32, 32]
    assert [m.control for m in find_models(["runs/mine/model"], "")] == [False]
    shutil.rmtree(base)  # a base that is gone is not one
    assert [m.base for m in find_models(["runs/mine/model"])] == [""]
    (model / "skipwise.json").unlink()
    assert [m.original for m in find_models(["runs/mine/model"])] == [128]


def test_models_of_one_name_are_told_apart_and_none_is_named_twice(base, tmp_path) -> None:
    names = [str(made(tmp_path / folder / "m")) for folder in ("a", "b")]
    assert [m.label for m in find_models(names)] == names
    assert [
        m.label for m in find_models(names, f"{names[1]}/../m")
    ] == names  # the base is one of them, by another path
    for again in (names[0], f"{names[1]}/../m", f"{names[0]}/"):
        assert len(find_models([*names, again])) == 2


def test_other_weights_and_another_interpolation_give_another_digest(base, tmp_path) -> None:
    before = find_models(["base"])[0].digest
    assert len(before) == 16
    checkpoint(tmp_path / "base", window=32, initializer_range=0.3)  # under the same path
    weights = find_models(["base"])[0].digest
    checkpoint(tmp_path / "base", window=128, rope_parameters=YARN, initializer_range=0.3)
    assert len({before, weights, find_models(["base"])[0].digest}) == 3
    one = find_models(["base"])[0]
    extended = replace(one, extension=plan_extension(load_config("base"), target_length=512, existing_rope="replace"))
    assert extended.digest != one.digest
    assert "0x" not in repr(extended.extension)  # an address would make another digest in every process
    assert replace(one, label="x", control=True).digest == one.digest


def test_a_config_without_a_length_takes_the_one_that_is_asked_for(tmp_path, monkeypatch) -> None:
    folder = checkpoint(tmp_path / "m", window=128)
    for module in ("evaluation.specification", "model.origin"):
        monkeypatch.setattr(f"skipwise.{module}.load_config", lambda name: BloomConfig())  # ALiBi has no length
    with pytest.raises(ModelError):
        find_models([str(folder)])
    [found] = find_models([str(folder)], length=512)
    assert (found.original, found.target) == (512, 512)


def test_dynamic_scaling_is_refused(base, tmp_path) -> None:
    with pytest.raises(ModelError):
        find_models([str(made(tmp_path / "m", rope_type="dynamic", rope_theta=1e4, factor=4.0))])
