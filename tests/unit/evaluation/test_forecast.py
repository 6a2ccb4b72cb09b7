"""The time of a run, from what is measured and the speed of a machine."""

import numpy as np
import pytest

from skipwise.evaluation.forecast import measuring_seconds, told, training_seconds
from skipwise.evaluation.runner import Prompts, Readings
from skipwise.model.forward_cost import ForwardCost, Speed
from skipwise.results.records import TrialRecord
from tests.measured import readings
from tests.tiny import byte_tokenizer

COST = ForwardCost(linear=100.0, output=50.0, pair=2.0)
SPEED = Speed(linear=10.0, attention=20.0)


def test_each_part_takes_its_tokens_times_their_operations() -> None:
    trials = [TrialRecord("m", "passkey", 64, 0, trial, "spread", "float32", "0") for trial in range(3)]
    read = readings("m", 256, 10.0, documents=1)
    batches = [Prompts(trials, byte_tokenizer()), Readings(read, [np.zeros(256, dtype=np.int64)])]
    assert measuring_seconds([*batches, batches[0]], COST, SPEED) == {
        "passkey at 64 tokens": pytest.approx(2 * 3 * 64 * (100 / 10 + 2 * 32 / 20)),
        "windows of 256 tokens": pytest.approx(256 * (150 / 10 + 2 * 128 / 20)),
    }


def test_training_goes_forward_and_twice_as_long_backward() -> None:
    assert training_seconds(1000, 64, COST, SPEED) == pytest.approx(3 * 1000 * (150 / 10 + 2 * 32 / 20))


def test_what_takes_longest_is_said() -> None:
    assert told(60.0, {"passkey at 64 tokens": 30.0, "windows of 8 tokens": 31.0}) == (
        "on this machine: training about 0:01:00, measuring about 0:01:01, of which windows of 8 tokens take longest, 0:00:31"
    )
    assert told(60.0, {}) == "on this machine: training about 0:01:00"
