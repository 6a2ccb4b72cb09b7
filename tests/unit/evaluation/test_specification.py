"""What is asked of models: default lengths and strides, and settings that are refused."""

import numpy as np
import pytest

from skipwise.errors import RecipeError
from skipwise.evaluation.models import EvaluatedModel
from skipwise.evaluation.specification import Specification, doubled_windows, specification_for, specification_of
from skipwise.evaluation.texts import EvaluationText, Segment
from skipwise.evaluation.windows import sliding_windows
from skipwise.recipes.loading import load_recipe
from skipwise.recipes.schema import Data

MINE, THEIRS = EvaluatedModel("mine", "", 256, 2048), EvaluatedModel("theirs", "", 512, 1024)
BASE = EvaluatedModel("base", "", 256, 256, control=True)


def asked(*models, lengths=(), target=None, **settings) -> Specification:
    return specification_for(models or (MINE,), Data(source="x"), lengths=lengths, target=target, **settings)


def test_lengths_double_from_the_original_to_the_target() -> None:
    assert doubled_windows(256, 2048) == [256, 512, 1024, 2048]
    assert doubled_windows(400, 1000) == [400, 800, 1000]
    assert doubled_windows(256, 256) == [256]
    assert asked().windows == asked().prompt_lengths == (256, 512, 1024, 2048)
    assert asked(MINE, THEIRS, BASE).windows == (256, 512, 1024, 2048)
    assert asked(target=512).windows == (256, 512)
    assert asked(lengths=[512, 128, 512]).windows == (128, 512)
    with pytest.raises(RecipeError, match="give one of them"):
        asked(lengths=[512], target=1024)


@pytest.mark.parametrize(
    ("original", "target", "window", "stride"), [(256, 2048, 256, 128), (256, 16384, 2048, 1024), (64, 512, 32, 16)]
)
def test_the_default_stride_is_half_the_original_length(original, target, window, stride) -> None:
    assert Specification(original=original, target=target).stride_of(window) == stride


def test_a_narrower_window_that_was_not_asked_for_takes_the_default_stride() -> None:
    wide = Specification(windows=(512, 1024), original=256, target=1024, stride=300)
    assert wide.stride_of(512) == wide.stride_of(1024) == 300
    sliding_windows(1024, 256, wide.stride_of(256))  # that of the control
    assert wide.stride_of(256) == 128


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"documents": -1}, "documents -1 must be at least 0"),
        ({"tasks": ("passkey",), "trials": 0}, "trials 0 must be at least 1"),
        ({"tasks": ("passkey",), "trials": 2.5}, "trials 2.5 must be at least 1 and a whole number; correct it"),
        ({"seed": -1}, "seed -1 must be at least 0"),
        ({"tasks": ("line",), "trials": 1}, r"task 'line' is unknown \(did you mean lines\?\)"),
        ({"windows": (32,), "stride": 1000}, "stride 1000 must not exceed the window 32"),
        ({"windows": (1, 8)}, "window 1 must be at least 2 tokens"),
    ],
)
def test_settings_that_break_their_rule_are_refused(settings, message) -> None:
    with pytest.raises(RecipeError, match=message):
        Specification(**settings)


@pytest.mark.parametrize(("trials", "warned"), [(1, "1 trial "), (20, "20 trials "), (34, "34 trials "), (35, "")])
def test_too_few_trials_to_show_an_effective_length_are_warned_of(trials, warned) -> None:
    said = "".join(asked(tasks=("passkey",), trials=trials).warnings([MINE]))
    assert said.startswith(warned)
    assert ("no effective length can be reported" in said) is bool(warned)


@pytest.mark.parametrize(("documents", "warned"), [(0, False), (1, True), (2, False)])
def test_a_single_document_is_said_to_show_no_effective_length(documents, warned) -> None:
    read = [EvaluationText("x", [Segment("d", 0, np.arange(90))] * documents, [256], {}, "f")] if documents else []
    said = "".join(asked(tasks=("passkey",), trials=35).warnings([MINE], read))
    assert said.startswith("one document gives no interval") is warned
    assert said.endswith("that have 256 tokens") is warned  # the longest window that the text fills
    assert not list(asked().warnings([MINE], read))  # without passkeys there is none to report


def test_lengths_beyond_a_models_target_are_allowed_with_a_warning() -> None:
    [said] = asked(MINE, THEIRS, BASE, lengths=[512, 2048]).warnings([MINE, THEIRS, BASE])
    assert said == "theirs was made for 1,024 tokens and is expected to fail beyond"


@pytest.mark.parametrize("lengths", ["windows", "prompt_lengths", "segment_lengths"])
def test_each_kind_of_length_may_lie_beyond_a_models_target(lengths) -> None:
    assert len(list(Specification(original=256, **{lengths: (512, 1025)}).beyond(THEIRS))) == 1
    assert list(Specification(original=256, **{lengths: (512, 1024)}).beyond(THEIRS)) == []


def test_a_recipe_says_what_its_run_measures() -> None:
    recipe = load_recipe(
        None,
        {
            "seed": 3,
            "data.source": "a",
            "evaluation.source": ["b", "a", "b"],
            "evaluation.prompt_trials": 7,
            "evaluation.documents": 2,
        },
    )
    rule = specification_of(recipe, 256, 1024, "bf16")
    assert [text.source for text in rule.texts] == ["b", "a"]
    assert rule.windows == rule.prompt_lengths == (256, 512, 1024)
    assert (rule.trials, rule.seed, rule.depths, rule.precision) == (7, 3, "random", "bf16")
    assert (rule.documents, rule.windows_per_document, rule.tasks) == (2, 2, ("passkey",))
    twice = specification_of(load_recipe(None, {"evaluation.prompt_lengths": [512, 256, 512]}), 256, 1024, "bf16")
    assert twice.prompt_lengths == (512, 256)
    none = specification_of(load_recipe(None, {"evaluation.prompt_trials": 0}), 256, 1024, "bf16")
    assert (none.tasks, none.prompt_lengths) == ((), ())


def test_the_facts_of_an_evaluation_are_json() -> None:
    import json

    rule = Specification(
        texts=(Data(source="x"),), windows=(8, 16), original=8, target=16, tasks=("passkey",), trials=1
    )
    assert json.loads(json.dumps(rule.as_dict())) == rule.as_dict()
    assert rule.as_dict()["texts"][0]["source"] == "x"
    assert rule.as_dict()["windows"] == [8, 16]
