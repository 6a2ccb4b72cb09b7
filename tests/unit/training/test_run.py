"""Which folder a run takes, what it is resumed by, and what training leaves to be saved."""

import os
from pathlib import Path

import pytest

from skipwise.errors import RunError
from skipwise.recipes.loading import load_recipe
from skipwise.results.records import TrainingRecord, append_record
from skipwise.results.run_folder import RunFolder
from skipwise.training import run as subject
from skipwise.training.run import begin_run, open_run, recipe_of


def begun(folder: Path | None, **changes) -> RunFolder:
    run_folder = open_run(load_recipe(None, changes), folder, "name", resume=False)
    begin_run(run_folder, load_recipe(None, changes), resume=False)
    run_folder._lock.release(force=True)
    return run_folder


BEST = {"evaluation.save_best": True, "evaluation.eval_steps": [1], "evaluation.source": ["a"]}


@pytest.mark.parametrize(
    ("begun_with", "key", "value", "decides"),
    [
        ({}, "evaluation.windows", [256], False),
        ({}, "training.activation_checkpointing", True, False),
        ({}, "training.weight_decay", 0.1, True),
        ({"lora": {"r": 8}}, "lora.r", 4, True),
        # Where the best step is kept, what chooses it decides too.
        (BEST, "evaluation.save_best", False, True),
        (BEST, "evaluation.eval_steps", [1, 2], True),
        (BEST, "evaluation.source", ["b", "a"], True),
        (BEST, "evaluation.source", ["a", "b"], False),
    ],
)
def test_a_run_is_resumed_by_what_decides_its_model(tmp_path, begun_with, key, value, decides) -> None:
    begun(tmp_path / "run", **begun_with)
    recipe = load_recipe(None, begun_with | {key: value})
    if decides:
        with pytest.raises(RunError, match=f"{key} = "):
            open_run(recipe, tmp_path / "run", "name", resume=True)
    else:
        assert open_run(recipe, tmp_path / "run", "name", resume=True).path == tmp_path / "run"


def test_the_newest_run_of_the_recipe_is_resumed(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [begun(None, seed=seed).path for seed in (0, 0, 1)]
    assert runs == [Path("runs/name"), Path("runs/name-2"), Path("runs/name-3")]
    for age, path in enumerate(reversed(runs)):
        os.utime(path / "recipe.yaml", (1000 - age, 1000 - age))
    assert open_run(load_recipe(), None, "name", resume=True).path == Path("runs/name-2")
    with pytest.raises(RunError, match="runs/name"):
        open_run(load_recipe(None, {"seed": 2}), None, "name", resume=True)


def test_places_that_hold_no_run(tmp_path) -> None:
    (tmp_path / "file").touch()
    for name, resume in (("file", False), ("new", True)):
        with pytest.raises(RunError, match=name):
            open_run(load_recipe(), tmp_path / name, "name", resume=resume)
    with pytest.raises(RunError, match=r"recipe\.yaml"):
        recipe_of(tmp_path)
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / ".lock").touch()
    assert open_run(load_recipe(), tmp_path / "killed", "name", resume=False)


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
    run.facts.unlink()  # as if killed between both
    assert open_run(load_recipe(), run.path, "name", resume=True)
    with pytest.raises(RunError, match="seed = 0, now 1"):
        open_run(load_recipe(None, {"seed": 1}), run.path, "name", resume=True)


def test_a_folder_that_another_process_took_meanwhile_is_refused(tmp_path) -> None:
    mine = open_run(load_recipe(), tmp_path / "run", "name", resume=False)
    begun(tmp_path / "run", seed=1)
    with pytest.raises(RunError, match=str(tmp_path / "run")):
        begin_run(mine, load_recipe(), resume=False)


def test_a_run_is_timed_by_its_records_with_the_part_before_a_resume(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert subject._timed(run, 300) == {}
    for step, tokens, speed in ((1, 100, 50.0), (2, 200, 25.0), (3, 300, 100.0)):
        append_record(run.results, TrainingRecord("pose", step, 1.0, 1e-3, 1.0, tokens, speed))
    assert subject._timed(run, 300) == {"seconds": 7.0, "tokens_per_second": 300 / 7}
    assert subject._timed(run, 400) == {}  # the last record is lost
