"""Coverage: the paper's figure, the laws every curve obeys, and the messages."""

import doctest

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from skipwise.errors import RecipeError
from skipwise.method import coverage as coverage_module, positions
from skipwise.method.coverage import closed_form, coverage
from skipwise.method.positions import ChunkRules

K = 1024
THREE = ChunkRules(chunks=3)


@pytest.fixture(scope="module")
def three_chunks():
    return coverage(2 * K, 16 * K, THREE, samples=20_000, seed=1)


def test_two_chunks_have_the_papers_plateau_exactly():
    curve = closed_form(2 * K, 16 * K)
    assert list(curve.distances[[0, -1]]) == [1, 16 * K - 1]
    plateau = (curve.distances >= 2 * K) & (curve.distances <= 16 * K - 2 * K + 1)
    assert (curve.probability[plateau] == 2047 / 14337).all()
    assert (curve.probability[:1023] == 1).all()
    assert curve.probability[-1] == pytest.approx(1 / 14337)
    assert (np.diff(curve.probability[-2000:]) < 0).all()
    assert not curve.standard_error.any()


def test_three_chunks_match_the_values_read_off_the_papers_figure(three_chunks):
    assert three_chunks.probability[2048 - 1] == pytest.approx(0.27, abs=0.02)
    assert three_chunks.probability[8192 - 1] == pytest.approx(0.21, abs=0.02)
    assert three_chunks.probability[14_300 - 1] == pytest.approx(0.34, abs=0.02)
    assert three_chunks.probability[-1] < 0.01


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_curve_is_a_probability_and_starts_at_one(data):
    train = data.draw(st.integers(3, 40))
    target = data.draw(st.integers(train + 1, 200))
    chunks = data.draw(st.integers(1, min(train // 2, 5)))
    curve = coverage(train, target, ChunkRules(chunks=chunks), samples=50)
    assert len(curve.distances) == len(curve.probability) == target - 1
    assert ((curve.probability >= 0) & (curve.probability <= 1)).all()
    assert curve.probability[0] == 1


def test_sampling_a_contiguous_scheme_gives_its_closed_form():
    for scheme in ("no_skip", "full_length"):
        exact, sampled = (coverage(16, 64, scheme=scheme, samples=samples) for samples in (None, 20))
        np.testing.assert_array_equal(exact.probability, sampled.probability)
        assert (exact.samples, sampled.samples) == (0, 20)


@pytest.mark.parametrize("module", [coverage_module, positions])
def test_the_examples_in_the_docstrings_are_true(module):
    results = doctest.testmod(module)
    assert (results.attempted > 0, results.failed) == (True, 0)


@pytest.mark.parametrize(
    ("lengths", "chunks", "how"),
    [
        ((64, 64), 1, {}),
        ((16, 64), 17, {}),
        ((2 * K, 10**9), 2, {}),  # a curve has each distance
        ((2 * K, 16 * K), 3, {"samples": 10**12}),
    ],
)
def test_what_has_no_curve_is_refused_at_once(lengths, chunks, how):
    with pytest.raises(RecipeError):
        coverage(*lengths, ChunkRules(chunks=chunks), **how)
    with pytest.raises(RecipeError):
        closed_form(16, 64, THREE)
