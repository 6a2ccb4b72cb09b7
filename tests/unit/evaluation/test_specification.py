"""Settings of an evaluation: defaults, strides, tasks, and rules."""

import numpy as np
import pytest

from skipwise.data.ruler import TASKS
from skipwise.errors import RecipeError
from skipwise.evaluation.specification import (
    EvaluatedModel,
    Specification,
    doubled_windows,
    read_tasks,
    specification_of,
    specify,
)
from skipwise.evaluation.texts import EvaluationText, Segment
from skipwise.evaluation.windows import sliding_windows
from skipwise.recipes.loading import load_recipe

MINE, BASE = EvaluatedModel("mine", "", 256, 1024), EvaluatedModel("base", "", 256, 256, control=True)


def test_lengths_double_from_the_original_to_the_target() -> None:
    assert doubled_windows(256, 2048) == [256, 512, 1024, 2048]
    assert doubled_windows(400, 1000) == [400, 800, 1000]
    assert doubled_windows(256, 256) == [256]
    rule = specify(256, 1024, tasks=["passkey"])
    assert rule.windows == rule.prompt_lengths == [256, 512, 1024]
    assert specify(256, 1024, windows=[512, 128, 512]).windows == [128, 512]


@pytest.mark.parametrize(
    ("original", "target", "window", "stride"), [(256, 2048, 256, 128), (256, 16384, 2048, 1024), (64, 512, 32, 16)]
)
def test_default_stride(original, target, window, stride) -> None:
    assert Specification(original=original, target=target).stride_of(window) == stride


def test_a_narrower_window_of_a_base_has_the_default_stride() -> None:
    wide = Specification(windows=[512, 1024], original=256, target=1024, stride=300)
    assert wide.stride_of(512) == wide.stride_of(1024) == 300
    sliding_windows(1024, 256, wide.stride_of(256))
    assert wide.stride_of(256) == 128


@pytest.mark.parametrize(
    "settings",
    [
        {"documents": -1},
        {"tasks": ["line"]},
        {"tasks": ["ruler:vtt"]},
        {"tasks": ["ruler:vt:hop=2"]},
        {"seed": -1},
        {"windows": [32], "stride": 1000},
        {"windows": [1, 8]},
    ],
)
def test_settings_that_break_their_rule_are_refused(settings) -> None:
    with pytest.raises(RecipeError):
        specify(32, 64, **settings)


def test_names_of_tasks() -> None:
    assert read_tasks(["passkey", "ruler:vt", "niah_multikey_1"]) == ["passkey", "ruler:vt", "ruler:niah_multikey_1"]
    assert read_tasks(["ruler:vt:hops=2", "chains=3", "cwe"]) == ["ruler:vt:hops=2,chains=3", "ruler:cwe"]
    assert read_tasks(["vt", " ruler:vt", "vt:hops=4", "ruler:vt:chains=1"]) == ["ruler:vt"]
    assert read_tasks(["vt:chains=3,hops=2"]) == read_tasks(["vt:hops=2,chains=3"])
    assert read_tasks(["ruler"]) == [f"ruler:{task}" for task in TASKS if not task.startswith("qa_")]


@pytest.mark.parametrize(("trials", "documents", "warnings"), [(34, 2, 1), (35, 2, 0), (35, 1, 1), (34, 1, 2)])
def test_warnings_of_too_little_for_an_effective_length(trials, documents, warnings) -> None:
    texts = [EvaluationText("x", [Segment("d", 0, np.arange(90))] * documents, [256], {}, "f")]
    assert len([*specify(256, 1024, tasks=["passkey"], prompt_trials=trials).warnings([MINE], texts)]) == warnings
    assert not [*specify(256, 1024, tasks=["keys"], prompt_trials=trials).warnings([MINE], texts)]


@pytest.mark.parametrize("lengths", ["windows", "prompt_lengths", "segment_lengths"])
def test_lengths_beyond_a_models_target_are_warned_of(lengths) -> None:
    assert len([*Specification(original=256, **{lengths: [512, 1025]}).warnings([MINE, BASE])]) == 1
    assert not [*Specification(original=256, **{lengths: [512, 1024]}).warnings([MINE, BASE])]


def test_a_recipes_section_is_resolved() -> None:
    changes = {"seed": 3, "data.source": "a", "evaluation.source": ["b", "a", "b"], "evaluation.prompt_trials": 7}
    rule = specification_of(load_recipe(None, changes), 256, 1024, "bf16")
    assert [text.source for text in rule.texts] == ["b", "a"]
    assert rule.windows == rule.prompt_lengths == [256, 512, 1024]
    assert (rule.prompt_trials, rule.seed, rule.depths, rule.precision) == (7, 3, "random", "bf16")
    assert (rule.documents, rule.tokens_read(1024), rule.tasks) == (8, 2048, ["passkey"])
    twice = specification_of(load_recipe(None, {"evaluation.prompt_lengths": [512, 256, 512]}), 256, 1024, "bf16")
    assert twice.prompt_lengths == [512, 256]
    none = specification_of(load_recipe(None, {"evaluation.prompt_trials": 0}), 256, 1024, "bf16")
    assert (none.tasks, none.prompt_lengths) == ([], [])
