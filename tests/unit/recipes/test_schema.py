"""Settings: defaults, bounds, methods, and what contradicts each other."""

import re
from pathlib import Path
from typing import Any

import pytest

import skipwise
from skipwise.errors import RecipeError
from skipwise.recipes.loading import dump_recipe, load_recipe, shipped_recipes
from skipwise.recipes.schema import RATES, Recipe

PAPER_RUNS = {f"{family}-16k": 16384 for family in ("llama-7b", "llama2-7b", "gptj-6b", "baichuan2-7b")}
PAPER_RUNS["llama-7b-128k"] = 131072


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_loads_and_begins_with_a_comment_on_its_origin(name: str) -> None:
    recipe = load_recipe(name)
    assert load_recipe(f"recipes/{name}.yaml") == recipe
    text = (Path(skipwise.__file__).parent / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ")


@pytest.mark.parametrize("name", PAPER_RUNS)
def test_a_paper_recipe_has_the_papers_settings(name: str) -> None:
    recipe = load_recipe(name)
    training, evaluation = recipe.training, recipe.evaluation
    assert (recipe.target, recipe.interpolation) == (PAPER_RUNS[name], "linear")
    assert (training.max_steps, training.global_batch_size, training.learning_rate) == (1000, 64, 2e-5)
    assert (training.warmup_steps, training.optim) == (10, "adamw_torch")
    paper = {"lengths": "paper", "skips": "uniform", "content": "paper", "no_skip_share": 0.0}
    assert recipe.positions.model_dump() == {"scheme": "pose", "chunks": 2, **paper}
    assert recipe.method == "paper"
    assert recipe.data.train_chunk_starts
    assert recipe.data.min_tokens in (2048, 4096)
    assert training.model_extra == {"adam_beta2": 0.999, "gradient_checkpointing": True}
    long = recipe.target > 16384
    assert (evaluation.stride, evaluation.num_prompts) == ((16384, 0) if long else (1024, 50))
    assert evaluation.windows is None or max(evaluation.windows) == recipe.target


def test_defaults_are_valid_and_not_shared() -> None:
    first, second = Recipe(), Recipe()
    first.evaluation.models.clear()
    first.training.max_steps = 1
    assert second.evaluation.models == ["original", "untrained", "trained"]
    assert second == load_recipe() == load_recipe(None, {})


def test_a_recipes_own_settings_win_over_those_of_its_method(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("positions: {no_skip_share: 0.2}\n")
    (tmp_path / "child.yaml").write_text("extends: recipe.yaml\nmethod: paper\n")
    assert load_recipe(tmp_path / "recipe.yaml").data.train_chunk_starts is False
    child = load_recipe(tmp_path / "child.yaml")
    assert child.positions.no_skip_share == 0.2
    assert (child.data.train_chunk_starts, child.training.adam_beta2) == (True, 0.999)


@pytest.mark.parametrize(("old", "new"), [("paper", "pose"), ("pose", "paper")])
@pytest.mark.parametrize("by", ["--set", "extends"])
def test_a_method_named_anew_wins_over_the_file_of_a_finished_run(old: str, new: str, by: str, tmp_path: Path) -> None:
    dump_recipe(load_recipe("nano", {"method": old, "positions.chunks": 3}), tmp_path / "recipe.yaml")
    if by == "extends":
        (tmp_path / "child.yaml").write_text(f"extends: recipe.yaml\nmethod: {new}\n")
        found = load_recipe(tmp_path / "child.yaml")
    else:
        found = load_recipe(tmp_path / "recipe.yaml", {"method": new})
    wanted = load_recipe(None, {"method": new, "positions.chunks": 3})
    assert (found.positions, found.data.train_chunk_starts) == (wanted.positions, wanted.data.train_chunk_starts)
    assert found.training.global_batch_size == 4
    assert load_recipe(tmp_path / "recipe.yaml", {"method": old}) == load_recipe(tmp_path / "recipe.yaml")


@pytest.mark.parametrize(
    ("given", "original", "window"), [(None, 256, 256), (None, 32768, 4096), ("32k", 32768, 32768)]
)
def test_a_training_window_is_short_unless_a_longer_one_is_asked_for(
    given: str | None, original: int, window: int
) -> None:
    assert Recipe(train_length=given).train_length_of(original) == window


def test_lora_turned_on_or_off_over_a_finished_runs_file_takes_its_own_rate(tmp_path: Path) -> None:
    full, lora = tmp_path / "full.yaml", tmp_path / "lora.yaml"
    dump_recipe(load_recipe(None), full)
    dump_recipe(load_recipe(None, {"lora": {}}), lora)
    assert (RATES[False], RATES[True]) == (2e-5, 2e-4)
    for path, changes, rate in [
        (full, {"lora": {}}, 2e-4),
        (full, {"lora.r": 8}, 2e-4),
        (full, {"lora": {}, "training.learning_rate": 1e-5}, 1e-5),
        (lora, {"lora.r": 8}, 2e-4),
        (lora, {"lora": None}, 2e-5),
    ]:
        assert load_recipe(path, changes).training.learning_rate == rate
    full.write_text("training: {learning_rate: 2e-5}\n")  # says nothing of LoRA, so it means this rate
    assert load_recipe(full, {"lora": {}}).training.learning_rate == 2e-5


@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
def test_any_training_argument_may_be_set(name: str) -> None:
    recipe = load_recipe(None, {"training.weight_decay": 0.1, f"training.{name}": True})
    extra = {"adam_beta2": 0.95, "weight_decay": 0.1, "gradient_checkpointing": True}
    assert recipe.training.model_extra == extra


@pytest.mark.parametrize(
    "changes",
    [
        {"positions.chunks": 0},
        {"data.held_out": 1},
        {"seed": -1},
        {"training.max_steps": 0},
        {"training.learning_rate": 0},
        {"train_length": 999999999999},
        {"evaluation.num_prompts": -1},
        {"evaluation.save_best": "first"},
    ],
)
def test_a_value_out_of_its_bounds_is_refused(changes: dict[str, Any]) -> None:
    [(key, value)] = changes.items()
    with pytest.raises(RecipeError, match=re.escape(f"{key} = {value!r}")):
        load_recipe(None, changes)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"evaluation.save_best": True}, ["evaluation.save_best", "400"]),
        (
            {"evaluation.save_best": True, "evaluation.eval_steps": [9], "training.max_steps": 9},
            ["evaluation.eval_steps [9]"],
        ),
        ({"evaluation.eval_steps": [5, 50], "training.max_steps": 9}, ["evaluation.eval_steps [50]", "max_steps 9"]),
        ({"data.streaming": True}, ["data.max_train_tokens"]),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(None, changes)
    for part in parts:
        assert part in str(caught.value)


def test_a_kept_window_takes_no_interpolation_of_a_recipe() -> None:
    recipe = load_recipe("nano", {"target": "window"})
    assert (recipe.interpolation, recipe.rope.power) == ("auto", None)
    assert (
        load_recipe("nano", {"target": "window", "interpolation": "yarn"}).interpolation == "yarn"
    )  # refused with the model
