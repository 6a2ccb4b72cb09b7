"""Coverage against slow, independent counts: every pair of positions of every example."""

import itertools

import numpy as np
import pytest

from skipwise.method.coverage import closed_form, count_by_intervals, count_by_positions, coverage
from skipwise.method.positions import SCHEMES, ChunkRules, end_anchored_skips, pose
from skipwise.method.rng import Rng


def covered_by_pairs(positions: list[int], target: int) -> np.ndarray:
    """0/1 for every distance, by the definition: some pair of tokens is that far apart."""
    covered = np.zeros(target - 1, dtype=np.int64)
    for a, b in itertools.combinations(positions, 2):
        covered[abs(b - a) - 1] = 1
    return covered


@pytest.mark.parametrize("rule", ["paper", "released", "end_anchored"])
@pytest.mark.parametrize(("train", "target"), [(2, 3), (5, 9), (9, 30)])
def test_closed_form_equals_the_enumeration_of_all_plans(train, target, rule):
    rules = ChunkRules(skips=rule) if rule == "end_anchored" else ChunkRules(lengths=rule)
    longest = (train + 1) // 2 if rule == "released" else train - 1
    skips = end_anchored_skips(train, target).tolist() if rule == "end_anchored" else range(target - train + 1)
    total = np.zeros(target - 1, dtype=np.int64)
    for first, skip in itertools.product(range(1, longest + 1), skips):
        total += covered_by_pairs([*range(first), *range(first + skip, train + skip)], target)
    np.testing.assert_array_equal(closed_form(train, target, rules).probability, total / (longest * len(skips)))


@pytest.mark.parametrize(
    ("chunks", "lengths", "skips"),
    [(1, "paper", "uniform"), (2, "paper", "uniform"), (2, "released", "uniform"), (2, "paper", "end_anchored")],
)
@pytest.mark.parametrize("contiguous", [0.0, 0.3])
def test_closed_form_and_monte_carlo_agree(chunks, lengths, skips, contiguous):
    rules = ChunkRules(chunks, lengths, skips, no_skip_share=contiguous)
    exact = closed_form(32, 160, rules).probability
    sampled = coverage(32, 160, rules, samples=20_000, seed=7).probability
    error = np.sqrt(exact * (1 - exact) / 20_000)
    assert (np.abs(sampled - exact) <= 4.5 * error + 1e-12).all()


@pytest.mark.parametrize(("chunks", "train", "target"), [(1, 12, 50), (3, 31, 200), (12, 12, 13), (12, 31, 200)])
def test_intervals_and_fourier_transform_equal_the_pairs_of_each_example(chunks, train, target):
    plans = pose(Rng.of(5, 0, np.arange(40)), train, target, np.full(40, train), ChunkRules(chunks=chunks))
    expected = sum(covered_by_pairs(row.tolist(), target) for row in plans.position_ids())
    np.testing.assert_array_equal(count_by_intervals(plans, target), expected)
    np.testing.assert_array_equal(count_by_positions(plans, target), expected)


def test_the_coverage_of_cream_equals_the_pairs_of_each_example():
    plans = SCHEMES["cream"](Rng.of(5, 0, np.arange(200)), 31, 200, np.full(200, 31))
    expected = sum(covered_by_pairs(row.tolist(), 200) for row in plans.position_ids())
    np.testing.assert_array_equal(count_by_intervals(plans, 200), expected)
    curve = coverage(31, 200, scheme="cream", samples=200, seed=5)
    np.testing.assert_array_equal(curve.probability, expected / 200)
