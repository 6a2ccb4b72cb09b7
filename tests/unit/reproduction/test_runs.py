"""Arms are what they say and train on the same tokens; a run is shared by what decides it."""

import pytest

from reproduction import paper
from reproduction.bases import BASES
from reproduction.exhibits import BASELINES, EXHIBITS
from reproduction.runs import ArmRun, plan_runs
from reproduction.scales import SCALES
from skipwise.recipes.loading import load_recipe
from tests.tiny import corpus


def runs(name: str, seeds=(0,), scale="nano", **changes):
    return plan_runs(EXHIBITS[name], SCALES[scale], seeds=seeds, changes=changes)


def one(name: str, label: str, variant: str, **changes):
    (run,) = [r for r in runs(name, **changes) if (r.setting, r.variant) == (label, variant)]
    return run


def test_all_arms_train_on_the_same_tokens_in_as_many_steps_from_the_same_documents() -> None:
    for run in runs("main"):
        if run.trained:
            training, full = run.recipe.training, run.recipe.positions.scheme == "full"
            assert training.max_steps == 400
            assert training.batch_size * (run.recipe.target if full else 256) == 16 * 256
            assert run.recipe.data.min_tokens == run.recipe.target


def test_the_forward_passes_of_full_hold_as_many_tokens() -> None:
    full = one("main", "linear, 8x", "full", **{"training.per_device_train_batch_size": 8})
    assert full.recipe.training.per_device_train_batch_size * full.recipe.target == 8 * 256


def test_a_run_is_shared_by_what_decides_it(tmp_path) -> None:
    def key(*which: str, **changes) -> str:
        return str(one(*which, **changes).folder(tmp_path))

    pose = key("main", "linear, 8x", "pose")
    assert key("interpolation", "linear, 8x", "pose") == pose
    assert key("original-ability", "linear, 8x", "pose") == pose
    assert key("main", "linear, 8x", "pose", **{"evaluation.documents": 2}) == pose
    assert key("main", "linear, 8x", "pose", **{"training.learning_rate": 1e-3}) != pose
    assert key("main", "linear, 16x", "pose") != pose
    assert key("interpolation", "linear, 8x", "pose") == key("content", "linear, 8x", "v uniform")
    assert key("interpolation", "yarn, 8x", "original") == key("main", "linear, 8x", "original")
    assert key("interpolation", "yarn, 8x", "pi-only") != key("main", "linear, 8x", "pi-only")


def test_a_setting_that_is_null_leaves_the_key_as_it_is(monkeypatch) -> None:
    from reproduction import runs as module

    before, known = one("main", "linear, 8x", "pose").key, module.deciding_settings
    monkeypatch.setattr(module, "deciding_settings", lambda recipe: known(recipe) | {"new": None})
    assert one("main", "linear, 8x", "pose").key == before
    monkeypatch.setattr(module, "deciding_settings", lambda recipe: known(recipe) | {"new": 0})
    assert one("main", "linear, 8x", "pose").key != before


@pytest.mark.parametrize(("changes", "key"), [({}, "9cf395ff34b7"), ({"evaluation.steps": [1, 2]}, "f3b23c48e050")])
def test_the_keys_of_finished_runs_are_what_they_were_before_a_step_could_be_kept(changes, key) -> None:
    def of(**more) -> str:
        return ArmRun("", "", load_recipe("nano-pose", changes | more), 256, (8, 256), base="llama").key

    assert of() == of(**{"evaluation.keep": "last"}) == key
    assert of(**{"evaluation.keep": "best", "evaluation.steps": [1, 2]}) != key


def test_untrained_arms_are_shared_whatever_the_training(tmp_path) -> None:
    for arm in BASELINES:
        changed = one("main", "linear, 8x", arm, **{"training.max_steps": 7})
        assert changed.folder(tmp_path) == one("main", "linear, 8x", arm).folder(tmp_path)


def test_a_run_that_measures_its_steps_is_its_own() -> None:
    assert one("efficiency", "yarn, 8x", "pose").key != one("passkey", "yarn, 8x", "pose").key


def test_another_base_is_another_run(tmp_path) -> None:
    from tests.tiny import checkpoint

    keys = {one("passkey", "yarn, 8x", "pose", model=str(checkpoint(tmp_path / n, 256, **c))).key for n, c in BASES_}
    assert len(keys) == 2


BASES_ = [("a", {}), ("b", {"hidden_size": 48})]


def test_baselines_have_one_seed() -> None:
    seeds = [(r.variant in BASELINES, r.recipe.seed) for r in runs("passkey", seeds=(0, 1, 2))]
    assert sorted(set(seeds)) == [(False, 0), (False, 1), (False, 2), (True, 0)]
    assert len(seeds) == 2 * (2 + 5 * 3)


def test_an_exhibit_of_the_papers_own_text_leaves_others_out() -> None:
    def read(name: str, *texts: str) -> list[str] | None:
        return one(name, "yarn, 48x", "linear", **{"evaluation.source": list(texts)}).recipe.evaluation.source

    assert read("extreme", "modules", "eval/books", "math") == ["eval/books"]
    assert read("extreme", "modules", "math") == ["modules", "math"]  # none of them is
    main = one("main", "linear, 8x", "pose", **{"evaluation.source": ["modules", "books"]}).recipe
    assert main.evaluation.source == ["modules", "books"]


def test_what_is_measured_follows_the_exhibit() -> None:
    rule = one("passkey", "yarn, 8x", "pose").recipe.evaluation
    assert rule.prompt_lengths == [256, 512, 1024, 2048, 3072, 4096]
    assert rule.prompt_trials == 50
    assert rule.segment_lengths == [2048]
    assert rule.source == ["stdlib", "pydoc"]
    extreme = one("extreme", "yarn, 48x", "linear").recipe
    assert extreme.evaluation.windows == [4096, 8192, 12288]
    assert extreme.interpolation == "linear"
    assert extreme.data.min_tokens == 4096
    ability = one("original-ability", "yarn, 64x", "pose").recipe
    assert ability.evaluation.windows == ability.evaluation.segment_lengths == [256]


def test_the_user_wins() -> None:
    changed = one("passkey", "yarn, 8x", "pose", **{"evaluation.prompt_trials": 3, "evaluation.source": ["x"]})
    assert changed.recipe.evaluation.prompt_trials == 3
    assert changed.recipe.evaluation.source == ["x"]


def test_tokens_are_steps_times_windows_times_their_width() -> None:
    pose, full, original = (one("passkey", "yarn, 8x", variant) for variant in ("pose", "full", "original"))
    assert (pose.window, full.window) == (256, 2048)
    assert pose.tokens == full.tokens == 400 * 16 * 256
    assert original.tokens == 0
    assert one("passkey", "yarn, 8x", "pose", train_length=512).tokens == 400 * 16 * 512


def test_the_gap_is_measured_at_equal_tokens() -> None:
    tokens = {run.variant: run.tokens for run in runs("gap") if run.setting == "yarn, 8x"}
    assert {t for name, t in tokens.items() if "steps" not in name} == {400 * 16 * 256}
    assert {t for name, t in tokens.items() if "steps" in name} == {800 * 16 * 256}
    assert one("gap", "yarn, 8x", "full, half the rate").recipe.training.learning_rate == pytest.approx(4e-4)
    assert one("gap", "yarn, 8x", "full, half the rate").recipe.training.batch_size == 2
    assert one("gap", "yarn, 8x", "pose, windows 4 times as long").recipe.train_length == 1024
    assert one("gap", "yarn, 8x", "pose").key == one("passkey", "yarn, 8x", "pose").key
    both = one("gap", "yarn, 8x", "pose, these three").recipe
    assert (both.data.min_context, both.positions.content) == (64, "aligned")
    assert both.training.learning_rate == pytest.approx(4e-4)
    assert both.positions.skips == one("gap", "yarn, 8x", "pose").recipe.positions.skips


def test_families_begin_from_their_own_base() -> None:
    models = {run.setting: run for run in runs("families")}
    assert models["LLaMA"].recipe.model == "nano"
    assert models["LLaMA"].base is None
    for family in ("LLaMA2", "GPT-J", "Baichuan2"):
        base = models[family].base
        assert base is not None
        assert base[0] == family
        assert models[family].original == BASES[family].window
        assert models[family].recipe.target == 8 * BASES[family].window


def test_a_base_is_the_same_in_blocks_that_train_on_other_text(tmp_path) -> None:
    other = [run for run in runs("better") if run.base]
    assert {run.setting for run in other} == {"another base, trained on the library"}
    text = str(corpus(tmp_path))
    elsewhere = [run.base for run in runs("better", **{"data.source": text}) if run.base]
    assert {data.source for _, data in elsewhere} == {text}
    assert {run.recipe.data.source for run in other} == {"stdlib"}
    tokens = {run.tokens for run in runs("better") if run.setting.endswith("on the library") and run.trained}
    assert len(tokens) == 1  # as many as the embedded model's arms
    assert {run.recipe.model for run in other} == {one("families", "LLaMA2", "yarn").recipe.model}


def test_the_gap_is_measured_by_base_in_miniature_only() -> None:
    bases = {run.setting: run.variant for run in runs("gap") if run.base}
    assert set(bases) == set(BASES) - set(paper.FAMILIES)
    assert {run.setting for run in runs("gap", scale="paper")} == {"yarn, 8x"}


def test_where_the_cache_lies_does_not_decide_a_run(tmp_path, monkeypatch) -> None:
    keys = set()
    for place in ("here", "there"):
        monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / place))
        keys.add(one("families", "GPT-J", "yarn").key)
    assert len(keys) == 1


def test_the_papers_scale_has_its_models_and_lengths() -> None:
    main = one("main", "linear, 8x", "pose", scale="paper").recipe
    assert (main.model, main.target, main.training.batch_size) == ("huggyllama/llama-7b", 16384, 64)
    full = one("main", "linear, 16x", "full", scale="paper").recipe
    assert (full.target, full.training.batch_size) == (32768, 4)
    assert full.evaluation.source is None
    assert full.evaluation.windows == [2048, 4096, 8192, 16384, 32768]
    extreme = one("extreme", "yarn, 64x", "yarn", scale="paper").recipe.evaluation
    assert (extreme.stride, extreme.documents, extreme.windows[-1]) == (16 * 1024, 20, 128 * 1024)
    assert one("extreme", "yarn, 64x", "yarn").recipe.evaluation.stride is None
    families = {run.setting: run for run in runs("families", scale="paper")}
    assert families["Baichuan2"].recipe.model == "baichuan-inc/Baichuan2-7B-Base"
    assert {run.recipe.target for run in families.values()} == {16 * 1024}
    assert families["GPT-J"].base is None


@pytest.mark.parametrize("arm", ["full", "randpos", "pose", "short", "cream"])
def test_an_arm_is_its_scheme(arm: str) -> None:
    run = one("main", "linear, 8x", arm)
    assert run.recipe.positions.scheme == arm
    assert run.recipe.evaluation.arms == ["trained"]


def test_levers_change_what_the_user_set() -> None:
    changes = {"training.max_steps": 50, "training.learning_rate": 1e-3, "training.batch_size": 8}
    plain, twice, half, wide = (
        one("gap", "yarn, 8x", variant, **changes)
        for variant in ("pose", "pose, twice the steps", "pose, half the rate", "pose, windows 4 times as long")
    )
    assert (plain.recipe.training.max_steps, twice.recipe.training.max_steps) == (50, 100)
    assert half.recipe.training.learning_rate == pytest.approx(5e-4)
    assert wide.tokens == plain.tokens == 50 * 8 * 256
    assert len({run.key for run in (plain, twice, half, wide)}) == 4


def test_baselines_compute_as_precisely_as_the_trained_arms() -> None:
    original = one("main", "linear, 8x", "original", **{"training.precision": "float32"})
    assert original.recipe.training.precision == "float32"


def test_steps_beyond_the_last_are_not_asked_for() -> None:
    assert one("efficiency", "yarn, 8x", "pose", **{"training.max_steps": 100}).recipe.evaluation.steps == [10, 30, 100]
