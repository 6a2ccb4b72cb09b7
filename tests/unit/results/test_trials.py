"""How many prompts a claim needs: the numbers are held against simulations of what is said afterwards."""

import numpy as np
import pytest

from skipwise.results.statistics import (
    chance_to_show,
    fewest_prompts,
    least_hits,
    mean_interval,
    prompts_for_difference,
    prompts_to_show,
    share_difference,
    smallest_difference,
    wilson_interval,
)


@pytest.mark.parametrize(("needed", "prompts"), [(0.9, 35), (0.856, 23), (0.5, 4)])
def test_the_fewest_prompts_are_enough_and_one_less_is_not(needed, prompts) -> None:
    assert fewest_prompts(needed) == prompts
    assert wilson_interval(prompts, prompts)[0] >= needed > wilson_interval(prompts - 1, prompts - 1)[0]
    assert least_hits(needed, prompts) == prompts
    assert least_hits(needed, prompts - 1) is None


def test_least_hits_are_those_that_the_documentation_names() -> None:
    assert [least_hits(0.9, prompts) for prompts in (50, 100)] == [50, 96]


@pytest.mark.parametrize("prompts", [50, 100, 260])
def test_the_smallest_difference_is_shown_in_80_percent_of_simulations(prompts) -> None:
    rng, apart = np.random.default_rng(0), smallest_difference(prompts)
    ours = rng.random((2000, prompts)) < 0.5 + apart / 2
    theirs = rng.random((2000, prompts)) < 0.5 - apart / 2
    names = [str(n) for n in range(prompts)]
    shown = [
        mean_interval(own.astype(float) - other, [1] * prompts, names).low > 0
        for own, other in zip(ours, theirs, strict=True)
    ]
    assert np.mean(shown) == pytest.approx(0.8, abs=0.03)


def test_equal_models_are_told_apart_in_5_percent_of_simulations() -> None:
    rng = np.random.default_rng(1)
    drawn = rng.random((2000, 2, 100)) < 0.5
    apart = [share_difference(dict(enumerate(own)), dict(enumerate(other))) for own, other in drawn]
    assert np.mean([one.low > 0 or one.high < 0 for one in apart]) == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize(("needed", "share"), [(0.9, 0.97), (0.856, 0.9)])
def test_a_model_shows_its_share_in_80_percent_of_simulations(needed, share) -> None:
    rng, prompts = np.random.default_rng(0), prompts_to_show(needed, share)
    hits = rng.binomial(prompts, share, 5000)
    shown = np.mean([wilson_interval(int(found), prompts)[0] >= needed for found in hits])
    assert shown >= 0.78
    assert shown == pytest.approx(chance_to_show(needed, share, prompts), abs=0.02)
    assert chance_to_show(needed, share, prompts - 1) < 0.8


@pytest.mark.parametrize("difference", [0.02, 0.05, 0.2])
def test_prompts_and_differences_are_inverse(difference) -> None:
    prompts = prompts_for_difference(difference)
    assert smallest_difference(prompts) <= difference < smallest_difference(prompts - 1)
