"""Settings of an evaluation: defaults, strides, tasks, and rules."""

import numpy as np
import pytest

from skipwise.data.ruler import TASKS
from skipwise.errors import RecipeError
from skipwise.evaluation.models import EvaluatedModel
from skipwise.evaluation.specification import Specification, doubled_windows, read_tasks, specification_of, specify
from skipwise.evaluation.texts import EvaluationText, Segment
from skipwise.recipes.loading import load_recipe

MINE, BASE = EvaluatedModel("mine", "", 256, 1024), EvaluatedModel("base", "", 256, 256, control=True)


def test_lengths_double_from_the_original_to_the_target() -> None:
    assert doubled_windows(256, 2048) == [256, 512, 1024, 2048]
    assert doubled_windows(400, 1000) == [400, 800, 1000]
    assert doubled_windows(256, 256) == [256]
    rule = specify(256, 1024, tasks=["passkey"])
    assert rule.windows == rule.prompt_lengths == [256, 512, 1024]
    assert specify(256, 1024, windows=[512, 128, 512]).windows == [128, 512]


def test_names_of_tasks() -> None:
    assert read_tasks(["passkey", "ruler:vt", "niah_multikey_1"]) == ["passkey", "ruler:vt", "ruler:niah_multikey_1"]
    assert read_tasks(["ruler:vt:hops=2", "chains=3", "cwe"]) == ["ruler:vt:hops=2,chains=3", "ruler:cwe"]
    assert read_tasks(["vt", " ruler:vt", "vt:hops=4", "ruler:vt:chains=1"]) == ["ruler:vt"]
    assert read_tasks(["vt:chains=3,hops=2"]) == read_tasks(["vt:hops=2,chains=3"])
    assert read_tasks(["ruler"]) == [f"ruler:{task}" for task in TASKS if not task.startswith("qa_")]


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


def test_default_strides_and_those_of_a_bases_narrower_windows() -> None:
    assert Specification(original=256, target=2048).stride_of(256) == 128
    assert Specification(original=256, target=16384).stride_of(2048) == 1024
    wide = Specification(windows=[512, 1024], original=256, target=1024, stride=300)
    assert (wide.stride_of(1024), wide.stride_of(256)) == (300, 128)


@pytest.mark.parametrize(
    "settings", [{"documents": -1}, {"tasks": ["ruler:vtt"]}, {"tasks": ["ruler:vt:hop=2"]}, {"windows": [1, 8]}]
)
def test_settings_that_break_their_rule_are_refused(settings) -> None:
    with pytest.raises(RecipeError):
        specify(32, 64, **settings)


@pytest.mark.parametrize(("trials", "documents", "warnings"), [(35, 2, 0), (34, 1, 2)])
def test_too_little_for_an_effective_length_and_lengths_beyond_the_target_are_warned_of(
    trials, documents, warnings
) -> None:
    texts = [EvaluationText("x", [Segment("d", 0, np.arange(90))] * documents, [256], {}, "f")]
    rule = specify(256, 1024, tasks=["passkey"], prompt_trials=trials)
    assert len([*rule.warnings([MINE], texts)]) == warnings
    assert len([*rule.model_copy(update={"windows": [1025]}).warnings([MINE, BASE], texts)]) == warnings + 1
