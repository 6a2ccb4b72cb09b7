"""Arms are what they say, runs are shared by what decides them, and a rule can fail."""

import math

import pytest

from skipwise.errors import RecipeError
from skipwise.reproduction.exhibits import BASELINES, EXHIBITS, Finds, Lower, find_exhibit
from skipwise.reproduction.runs import plan_runs
from skipwise.reproduction.scores import Scores, judge
from skipwise.reproduction.tables import exhibit_markdown


def runs(name: str, seeds=(0,), **changes):
    return plan_runs(EXHIBITS[name], "nano", seeds=seeds, changes=changes)


@pytest.mark.parametrize("name", sorted(EXHIBITS))
def test_every_exhibit_resolves_and_names_its_own_variants(name: str) -> None:
    exhibit = EXHIBITS[name]
    assert len(runs(name)) == len(exhibit.settings) * len(exhibit.variants)
    for claim in exhibit.claims:
        arms = (claim.arm, claim.other) if isinstance(claim, Lower) else (claim.arm,)
        assert set(arms) <= set(exhibit.variants)
    for setting in exhibit.settings:
        assert set(setting.paper) <= set(exhibit.variants)


def test_all_arms_train_on_the_same_tokens_in_as_many_steps() -> None:
    for run in runs("main"):
        if run.trained:
            training, full = run.recipe.training, run.recipe.positions.scheme == "full"
            assert training.max_steps == 400
            assert training.batch_size * (run.recipe.target if full else 256) == 16 * 256


def test_a_run_is_shared_by_what_decides_it(tmp_path) -> None:
    def key(name: str, label: str, variant: str, **changes) -> str:
        (run,) = [r for r in runs(name, **changes) if (r.setting, r.variant) == (label, variant)]
        return str(run.folder(tmp_path))

    pose = key("main", "linear, 8x", "pose")
    assert key("interpolation", "linear, 8x", "pose") == pose
    assert key("main", "linear, 8x", "pose", **{"evaluation.documents": 2}) == pose
    assert key("main", "linear, 8x", "pose", **{"training.learning_rate": 1e-3}) != pose
    assert key("main", "linear, 16x", "pose") != pose
    assert key("interpolation", "yarn, 8x", "pose") == key("content", "yarn, 8x", "v uniform")
    assert key("interpolation", "yarn, 8x", "original") == key("main", "linear, 8x", "original")
    assert key("interpolation", "yarn, 8x", "pi-only") != key("main", "linear, 8x", "pi-only")


def test_baselines_have_one_seed() -> None:
    seeds = [(r.variant in BASELINES, r.recipe.seed) for r in runs("passkey", seeds=(0, 1, 2))]
    assert sorted(set(seeds)) == [(False, 0), (False, 1), (False, 2), (True, 0)]
    assert len(seeds) == 2 + 5 * 3


def test_unknown_exhibits_are_named() -> None:
    with pytest.raises(
        RecipeError, match=r"exhibit 'mian' is unknown \(did you mean main\?\); there are main, "
    ):
        find_exhibit("mian")


def scored(**perplexities: tuple[float, ...]) -> dict[str, Scores]:
    windows = (256, 512, 1024)
    return {
        arm: Scores({("x", w): [math.log(v)] for w, v in zip(windows, values, strict=False)})
        for arm, values in perplexities.items()
    }


@pytest.mark.parametrize(
    ("claim", "holds", "worst"),
    [
        (Lower("a", "b"), False, "1.200 of it at 256 (x)"),
        (Lower("a", "b", factor=1.2), True, "1.200 of it at 256 (x)"),
        (Lower("a", "b", beyond=True), True, "0.500 of it at 512 (x)"),
        (Lower("a", "c"), None, "not measured"),
    ],
)
def test_an_order_is_judged_at_its_worst_length_up_to_the_target(claim, holds, worst) -> None:
    scores = scored(a=(12.0, 10.0, 99.0), b=(10.0, 20.0, 10.0))
    finding = judge(claim, scores, 256, 512)
    assert (finding.holds, finding.worst) == (holds, worst)


@pytest.mark.parametrize(
    ("claim", "holds", "worst"),
    [
        (Finds("a", least=0.9), False, "50% at 512"),
        (Finds("a", least=0.5), True, "50% at 512"),
        (Finds("a", most=0.1), False, "100% at 256"),
        (Finds("a", most=0.5, beyond=True), True, "50% at 512"),
        (Finds("b", least=0.9), None, "not measured"),
    ],
)
def test_retrieval_is_judged_at_its_worst_length(claim, holds, worst) -> None:
    scores = {"a": Scores(hits={256: (10, 10), 512: (5, 10), 1024: (0, 10)})}
    finding = judge(claim, scores, 256, 512)
    assert (finding.holds, finding.worst) == (holds, worst)


def test_the_table_has_mean_spread_and_the_papers_figures() -> None:
    scores = scored(pose=(10.0, 9.0, 9.0), full=(10.0, 9.0, 9.0))
    scores["pose"].nll["x", 512] = [math.log(9.0), math.log(9.2)]
    text = exhibit_markdown(EXHIBITS["main"], runs("main"), {"linear, 8x": scores}, 256)
    assert "| PoSE | 10.0 | 9.10 ± 0.14 | 9.00 | 4.84 | 4.68 | 4.60 |" in text
    assert "- pose at most 1.03 x full, at every length: holds (1.011 of it at 512 (x))" in text
    assert "- pose at most pi-only, at every length: not measured (not measured)" in text
    assert "linear, 16x" not in text
