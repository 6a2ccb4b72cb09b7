"""Means, shares and differences of records, and their intervals against published values and closed forms."""

import math

import numpy as np
import pytest

from skipwise.results.records import ReadingRecord
from skipwise.results.statistics import (
    Interval,
    difference,
    fewest_prompts,
    least_hits,
    loss,
    mean_interval,
    perplexity,
    prompts_for_difference,
    share_difference,
    smallest_difference,
    wilson_interval,
)


def test_wilson_interval_matches_the_published_value():
    assert wilson_interval(45, 50) == pytest.approx((0.7864, 0.9565), abs=1e-4)
    assert wilson_interval(0, 50) == pytest.approx((0, 0.0713), abs=1e-4)
    assert wilson_interval(50, 50)[1] == 1.0


def test_the_mean_is_weighted_and_the_interval_is_of_clusters():
    rng = np.random.default_rng(1)
    effects = np.repeat(rng.normal(0, 1, 40), 25)  # 25 alike in each of 40 documents
    names = [f"d{i // 25}" for i in range(1000)]
    interval = mean_interval(effects * 3, [3] * 1000, names)
    assert interval.mean == pytest.approx(effects.mean())
    expected = 2.0227 * effects[::25].std(ddof=1) / math.sqrt(40)  # Student's t of 39 degrees of freedom
    assert interval.high - interval.mean == pytest.approx(expected, rel=1e-4)
    assert interval.mean - interval.low == pytest.approx(expected, rel=1e-4)
    alone = mean_interval(effects * 3, [3] * 1000, [str(i) for i in range(1000)])
    assert alone.high - alone.low < 0.4 * (interval.high - interval.low)


@pytest.mark.parametrize("documents", [2, 8])
def test_intervals_of_few_documents_hold_what_they_say(documents: int):
    rng, names = np.random.default_rng(0), [str(i) for i in range(documents)]
    sizes = np.exp(rng.normal(0, 0.5, (1500, documents)))
    losses = rng.normal(0, 1, sizes.shape)
    drawn = [mean_interval(loss * size, size, names) for loss, size in zip(losses, sizes, strict=True)]
    assert 0.93 <= np.mean([one.low <= 0 <= one.high for one in drawn]) <= 0.98


def reading(document: str, nll: list[float], hits: list[int], *, edges=(1, 64, 256, 512), begin=0) -> ReadingRecord:
    return ReadingRecord("m", "x", document, "sliding", begin, 512, 128, list(edges), "float32", "d", None, nll, hits)


A = reading("a", [63.0, 2 * 192.0, 3 * 256.0], [10, 20, 30])
B = reading("b", [2 * 63.0, 192.0, 5 * 256.0], [5, 5, 5])
LONG = reading("c", [100.0, 400.0], [1, 1], edges=(1, 101, 301))


def test_loss_is_the_mean_over_tokens_and_not_over_documents():
    assert loss([A, LONG]).mean == pytest.approx((63 + 384 + 768 + 500) / (511 + 300))
    assert loss([A, B], sums="hits").mean == pytest.approx(75 / (2 * 511))


@pytest.mark.parametrize(
    ("begin", "end", "mean"),
    [(256, None, 4.0), (64, 256, 1.5), (0, 64, 1.5), (0, 256, (3 * 63 + 3 * 192) / (2 * 255)), (65, 512, 4.0)],
)
def test_only_buckets_inside_the_positions_count(begin, end, mean):
    assert loss([A, B], begin, end).mean == pytest.approx(mean)


def test_perplexity_is_the_exponential_of_the_loss_and_of_its_interval():
    value, nats = perplexity([A, B]), loss([A, B])
    assert (value.mean, value.low, value.high) == tuple(map(math.exp, (nats.mean, nats.low, nats.high)))
    assert perplexity([A, B], 64).mean == pytest.approx(math.exp(1.5))
    assert perplexity([reading("a", [800.0], [0], edges=(1, 2))]).mean == math.inf


def test_a_difference_pairs_the_documents_that_both_read():
    other = reading("a", [0.0, 192.0, 256.0], [0, 0, 10])
    apart = difference([A, B], [LONG, other])
    assert apart.mean == pytest.approx((63 + 192 + 512) / 511)
    assert math.isinf(apart.high)  # one document
    assert difference([A], [other], 256, 512).mean == pytest.approx(2.0)
    assert difference([A], [other], sums="hits").mean == pytest.approx(50 / 511)


def test_there_is_no_difference_of_readings_that_share_no_tokens():
    assert difference([A], [B]) is None
    assert difference([A], [reading("a", [1.0] * 3, [1] * 3, begin=512)]) is None
    assert difference([A], [reading("a", [1.0], [1], edges=(1, 512))]) is None
    assert difference([A], [A], 300, 400) is None


def paired(both: int, ours: int, theirs: int, neither: int) -> Interval | None:
    answers = [(True, True)] * both + [(True, False)] * ours + [(False, True)] * theirs + [(False, False)] * neither
    return share_difference({n: a for n, (a, _) in enumerate(answers)}, {n: b for n, (_, b) in enumerate(answers)})


def test_a_difference_of_paired_shares_has_the_published_interval():
    # Fagerland, Lydersen and Laake (2014), on data of Bentur et al.: Newcombe's square-and-add interval.
    interval = paired(1, 1, 7, 12)
    assert [interval.mean, interval.low, interval.high] == pytest.approx([-0.286, -0.507, -0.026], abs=5e-4)


def test_a_difference_of_paired_shares_is_of_shared_prompts_and_never_too_sure():
    assert share_difference({0: True}, {1: True}) is None
    assert share_difference({0: True, 1: True}, {1: True}).mean == 0
    alike = paired(50, 0, 0, 0)
    assert (alike.low, alike.high) == pytest.approx((-0.0713, 0.0713), abs=1e-4)


@pytest.mark.parametrize(("needed", "prompts"), [(0.9, 35), (0.5, 4)])
def test_the_fewest_prompts_are_enough_and_one_less_is_not(needed, prompts) -> None:
    assert fewest_prompts(needed) == prompts
    assert wilson_interval(prompts, prompts)[0] >= needed > wilson_interval(prompts - 1, prompts - 1)[0]
    assert least_hits(needed, prompts) == prompts
    assert least_hits(needed, prompts - 1) is None


def test_the_smallest_difference_is_shown_in_80_percent_of_simulations() -> None:
    prompts = prompts_for_difference(0.1)
    rng, apart = np.random.default_rng(0), smallest_difference(prompts)
    assert apart <= 0.1 < smallest_difference(prompts - 1)
    ours = rng.random((2000, prompts)) < 0.5 + apart / 2
    theirs = rng.random((2000, prompts)) < 0.5 - apart / 2
    names = [str(n) for n in range(prompts)]
    shown = [
        mean_interval(own.astype(float) - other, [1] * prompts, names).low > 0
        for own, other in zip(ours, theirs, strict=True)
    ]
    assert np.mean(shown) == pytest.approx(0.8, abs=0.03)
