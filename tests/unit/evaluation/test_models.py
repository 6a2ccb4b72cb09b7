"""Which models are evaluated: lengths and base from what is given, from the run, or from the config."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import BloomConfig, GPT2Config, GPT2LMHeadModel

from skipwise.errors import ModelError, RecipeError
from skipwise.evaluation import models
from skipwise.evaluation.models import assumed_length, find_models, other_base
from skipwise.model.config import load_config
from skipwise.model.extension import plan_extension
from skipwise.model.origin import Origin, weights_fingerprint
from skipwise.recipes.schema import Data
from tests.tiny import checkpoint, llama

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}


@pytest.fixture
def base(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return checkpoint(tmp_path / "base", window=32)


def made(folder: Path, **changes: object) -> Path:
    return checkpoint(folder, window=128, rope_parameters=changes or YARN)


def test_the_config_says_the_lengths_of_yarn(base, tmp_path) -> None:
    [one] = find_models([str(made(tmp_path / "m"))])
    assert (one.label, one.original, one.target, one.base, one.control) == ("m", 32, 128, "", False)


def test_under_ntk_the_base_says_the_original_length(base, tmp_path) -> None:
    name = str(made(tmp_path / "m", rope_type="default", rope_theta=4e4))
    [alone] = find_models([name])
    assert alone.original == alone.target == 128
    one, behind = find_models([name], "base")
    assert (one.original, one.base) == (32, "base (base)")
    assert (behind.label, behind.name, behind.control, behind.base) == ("base (base)", "base", True, "")
    assert find_models([name], None, 64)[0].original == 64


@pytest.mark.parametrize(
    ("original", "lengths", "said"),
    [
        (None, (32, 128), "counts as the extended length. If that is the original one, give --original 128"),
        (128, (128, 512), None),
    ],
)
def test_a_linear_scaling_that_states_no_original_length_is_told(base, tmp_path, original, lengths, said) -> None:
    name = str(made(tmp_path / "m", rope_type="linear", rope_theta=1e4, factor=4.0))
    [one] = find_models([name], "", original)
    assert (one.original, one.target) == lengths
    told = assumed_length(one)
    assert told is None if said is None else said in told


def test_of_other_scalings_and_own_models_no_length_is_assumed(base, tmp_path) -> None:
    own = made(tmp_path / "own", rope_type="linear", rope_theta=1e4, factor=4.0)
    Origin("base", 32, Data()).write(own)
    stated = made(tmp_path / "s", rope_type="linear", rope_theta=1e4, factor=4.0, original_max_position_embeddings=32)
    for name in (base, made(tmp_path / "yarn"), own, stated):
        assert assumed_length(find_models([str(name)], "")[0]) is None


def test_another_base_than_its_own_is_told(base, tmp_path) -> None:
    model = made(tmp_path / "mine", rope_type="default", rope_theta=4e4)
    Origin("base", 32, Data(), base_fingerprint=weights_fingerprint("base")).write(model)
    llama(32).save_pretrained("other")
    one, behind = find_models([str(model)], "other")
    assert "mine was extended from base, and is compared with other" in (other_base(one, [one, behind]) or "")
    for compared in (find_models([str(model)]), find_models([str(model)], "")):
        assert other_base(compared[0], compared) is None
    shutil.copytree("base", "copy")  # the same weights
    found = find_models([str(model)], "copy")
    assert other_base(found[0], found) is None
    Origin("owner/base", 32, Data(), base_fingerprint="a commit").write(model)  # which no folder's can be compared with
    found = find_models([str(model)], "other")
    assert other_base(found[0], found) is None


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


def test_the_length_is_what_a_model_was_extended_to_without_the_margin(base, tmp_path) -> None:
    model = made(tmp_path / "mine", rope_type="default", rope_theta=4e4)
    Origin("base", 32, Data(), target_length=112).write(model)
    assert [m.target for m in find_models(["mine"], "")] == [112]


def test_a_base_among_the_models_is_no_control(base, tmp_path) -> None:
    name = str(made(tmp_path / "m"))
    one, other = find_models([name, "base"], "base")
    assert (one.base, other.label, other.base, other.control) == ("base", "base", "", False)


def test_models_of_one_name_are_told_apart_and_none_is_named_twice(base, tmp_path) -> None:
    names = [str(made(tmp_path / folder / "m")) for folder in ("a", "b")]
    assert [m.label for m in find_models(names)] == names
    assert [
        m.label for m in find_models(names, f"{names[1]}/../m")
    ] == names  # the base is one of them, by another path
    for again in (names[0], f"{names[1]}/../m", f"{names[0]}/"):
        with pytest.raises(RecipeError, match="one is named twice"):
            find_models([*names, again])


def test_bases_of_one_name_are_told_apart(base, tmp_path) -> None:
    for run in ("a", "b"):
        checkpoint(tmp_path / run / "base", window=32)
        Origin(f"{run}/base", 32, Data()).write(made(tmp_path / run / "model"))
    found = find_models(["a/model", "b/model"])
    assert [m.base for m in found] == ["a/base (base)", "b/base (base)", "", ""]
    assert [m.name for m in found if m.label in (found[0].base, found[1].base)] == ["a/base", "b/base"]


def test_a_base_that_has_changed_is_compared_with_only_if_it_is_named(base, tmp_path) -> None:
    Origin("base", 32, Data(), base_fingerprint=weights_fingerprint("base")).write(made(tmp_path / "mine"))
    assert find_models(["mine"])[0].base == "base (base)"
    checkpoint(tmp_path / "base", window=16)
    with pytest.raises(
        ModelError, match=r"'mine' was extended from base, whose files have changed .*--base base to compare"
    ):
        find_models(["mine"])
    assert find_models(["mine"], "base")[0].base == "base (base)"
    assert find_models(["mine"], "")[0].base == ""


def test_another_commit_of_a_base_on_the_hub_is_no_change(base, tmp_path, monkeypatch) -> None:
    Origin("owner/base", 32, Data(), base_fingerprint="an earlier commit").write(made(tmp_path / "mine"))
    known = models.load_config
    monkeypatch.setattr(models, "load_config", lambda name: known("base" if name == "owner/base" else name))
    assert models._base_of("mine") == "owner/base"


def test_a_model_that_is_not_there_is_said(base) -> None:
    with pytest.raises(ModelError, match="'nowhere' is neither nano"):
        find_models(["nowhere"])
    with pytest.raises(ModelError, match="'nowhere' is neither nano"):
        find_models(["base"], "nowhere")


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


def test_a_length_beyond_what_the_config_says_is_refused(base) -> None:
    with pytest.raises(RecipeError, match="original 64 must not exceed the 32 tokens of base; lower it"):
        find_models(["base"], None, 64)


def test_a_model_whose_answers_depend_on_what_it_read_is_refused(base, tmp_path) -> None:
    name = str(made(tmp_path / "m", rope_type="dynamic", rope_theta=1e4, factor=4.0))
    with pytest.raises(ModelError, match="rope_type dynamic"):
        find_models([name])


def test_a_model_without_rope_can_be_evaluated(tmp_path) -> None:
    GPT2LMHeadModel(GPT2Config(vocab_size=257, n_positions=64, n_embd=16, n_layer=1, n_head=2)).save_pretrained(
        tmp_path / "gpt2"
    )
    [one] = find_models([str(tmp_path / "gpt2")])
    assert (one.original, one.target) == (64, 64)


def test_a_config_without_a_length_takes_the_one_that_is_asked_for(tmp_path, monkeypatch) -> None:
    folder = checkpoint(tmp_path / "m", window=128)
    for module in ("evaluation.models", "model.origin"):
        monkeypatch.setattr(f"skipwise.{module}.load_config", lambda name: BloomConfig())  # ALiBi has no length
    with pytest.raises(ModelError, match=r"says no length in its config .*; give the lengths to measure"):
        find_models([str(folder)])
    [found] = find_models([str(folder)], length=512)
    assert (found.original, found.target) == (512, 512)
