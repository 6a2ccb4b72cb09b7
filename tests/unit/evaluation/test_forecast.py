"""The time of a run, from what is measured and the speed of a machine."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from skipwise.evaluation import forecast
from skipwise.evaluation.batches import Prompts, Readings
from skipwise.evaluation.forecast import _told_too_long, measuring_seconds, told, training_seconds
from skipwise.evaluation.workload import beyond_memory, planned, workload_of
from skipwise.model.cost import token_bytes
from skipwise.model.forward_cost import ForwardCost, Speed, Writing
from skipwise.recipes.loading import load_recipe
from skipwise.recipes.schema import Evaluation
from skipwise.results.records import RulerRecord, TrialRecord
from tests.measured import readings
from tests.tiny import byte_tokenizer

COST = ForwardCost(linear=100.0, output=50.0, pair=2.0)
SPEED = Speed(linear=10.0, attention=20.0)


def test_each_part_takes_its_tokens_times_their_operations() -> None:
    trials = [TrialRecord("m", "passkey", 64, 0, trial, "spread", "float32", "0") for trial in range(3)]
    read = readings("m", 256, 10.0, documents=1)
    batches = [Prompts(trials, print, byte_tokenizer()), Readings(read, [np.zeros(256, dtype=np.int64)])]
    assert measuring_seconds(map(workload_of, [*batches, batches[0]]), COST, SPEED) == {
        "passkey at 64 tokens": pytest.approx(2 * 3 * 64 * (100 / 10 + 2 * 32 / 20)),
        "windows of 256 tokens": pytest.approx(256 * (150 / 10 + 2 * 128 / 20)),
    }


def test_answers_take_as_many_ids_as_a_task_may_write() -> None:
    asked = [RulerRecord("m", "vt:hops=2", 512, 0, trial, True, "float32", "0") for trial in range(3)]
    parts = [workload_of(Prompts(asked, print, byte_tokenizer()))]
    read = measuring_seconds(parts, COST, SPEED)["vt:hops=2 at 512 tokens"]
    written = measuring_seconds(parts, COST, SPEED, Writing(alone=2.0, before=0.5))["vt:hops=2 at 512 tokens"]
    assert written - read == pytest.approx(3 * 30 * (2 + 0.5 * 512))


def test_training_takes_its_layers_and_the_products_outside_of_them(monkeypatch) -> None:
    timed = []
    monkeypatch.setattr(forecast.ForwardCost, "of_config", lambda config: COST)
    monkeypatch.setattr(forecast.Speed, "measured", lambda *how: SPEED)
    monkeypatch.setattr(forecast, "layer_step_seconds", lambda *how: timed.append(how[-1]) or 4.0)
    config, cpu = LlamaConfig(num_hidden_layers=3), torch.device("cpu")
    assert training_seconds(config, 1000, 64, "float32", cpu) == pytest.approx(1000 * (3 * 4 / 64 + 3 * 50 / 10))
    far = 1000 * (3 * 4 / 2048 + 3 * 50 / 10 + 3 * 2 * (8192 - 2048) / 2 / 20)
    assert training_seconds(config, 1000, 8192, "float32", cpu) == pytest.approx(far)
    assert timed == [64, 2048]


def test_what_a_recipe_measures_is_counted_before_any_text_is_known() -> None:
    changes = {
        "evaluation.windows": [64, 128],
        "evaluation.stride": 32,
        "evaluation.documents": 3,
        "evaluation.tokens_per_document": 128,
        "evaluation.prompt_trials": 5,
        "evaluation.prompt_lengths": [128],
        "evaluation.segment_lengths": [64],
        "evaluation.segments": 7,
        "evaluation.arms": ["original", "trained"],
    }

    def seconds(recipe: dict[str, object]) -> dict[str, float]:
        """An operation takes one second."""
        return measuring_seconds(planned(load_recipe(None, recipe), 64, 128), COST, Speed(1.0, 1.0))

    assert seconds(changes) == {
        "windows of 64 tokens": 2 * 3 * 3 * 64 * (150 + 2 * 32),  # two arms, three documents, three windows of each
        "windows of 128 tokens": 2 * 3 * 128 * (150 + 2 * 64),
        "segments of 64 tokens": 2 * 7 * 64 * (150 + 2 * 32),
        "passkey at 128 tokens": 2 * 5 * 128 * (100 + 2 * 64),
        "other text in segments of 64 tokens": 2 * 3 * 32 * 64 * (150 + 2 * 32),  # three documents, 32 segments of each
    }
    alone = seconds(changes | {"evaluation.other": False})
    assert not any(part.startswith("other text") for part in alone)
    [ruler] = [
        part for part in planned(load_recipe(None, changes | {"evaluation.tasks": "ruler:vt"}), 64, 128) if part.written
    ]
    assert (str(ruler), ruler.read, ruler.written) == ("ruler:vt at 128 tokens", 2 * 5 * 128, 2 * 5 * 30)
    stepped = changes | {"evaluation.steps": [5], "evaluation.keep": "best", "training.max_steps": 10}
    more = seconds(stepped)
    assert more["windows of 128 tokens during training"] == 2 * 3 * 128 * (150 + 2 * 64)  # step 5 and the last
    assert more["segments of 128 tokens during training"] == 2 * 7 * 128 * (150 + 2 * 64)
    far = seconds(changes | {"evaluation.windows": [128]})  # of which the original reads its own window besides
    assert far["windows of 64 tokens"] == 3 * 3 * 64 * (150 + 2 * 32)


def test_what_takes_longest_is_said() -> None:
    parts, asked = {"passkey at 64 tokens": 30.0, "windows of 8 tokens": 31.0}, Evaluation()
    said = "on this machine: training about 0:01:02, measuring about 0:01:01, of which windows of 8 tokens take longest, 0:00:31"
    assert told(62.0, parts, asked) == said
    assert told(62.0, {}, asked) == "on this machine: training about 0:01:02"


@pytest.mark.parametrize(
    ("asked", "ways"),
    [
        (
            Evaluation(prompt_trials=5),
            [
                "--set 'evaluation.arms=[trained]' leaves out the models that it is compared with",
                "--set evaluation.prompt_trials=2 asks half as many prompts",
            ],
        ),
        (Evaluation(arms=["trained"], prompt_trials=1), []),  # less there is not
    ],
)
def test_what_shortens_measuring_is_said_where_it_takes_longer_than_training(
    asked: Evaluation, ways: list[str]
) -> None:
    lines = told(60.0, {"windows of 8 tokens": 61.0}, asked).split("\n")[1:]
    assert lines == ([f"Measuring takes longer than training: {', and '.join(ways)}."] if ways else [])


def test_lengths_that_fit_are_proposed_where_there_are_some() -> None:
    """An empty list is no setting of a recipe."""
    recipe, config = load_recipe(None, {"evaluation.windows": [64, 128]}), LlamaConfig(num_hidden_layers=1)
    parts = [*planned(recipe, 64, 128)]
    memory = 1000.0 + 64 * token_bytes(config, 2, cached=False)
    windows, _ = beyond_memory(parts, config, 2, 1000, memory)
    assert (windows.longest, windows.most, windows.fitting) == (128, 64, (64,))
    said = _told_too_long(windows, memory)
    assert "Leave it out, --set 'evaluation.windows=[64]', and measure it on a larger GPU" in said
    for none in beyond_memory(parts, config, 2, 1000, 1000):
        assert "GB. Measure it on a larger GPU" in _told_too_long(none, 1000)
        assert "--set" not in _told_too_long(none, 1000)


def test_where_no_length_fits_the_largest_power_of_two_that_may_is_proposed() -> None:
    recipe, config = load_recipe(None, {"evaluation.windows": ["40k", "80k"]}), LlamaConfig(num_hidden_layers=1)
    memory = 1000.0 + 40_000 * token_bytes(config, 2, cached=False)
    windows, _ = beyond_memory([*planned(recipe, 40 * 1024, 80 * 1024)], config, 2, 1000, memory)
    assert (windows.most, windows.fitting) == (40_000, ())
    assert "--set 'evaluation.windows=[32768]'" in _told_too_long(windows, memory)


def test_segments_that_keep_the_best_step_have_their_own_way_out() -> None:
    stepped = {"evaluation.steps": [5], "evaluation.keep": "best", "training.max_steps": 10}
    alone = {"evaluation.windows": [64], "evaluation.prompt_trials": 0, "evaluation.segment_lengths": [64]}
    parts, config = [*planned(load_recipe(None, stepped | alone), 64, 128)], LlamaConfig(num_hidden_layers=1)
    [lengths] = beyond_memory(parts, config, 2, 0, 64 * token_bytes(config, 2, cached=False))
    assert (lengths.longest, lengths.fitting) == (128, ())
    assert "Leave it out, --set evaluation.keep=last, and measure it on" in _told_too_long(lengths, 1000)


def test_text_that_ships_with_the_package_is_no_setting() -> None:
    """Its segments may be longer than any window that is asked for."""
    recipe = load_recipe(None, {"evaluation.windows": [64], "evaluation.prompt_trials": 0})
    config = LlamaConfig(num_hidden_layers=1)
    parts = [*planned(recipe, 512, 4096)]
    assert max(part.length for part in parts) == 512
    assert not [*beyond_memory(parts, config, 2, 0, 64 * token_bytes(config, 2, cached=False))]
