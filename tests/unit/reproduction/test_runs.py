"""Every exhibit resolves into rows of the paper's method; a run is shared by what decides it."""

from pathlib import Path

import pytest

from reproduction.claims import rows_of
from reproduction.exhibits import EXHIBITS
from reproduction.runs import SCALES, distinct, plan_runs, require_undecided, select
from skipwise.errors import RecipeError
from tests.tiny import checkpoint

MAIN = ("main", "linear, 8x", "pose")


def runs(name: str, seeds=(0,), scale="nano", out="/out", **changes):
    return plan_runs(EXHIBITS[name], SCALES[scale], Path(out), seeds=seeds, changes=changes)


def one(name: str, block: str, row: str, **changes):
    [run] = [r for r in runs(name, **changes) if (r.block, r.row) == (block, row)]
    return run


@pytest.mark.parametrize("scale", sorted(SCALES))
@pytest.mark.parametrize("name", sorted(EXHIBITS))
def test_every_exhibit_resolves_and_names_its_own_rows(name: str, scale: str) -> None:
    exhibit, rows = EXHIBITS[name], runs(name, scale=scale)
    assert len({(run.block, run.row) for run in rows}) == len(rows)
    assert len(rows) == sum(len(exhibit.rows_in(block)) for block in exhibit.blocks)
    for claim in exhibit.claims:
        assert any(claim in exhibit.claims_in(block) for block in exhibit.blocks), rows_of(claim)


@pytest.mark.parametrize("name", sorted(set(EXHIBITS) - {"coverage"}))
def test_every_trained_row_is_the_papers_method_with_windows_of_the_original_length(name: str) -> None:
    rows = runs(name, seeds=())
    assert {run.recipe.seed for run in rows if run.trained} == set(range(EXHIBITS[name].seeds))
    assert {run.recipe.seed for run in rows if not run.trained} <= {0}
    for run in (run for run in rows if run.trained):
        recipe, scheme = run.recipe, run.recipe.positions.scheme
        assert (recipe.method, recipe.data.train_chunk_starts, recipe.positions.no_skip_share) == ("paper", True, 0)
        assert recipe.positions.content == {"v = 0": "zero", "v = u": "aligned"}.get(run.row, "paper")
        assert (recipe.training.max_steps, recipe.training.global_batch_size, recipe.data.min_tokens) == (400, 16, None)
        assert run.tokens == 400 * 16 * (run.target if scheme == "full_length" else run.original)


def test_a_run_is_shared_by_what_decides_it(tmp_path) -> None:
    def key(*which: str, **changes) -> str:
        return one(*which, **changes).key

    pose = key(*MAIN)
    for other in (("interpolation", *MAIN[1:]), ("passkey", *MAIN[1:]), ("chunks", MAIN[1], "N = 2")):
        assert key(*other, **{"evaluation.documents": 2}) == pose
    assert key(*MAIN, **{"training.learning_rate": 1e-3}) != pose
    assert key("main", "linear, 16x", "pose") != pose
    assert key("efficiency", *MAIN[1:]) != pose  # only training itself can measure its steps
    assert key("main", "yarn, 8x", "original") == key("main", "linear, 8x", "original", **{"training.max_steps": 7})
    models = [str(checkpoint(tmp_path / str(width), 256, hidden_size=width)) for width in (32, 48)]
    assert key(*MAIN, model=models[0]) != key(*MAIN, model=models[1])
    assert key("families", "GPT-J", "yarn", out="/elsewhere") == key("families", "GPT-J", "yarn")
    assert len(distinct([runs("content"), runs("content")])) == len(runs("content"))


def test_what_makes_a_row_is_chosen_by_the_tables_names_and_not_changed() -> None:
    for key in ("method", "positions.content"):
        with pytest.raises(RecipeError):
            require_undecided(["data.source", key])
    require_undecided(["training.learning_rate"])
    kept = select({"main": runs("main")}, ["PoSE", "no_skip"], ["linear, 8x"])
    assert [run.row for run in kept["main"]] == ["pose", "no_skip"]
    for rows, blocks in ((["posse"], []), ([], ["yarn, 9x"])):
        with pytest.raises(RecipeError):
            select({"main": runs("main")}, rows, blocks)
