"""Every exhibit resolves into rows of the paper's method; a run is shared by what decides it."""

from pathlib import Path

import pytest

from reproduction.bases import BASES
from reproduction.claims import rows_of
from reproduction.exhibits import EXHIBITS
from reproduction.runs import SCALES, distinct, plan_runs, require_undecided, select
from skipwise.errors import RecipeError
from skipwise.evaluation.specification import specification_of
from tests.tiny import checkpoint

MAIN = ("main", "linear, 8x", "pose")
PASSKEY = ("passkey", "yarn, 8x", "pose")


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


def test_what_is_measured_follows_the_exhibit_and_what_the_user_changes() -> None:
    rule = one(*PASSKEY).recipe.evaluation
    assert rule.prompt_lengths == [256, 512, 1024, 2048, 3072, 4096]
    assert (rule.num_prompts, rule.source, rule.windows[-1]) == (50, ["stdlib", "pydoc"], 2048)
    changed = one(*PASSKEY, **{"evaluation.num_prompts": 3, "evaluation.source": ["x"]}).recipe.evaluation
    assert (changed.num_prompts, changed.source) == (3, ["x"])
    assert one("efficiency", *MAIN[1:], **{"training.max_steps": 50}).recipe.evaluation.eval_steps == [10, 30, 50]
    extreme = one("extreme", "48x", "linear").recipe.evaluation
    assert (extreme.windows, extreme.stride, extreme.tokens_per_document) == ([4096, 8192, 12288], 2048, 12288)
    near = one("original-ability", "yarn, 64x", "pose").recipe
    assert specification_of(near, 256, near.target, "float32").segment_lengths == [256]


def test_families_begin_from_a_base_of_their_own_and_at_full_size_from_the_papers() -> None:
    models = {run.block: run for run in runs("families")}
    assert (models["LLaMA"].recipe.model, models["LLaMA"].base) == ("nano", "")
    for family, base in BASES.items():
        assert (models[family].base, models[family].original, models[family].target) == (family, base.window, 2048)
    assert not any(run.base for run in runs("families", model="nano"))
    papers = {run.block: run for run in runs("families", scale="paper")}
    assert {run.target for run in papers.values()} == {16384}


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
