"""Which folder a run takes, what it is resumed by, and what holds no run."""

import os
import shutil
from pathlib import Path

import pytest

from skipwise.errors import RunError
from skipwise.recipes.loading import load_recipe
from skipwise.results.run_folder import RunFolder
from skipwise.training.run import begin_run, open_run, recipe_of


def begun(folder: Path, **changes) -> RunFolder:
    run_folder = open_run(load_recipe(None, changes), folder, "name", resume=False)
    begin_run(run_folder, load_recipe(None, changes), resume=False)
    run_folder._lock.release(force=True)
    return run_folder


@pytest.mark.parametrize(
    ("key", "value", "decides"),
    [
        ("evaluation.windows", [256], False),
        ("evaluation.steps", [1], False),
        ("evaluation.segments", 5, False),
        ("data.cache", "x", False),
        ("data.workers", 2, False),
        ("training.gradient_checkpointing", True, False),
        ("training.activation_checkpointing", True, False),
        ("data.source", "x", True),
        ("training.weight_decay", 0.1, True),
        ("positions.chunks", 3, True),
    ],
)
def test_a_run_is_resumed_by_what_decides_its_model(tmp_path, key, value, decides) -> None:
    begun(tmp_path / "run")
    recipe = load_recipe(None, {key: value})
    if decides:
        with pytest.raises(RunError, match=f"was begun with {key} = "):
            open_run(recipe, tmp_path / "run", "name", resume=True)
    else:
        assert open_run(recipe, tmp_path / "run", "name", resume=True).path == tmp_path / "run"


@pytest.mark.parametrize(
    ("begun_with", "now", "told"),
    [
        (
            {"lora": {}},
            {},
            "with --lora, now it is left out, and with training.learning_rate = 0.0002, now it is 2e-05",
        ),
        (
            {},
            {"lora": {"rank": 4}},
            "without --lora, now it is given, and with training.learning_rate = 2e-05, now it is 0.0002",
        ),
        ({"lora": {"rank": 8}}, {"lora": {"rank": 4}}, "with lora.rank = 8, now it is 4"),
        (
            {"method": "paper"},
            {},
            "with method = 'paper', now it is 'skipwise', and with positions.content = 'uniform', now .*",
        ),
        ({"seed": 2}, {"seed": 1}, "with seed = 2, now it is 1"),
    ],
)
def test_the_setting_that_others_follow_from_is_named(tmp_path, begun_with, now, told) -> None:
    begun(tmp_path / "run", **begun_with)
    with pytest.raises(RunError, match=f"was begun {told}: resume with the recipe it began with"):
        open_run(load_recipe(None, now), tmp_path / "run", "name", resume=True)


@pytest.mark.parametrize(
    ("key", "value", "decides"),
    [
        ("evaluation.keep", "last", True),
        ("evaluation.steps", [1, 2], True),
        ("evaluation.segments", 5, True),
        ("evaluation.source", ["b", "a"], True),
        ("evaluation.source", ["a", "b"], False),
        ("evaluation.windows", [256], False),
    ],
)
def test_where_the_best_step_is_kept_what_chooses_it_decides_too(tmp_path, key, value, decides) -> None:
    best = {"evaluation.keep": "best", "evaluation.steps": [1], "evaluation.source": ["a"]}
    begun(tmp_path / "run", **best)
    recipe = load_recipe(None, best | {key: value})
    if decides:
        with pytest.raises(RunError, match=f"was begun with {key} = "):
            open_run(recipe, tmp_path / "run", "name", resume=True)
    else:
        assert open_run(recipe, tmp_path / "run", "name", resume=True)


def test_a_run_that_keeps_the_last_step_is_not_resumed_to_the_best(tmp_path) -> None:
    begun(tmp_path / "run")
    best = load_recipe(None, {"evaluation.keep": "best", "evaluation.steps": [1]})
    with pytest.raises(RunError, match=r"with evaluation\.keep = 'last', now it is 'best'"):
        open_run(best, tmp_path / "run", "name", resume=True)


def test_the_newest_run_of_the_recipe_is_resumed(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [begun(None, seed=seed).path for seed in (0, 0, 1)]
    assert runs == [Path("runs/name"), Path("runs/name-2"), Path("runs/name-3")]
    begun(Path("runs/name-12"), seed=1)
    Path("runs/name-2-other").mkdir()
    Path("runs/name-11").mkdir()
    Path("runs/name-11/recipe.yaml").write_text("seed: 0")  # of another version: it names no method
    assert open_run(load_recipe(), None, "name", resume=True).path == Path("runs/name-2")
    assert open_run(load_recipe(None, {"seed": 1}), None, "name", resume=True).path == Path("runs/name-12")
    Path("runs/name-11/recipe.yaml").write_text("method: [")
    with pytest.raises(RunError, match="name-11 holds no run that can be read"):  # perhaps the one that is meant
        open_run(load_recipe(), None, "name", resume=True)
    shutil.rmtree("runs/name-11")
    with pytest.raises(RunError, match="no run of this recipe under runs/name"):
        open_run(load_recipe(None, {"seed": 2}), None, "name", resume=True)


def test_places_that_hold_no_run(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file exists and is not a run of skipwise"):
        open_run(load_recipe(), tmp_path / "file", "name", resume=False)
    with pytest.raises(RunError, match="new holds no run"):
        open_run(load_recipe(), tmp_path / "new", "name", resume=True)
    with pytest.raises(RunError, match=r"holds no run: there is no recipe\.yaml; give the folder of a run"):
        recipe_of(tmp_path)
    (tmp_path / "recipe.yaml").write_text("[1]")
    with pytest.raises(RunError, match=r"holds no run that can be read: recipe\.yaml: .* must hold keys and values"):
        recipe_of(tmp_path)
    (tmp_path / "recipe.yaml").write_text("# nothing")
    with pytest.raises(RunError, match=r"holds no run that can be read: recipe\.yaml is empty; restore it"):
        recipe_of(tmp_path)
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / ".lock").touch()
    assert open_run(load_recipe(), tmp_path / "killed", "name", resume=False)


def test_an_edited_recipe_is_refused_by_its_key(tmp_path) -> None:
    run = begun(tmp_path / "run")
    edited = load_recipe(run.recipe, {"seed": 5})
    run.recipe.write_text(run.recipe.read_text().replace("seed: 0", "seed: 5"))
    assert load_recipe(run.recipe) == edited
    for recipe in (edited, load_recipe()):
        with pytest.raises(RunError, match=r"recipe\.yaml was edited: .* seed = 0, .* has 5"):
            open_run(recipe, tmp_path / "run", "name", resume=True)


def test_a_recipe_whose_evaluation_was_edited_is_refused_too(tmp_path) -> None:
    run = begun(tmp_path / "run")
    run.recipe.write_text(run.recipe.read_text().replace("prompt_trials: 50", "prompt_trials: 5"))
    with pytest.raises(RunError, match=r"recipe\.yaml was edited since the run was begun"):
        open_run(load_recipe(), run.path, "name", resume=True)


def test_the_recipe_is_written_once_and_first(tmp_path, monkeypatch) -> None:
    replaced: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (replaced.append(new.name), replace(old, new)))
    run = begun(tmp_path / "run")
    assert replaced == ["recipe.yaml", "run.json"]
    before = run.recipe.stat()
    changed = load_recipe(None, {"evaluation.windows": [256]})
    begin_run(open_run(changed, run.path, "name", resume=True), changed, resume=True)
    assert run.recipe.stat() == before


def test_a_folder_that_another_process_took_meanwhile_is_refused(tmp_path) -> None:
    mine = open_run(load_recipe(), tmp_path / "run", "name", resume=False)
    begun(tmp_path / "run", seed=1)
    with pytest.raises(RunError, match="holds another run"):
        begin_run(mine, load_recipe(), resume=False)
