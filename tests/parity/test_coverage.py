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


@pytest.mark.parametrize("lengths", ["paper", "released"])
@pytest.mark.parametrize(("train", "target"), [(2, 3), (3, 8), (5, 9), (6, 17), (9, 30), (8, 9)])
def test_closed_form_equals_the_enumeration_of_all_plans(train, target, lengths):
    longest = train - 1 if lengths == "paper" else (train + 1) // 2
    total = np.zeros(target - 1, dtype=np.int64)
    for first, skip in itertools.product(range(1, longest + 1), range(target - train + 1)):
        total += covered_by_pairs([*range(first), *range(first + skip, train + skip)], target)
    expected = total / (longest * (target - train + 1))
    np.testing.assert_array_equal(closed_form(train, target, ChunkRules(lengths=lengths)).probability, expected)


@pytest.mark.parametrize(("train", "target"), [(2, 3), (3, 8), (5, 9), (6, 17), (9, 30), (8, 9)])
def test_end_anchored_closed_form_equals_the_enumeration_of_all_plans(train, target):
    skips = end_anchored_skips(train, target).tolist()
    total = np.zeros(target - 1, dtype=np.int64)
    for first, skip in itertools.product(range(1, train), skips):
        total += covered_by_pairs([*range(first), *range(first + skip, train + skip)], target)
    curve = closed_form(train, target, ChunkRules(skips="end_anchored")).probability
    np.testing.assert_array_equal(curve, total / ((train - 1) * len(skips)))
    assert (curve[train - 1 :] == 1 / len(skips)).all()


@pytest.mark.parametrize(
    ("chunks", "lengths", "skips"),
    [(1, "paper", "uniform"), (2, "paper", "uniform"), (2, "released", "uniform"), (2, "paper", "end_anchored")],
)
@pytest.mark.parametrize("contiguous", [0.0, 0.3, 1.0])
def test_closed_form_and_monte_carlo_agree(chunks, lengths, skips, contiguous):
    rules = ChunkRules(chunks, lengths, skips, contiguous=contiguous)
    exact = closed_form(32, 160, rules).probability
    sampled = coverage(32, 160, rules, samples=20_000, seed=7).probability
    error = np.sqrt(exact * (1 - exact) / 20_000)
    assert (np.abs(sampled - exact) <= 4.5 * error + 1e-12).all()


@pytest.mark.parametrize("chunks", [1, 2, 3, 4, 7, 12])
def test_intervals_and_fourier_transform_equal_the_pairs_of_each_example(chunks):
    for train, target in [(12, 13), (12, 50), (31, 200)]:
        documents = np.full(40, train)
        plans = pose(Rng.of(5, 0, np.arange(40)), train, target, documents, ChunkRules(chunks=chunks))
        expected = sum(covered_by_pairs(row.tolist(), target) for row in plans.position_ids())
        np.testing.assert_array_equal(count_by_intervals(plans, target), expected)
        np.testing.assert_array_equal(count_by_positions(plans, target), expected)


def test_the_coverage_of_cream_equals_the_pairs_of_each_example():
    plans = SCHEMES["cream"](Rng.of(5, 0, np.arange(200)), 31, 200, np.full(200, 31))
    expected = sum(covered_by_pairs(row.tolist(), 200) for row in plans.position_ids())
    np.testing.assert_array_equal(count_by_intervals(plans, 200), expected)
    curve = coverage(31, 200, scheme="cream", samples=200, seed=5)
    np.testing.assert_array_equal(curve.probability, expected / 200)


def test_skips_behind_the_estimate_are_uniform():
    plans = pose(Rng.of(11, 0, np.arange(30_000)), 16, 75, np.full(30_000, 16))
    observed = np.bincount(plans.skips[:, 1], minlength=60)
    chi_square = ((observed - 500) ** 2 / 500).sum()
    assert len(observed) == 60
    assert chi_square < 98.3  # the 99.9% quantile at 59 degrees of freedom
