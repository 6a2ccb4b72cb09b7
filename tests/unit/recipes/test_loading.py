"""Recipes from files and command lines: what overrides what, and what is refused with its key and value."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from skipwise.errors import RecipeError
from skipwise.method.interpolation import DEFAULTS
from skipwise.recipes.loading import dump_recipe, load_recipe, parse_changes, read_text, to_text
from skipwise.recipes.schema import Recipe


def message(source: Path | str | None = None, changes: dict[str, Any] | None = None) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(source, changes)
    return str(caught.value)


def test_a_recipe_starts_from_another(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: nano\ndata: {held_out: 0.2}\ntraining: {max_steps: 3}\n")
    mine, nano = load_recipe(tmp_path / "mine.yaml"), load_recipe("nano")
    assert (mine.data.held_out, mine.training.max_steps) == (0.2, 3)
    assert mine.training.learning_rate == nano.training.learning_rate
    (tmp_path / "near.yaml").write_text("extends: mine.yaml\nseed: 3\n")  # beside it, whatever the working folder
    assert load_recipe(tmp_path / "near.yaml") == mine.model_copy(update={"seed": 3})
    (tmp_path / "all.yaml").write_text("extends: qwen3-8b-128k-lora\nlora: null\noriginal_length: null\n")
    everything = load_recipe(tmp_path / "all.yaml")
    assert (everything.lora, everything.original_length) == (None, None)


def test_a_missing_recipe_suggests_the_nearest() -> None:
    assert "llama-7b-16k?" in message("llama-7b-16")


def test_a_dumped_recipe_reads_back_equal_with_every_default(tmp_path: Path) -> None:
    recipe = load_recipe("nano", {"training.weight_decay": 0.1, "evaluation.windows": ["256", "2k"]})
    path = tmp_path / "recipe.yaml"
    dump_recipe(recipe, path)
    assert load_recipe(path) == recipe
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert written["evaluation"]["windows"] == [256, 2048]
    assert written["data"]["held_out"] == 0.1


def test_changes_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("target: 4k\ntraining:\nseed: 3\n", encoding="utf-8")
    recipe = load_recipe(path, {"target": "8k", "training.learning_rate": 1e-4, "positions.chunks": 3})
    assert (recipe.target, recipe.seed, recipe.training.learning_rate) == (8192, 3, 1e-4)
    assert recipe.positions.chunks == 3


@pytest.mark.parametrize("text", ["# nothing yet\n", "training:\n  # max_steps: 3\n"])
def test_an_empty_file_or_section_means_the_defaults(tmp_path: Path, text: str) -> None:
    (tmp_path / "empty.yaml").write_text(text, encoding="utf-8")
    assert load_recipe(tmp_path / "empty.yaml") == Recipe()


@pytest.mark.parametrize("text", ["1e-5", "1.0e-5", "1E-5", ".1e-4", "0.00001"])
def test_numbers_in_every_notation(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"training: {{learning_rate: {text}, adam_epsilon: {text}}}\n", encoding="utf-8")
    training = load_recipe(path).training
    assert (training.learning_rate, training.model_dump()["adam_epsilon"]) == (1e-5, 1e-5)


@given(st.text(alphabet="0123456789+-._eExo: ", max_size=6) | st.integers() | st.floats(allow_nan=False))
def test_yaml_reads_back_what_it_wrote(value: object) -> None:
    assert read_text(to_text([value])) == [value]


def test_set_takes_yaml_values() -> None:
    words = ["a.b=true", "c=[1k, 2e3]", "d=", "e=x=y", "g={h: 1e-8}", "seed=1", " seed =2"]
    found = {"a.b": True, "c": ["1k", 2000.0], "d": None, "e": "x=y", "g": {"h": 1e-8}, "seed": 2}
    assert parse_changes(words) == found


@pytest.mark.parametrize("word", ["training.learning_rate", "=3", "a=[1"])
def test_set_without_key_or_value_is_refused(word: str) -> None:
    with pytest.raises(RecipeError, match=word.rpartition("=")[2].replace("[", r"\[")):
        parse_changes([word])


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"a: [1", "line 1"),
        (b"seed: 1\nmodel: x\nseed: 2\n", "key seed"),
        (b"data: {source: x, source: y}\n", "key source"),
        (b"\xff\xfe\xfa", "0xff"),
        (b"- a\n- b\n", "list"),
        (b"!!python/object/apply:os.getcwd []", "os.getcwd"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused_by_name(tmp_path: Path, content: bytes, value: str) -> None:
    (tmp_path / "recipe.yaml").write_bytes(content)
    said = message(tmp_path / "recipe.yaml")
    assert "recipe.yaml" in said
    assert value in said


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"taget": "2k"}, ["unknown key taget", "target?"]),
        ({"max_steps": 3}, ["unknown key max_steps", "training.max_steps?"]),
        ({"positions.chunk": 3}, ["unknown key positions.chunk", "chunks?"]),
        ({"target": "2x"}, ["target = '2x'"]),
        ({"training.learning_rate": "fast"}, ["training.learning_rate = 'fast'"]),
        ({"data": "my.txt"}, ["data = 'my.txt'"]),
        ({"method": "none"}, ["method = 'none'", "'pose'"]),
        ({"interpolation": "yarm"}, ["interpolation = 'yarm'", "yarn?"]),
        ({"taget": 1, "training.max_steps": 0}, ["\nunknown key taget", "training.max_steps = 0:"]),
    ],
)
def test_a_message_has_key_value_and_nearest_name(changes: dict[str, Any], parts: list[str]) -> None:
    said = message(changes=changes)
    assert len(said) < 500
    for part in parts:
        assert part in said


@pytest.mark.parametrize(
    "changes",
    [
        {"training.hub_token": "hf_mine"},
        {"training": {"accelerator_config": {"API_KEY": "hf_mine"}}},
        {"password": "hf_mine"},
        {"evaluation.models": [{"client_secret": "hf_mine"}]},
    ],
)
def test_a_secret_is_refused_and_not_repeated(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"training": {"hub_token": "hf_mine"}}))
    with pytest.raises(RecipeError) as caught:
        parse_changes(["training.hub_token=[hf_mine"])
    for said in (message(changes=changes), message(tmp_path / "r.yaml"), str(caught.value)):
        assert "HF_TOKEN" in said
        assert "hf_mine" not in said


def test_another_interpolation_drops_the_settings_of_the_recipes_own() -> None:
    assert load_recipe("nano").rope.power
    assert load_recipe("nano", {"interpolation": "yarn"}).rope.settings == DEFAULTS
    assert load_recipe("nano", {"interpolation": "power"}).rope == load_recipe("nano").rope
