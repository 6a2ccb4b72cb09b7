"""Every exhibit resolves into arms that train on equal tokens; a run is shared by what decides it."""

import pytest

from reproduction.claims import arms_of
from reproduction.exhibits import BASELINES, EXHIBITS, TRAINED
from reproduction.runs import plan_runs
from reproduction.scales import SCALES
from reproduction.selection import chosen_exhibits, require_same_budget, require_undecided, select
from skipwise.errors import RecipeError
from tests.tiny import checkpoint

MAIN = ("main", "linear, 8x", "pose")


def runs(name: str, seeds=(0,), scale="nano", **changes):
    return plan_runs(EXHIBITS[name], SCALES[scale], seeds=seeds, changes=changes)


def one(name: str, label: str, variant: str, **changes):
    [run] = [r for r in runs(name, **changes) if (r.setting, r.variant) == (label, variant)]
    return run


@pytest.mark.parametrize("scale", sorted(SCALES))
@pytest.mark.parametrize("name", sorted(EXHIBITS))
def test_every_exhibit_resolves_and_names_its_own_variants(name: str, scale: str) -> None:
    exhibit, rows = EXHIBITS[name], runs(name, scale=scale)
    settings = [setting for setting in exhibit.settings if scale == "nano" or not setting.miniature]
    assert len(rows) == sum(len(setting.only or exhibit.variants) for setting in settings)
    assert len({(run.setting, run.variant) for run in rows}) == len(rows)
    for claim in exhibit.claims:
        assert set(arms_of(claim)) <= set(exhibit.variants)
    for setting in exhibit.settings:
        for published in setting.published.values():
            assert set(published) <= {*exhibit.variants, *BASELINES, *TRAINED}


def test_arms_train_on_equal_tokens_and_baselines_on_none_once() -> None:
    for run in runs("main"):
        assert run.tokens == (400 * 16 * 256 if run.trained else 0)
        assert not run.trained or run.recipe.data.min_tokens == run.recipe.target
    tokens = {run.variant: run.tokens for run in runs("gap") if run.setting == "yarn, 8x"}
    assert {t for name, t in tokens.items() if "steps" not in name} == {400 * 16 * 256}
    assert {t for name, t in tokens.items() if "steps" in name} == {800 * 16 * 256}
    seeds = [(run.variant in BASELINES, run.recipe.seed) for run in runs("passkey", seeds=(0, 1))]
    assert sorted(set(seeds)) == [(False, 0), (False, 1), (True, 0)]


def test_a_run_is_shared_by_what_decides_it(tmp_path, monkeypatch) -> None:
    def key(*which: str, **changes) -> str:
        return str(one(*which, **changes).folder(tmp_path))

    pose = key(*MAIN)
    assert key("interpolation", "linear, 8x", "pose") == key(*MAIN, **{"evaluation.documents": 2}) == pose
    assert key(*MAIN, **{"training.learning_rate": 1e-3}) != pose
    assert key("main", "linear, 16x", "pose") != pose
    assert key(*MAIN, **{"evaluation.steps": [1, 2]}) != pose  # only training itself can give them
    for arm in BASELINES:
        assert key("main", "linear, 8x", arm, **{"training.max_steps": 7}) == key("main", "linear, 8x", arm)
    assert key("interpolation", "yarn, 8x", "original") == key("main", "linear, 8x", "original")
    models = [checkpoint(tmp_path / str(width), 256, hidden_size=width) for width in (32, 48)]
    assert key(*MAIN, model=str(models[0])) != key(*MAIN, model=str(models[1]))
    family = key("families", "GPT-J", "yarn")
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "elsewhere"))
    assert key("families", "GPT-J", "yarn") == family


@pytest.mark.parametrize(
    ("exhibit", "key"), [("main", "interpolation"), ("main", "seed"), ("content", "positions.content")]
)
def test_what_makes_a_row_cannot_be_changed(exhibit, key) -> None:
    with pytest.raises(RecipeError):
        require_undecided(["coverage", exhibit], ["data.source", key])
    require_undecided(["main"], ["positions.content", "training.learning_rate"])


def test_arms_are_chosen_as_the_tables_write_them_and_of_unequal_budget_refused() -> None:
    main = {"main": runs("main", **{"training.batch_size": 12})}
    with pytest.raises(RecipeError):
        require_same_budget(main)
    kept = select(main, ["PoSE", "PI-only"], ["linear, 8x"])
    assert [run.variant for run in kept["main"]] == ["pi-only", "pose"]
    require_same_budget(kept)
    for arms, settings in ((["posse"], []), (["cream"], ["yarn, 8x"])):
        with pytest.raises(RecipeError):
            select({"main": runs("main"), "interpolation": runs("interpolation")}, arms, settings)
    with pytest.raises(RecipeError):
        chosen_exhibits(["mian"])
