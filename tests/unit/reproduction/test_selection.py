"""What a command may change and choose."""

import pytest

from reproduction.exhibits import EXHIBITS
from reproduction.runs import plan_runs
from reproduction.scales import SCALES
from reproduction.selection import require_same_budget, require_undecided, select
from skipwise.errors import RecipeError


def plans(*names: str, scale="nano", **changes):
    return {name: plan_runs(EXHIBITS[name], SCALES[scale], seeds=[0], changes=changes) for name in names}


@pytest.mark.parametrize(
    ("exhibit", "key", "instead"),
    [
        ("main", "interpolation", "--setting"),
        ("main", "target", "--setting"),
        ("main", "seed", "--seeds"),
        ("main", "evaluation.arms", "--arm"),
        ("content", "positions.content", "--arm"),
        ("chunks", "positions.chunks", "--arm"),
    ],
)
def test_what_makes_a_row_cannot_be_changed(exhibit, key, instead) -> None:
    with pytest.raises(
        RecipeError, match=rf"--set {key}: the rows of {exhibit} would no longer .* choose by {instead}"
    ):
        require_undecided(["coverage", exhibit], ["data.source", key])
    require_undecided(["main"], ["positions.content", "training.learning_rate"])


@pytest.mark.parametrize(("scale", "batch", "multiple"), [("nano", 2, 8), ("nano", 12, 8), ("paper", 7, 8)])
def test_arms_of_unequal_budget_are_refused(scale, batch, multiple) -> None:
    main = plans("main", scale=scale, **{"training.batch_size": batch})
    with pytest.raises(RecipeError, match=rf"full, seed 0: a step of {batch} x .* to a multiple of {multiple}"):
        require_same_budget(main)
    require_same_budget(select(main, ["pose", "short", "original"], []))
    require_same_budget(plans("main", "gap", "extreme", "original-ability", scale=scale))


def test_windows_that_are_wider_need_a_batch_to_divide() -> None:
    with pytest.raises(RecipeError, match=r"windows twice as long.*to a multiple of 2"):
        require_same_budget(
            select(plans("gap", **{"training.batch_size": 3}), ["pose, windows twice as long"], ["yarn, 8x"])
        )


def test_rows_are_chosen_as_the_tables_write_them() -> None:
    kept = select(plans("main"), ["PoSE", "PI-only", "full-length"], ["linear, 8x"])
    assert [run.variant for run in kept["main"]] == ["pi-only", "full", "pose"]


def test_a_choice_of_nothing_is_refused() -> None:
    with pytest.raises(RecipeError, match="none of these exhibits has the arm randpos in the setting yarn, 8x"):
        select(plans("main", "interpolation"), ["randpos"], ["yarn, 8x"])
