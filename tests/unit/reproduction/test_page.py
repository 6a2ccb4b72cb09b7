"""What stands side by side on the page is alike."""

import pytest

from reproduction.exhibits import EXHIBITS
from reproduction.page import _alike, _facts, read_notes, write_pages
from reproduction.runs import plan_runs
from reproduction.scales import SCALES
from skipwise.errors import RecipeError, RunError


def test_rows_are_compared_over_the_seeds_that_all_have() -> None:
    runs = plan_runs(EXHIBITS["content"], SCALES["nano"], seeds=[0, 1], changes={})
    there = [run for run in runs if (run.variant, run.recipe.seed) not in {("v = u", 1), ("v = 0", 1)}]
    kept = [(run.variant, run.recipe.seed) for run in _alike(there)]
    assert kept == [("v uniform", 0), ("v = 0", 0), ("v = u", 0)]
    assert _alike(runs) == runs


def test_rows_of_no_seed_in_common_are_shown_all_the_same() -> None:
    runs = plan_runs(EXHIBITS["content"], SCALES["nano"], seeds=[0, 1], changes={})
    there = [run for run in runs if (run.variant == "v = u") == (run.recipe.seed == 1)]
    assert len(_alike(there)) == 3


def test_what_a_block_of_code_holds_is_no_heading_of_the_notes(tmp_path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("first\n\n## main\n\nseen:\n\n```\n## output\n```\n\nso.\n## passkey\nfound\n")
    assert read_notes(path) == {
        "": "first",
        "main": "seen:\n\n```\n## output\n```\n\nso.",
        "passkey": "found",
    }
    path.write_text("## mian\n")
    with pytest.raises(RecipeError, match="'mian' is no exhibit"):
        read_notes(path)


@pytest.mark.parametrize("facts", ['{"machine": 3}', '{"versions": 3}', '{"training": {"seconds": "x"}}'])
def test_a_damaged_run_is_named(tmp_path, facts) -> None:
    (tmp_path / "run.json").write_text(facts)
    with pytest.raises(RunError, match=r"run.json is damaged .* remove .* and the arm is made again"):
        _facts(tmp_path)


def test_an_out_that_cannot_be_made(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "x"):
        with pytest.raises(RunError, match=r"cannot be made .*; give another --out"):
            write_pages({}, out, None)
