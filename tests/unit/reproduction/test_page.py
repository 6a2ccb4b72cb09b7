"""What stands side by side on the page is alike."""

from skipwise.reproduction.exhibits import EXHIBITS
from skipwise.reproduction.page import _alike
from skipwise.reproduction.runs import plan_runs
from skipwise.reproduction.scales import SCALES


def test_rows_are_compared_over_the_seeds_that_all_have(tmp_path) -> None:
    runs = plan_runs(EXHIBITS["content"], SCALES["nano"], seeds=[0, 1], changes={})
    there = [run for run in runs if (run.variant, run.recipe.seed) not in {("v = u", 1), ("v = 0", 1)}]
    for run in there:
        run.folder(tmp_path).mkdir(parents=True)
        (run.folder(tmp_path) / "results.jsonl").touch()
    kept = [(run.variant, run.recipe.seed) for run in _alike(runs, tmp_path)]
    assert kept == [("v uniform", 0), ("v = 0", 0), ("v = u", 0)]
    for run in runs:
        run.folder(tmp_path).mkdir(parents=True, exist_ok=True)
        (run.folder(tmp_path) / "results.jsonl").touch()
    assert _alike(runs, tmp_path) == runs


def test_rows_of_no_seed_in_common_are_shown_all_the_same(tmp_path) -> None:
    runs = plan_runs(EXHIBITS["content"], SCALES["nano"], seeds=[0, 1], changes={})
    for run in runs:
        if (run.variant == "v = u") == (run.recipe.seed == 1):
            run.folder(tmp_path).mkdir(parents=True)
            (run.folder(tmp_path) / "results.jsonl").touch()
    assert len(_alike(runs, tmp_path)) == 3
