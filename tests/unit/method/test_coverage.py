"""Coverage: the paper's figure, the laws every curve obeys, and the messages."""

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipwise.errors import RecipeError
from skipwise.method import coverage as coverage_module
from skipwise.method import positions
from skipwise.method.coverage import closed_form, coverage
from skipwise.method.positions import SCHEMES, ChunkRules, randpos

K = 1024
ONE, TWO, THREE = (ChunkRules(chunks=n) for n in (1, 2, 3))


@pytest.fixture(scope="module")
def three_chunks():
    return coverage(2 * K, 16 * K, THREE, samples=20_000, seed=1)


def test_one_chunk_covers_its_own_length_and_nothing_beyond():
    curve = closed_form(2 * K, 16 * K, ONE)
    assert (curve.probability[: 2 * K - 1] == 1).all()
    assert (curve.probability[2 * K - 1 :] == 0).all()


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


def test_standard_error_is_the_binomials(three_chunks):
    p = three_chunks.probability
    np.testing.assert_allclose(three_chunks.standard_error, np.sqrt(p * (1 - p) / 20_000))


def test_randpos_covers_nearly_every_distance_but_the_last():
    curve = coverage(256, 2 * K, scheme="randpos", samples=300)
    assert curve.probability[:1500].min() > 0.95
    assert curve.probability[-1] < 0.1


def test_short_is_one_chunk_and_full_covers_all():
    np.testing.assert_array_equal(coverage(16, 64, scheme="short").probability, closed_form(16, 64, ONE).probability)
    assert (coverage(16, 64, scheme="full").probability == 1).all()


def test_closed_form_is_chosen_up_to_two_chunks():
    assert not coverage(16, 64).standard_error.any()
    assert coverage(16, 64, THREE, samples=200).standard_error.any()
    assert coverage(16, 64, TWO, samples=200).standard_error.any()  # asked for


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


def test_samples_are_a_function_of_the_seed_and_not_of_the_batches(monkeypatch):
    whole = coverage(16, 64, THREE, samples=100, seed=3).probability
    monkeypatch.setattr("skipwise.method.coverage._BATCH_ELEMENTS", 100)
    np.testing.assert_array_equal(whole, coverage(16, 64, THREE, samples=100, seed=3).probability)
    assert (whole != coverage(16, 64, THREE, samples=100, seed=4).probability).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 64, 1), "0 is not a length; write a positive number of tokens"),
        ((64, 64, 1), "target 64 must exceed the train length 64"),
        ((4096, 2048, 2), "target 2,048 must exceed the train length 4,096"),
        ((16, 64, 17), "chunks 17 must be between 1 and the train length 16"),
    ],
)
def test_bad_lengths_and_chunks_are_explained(arguments, message):
    train, target, chunks = arguments
    with pytest.raises(RecipeError, match=message):
        coverage(train, target, ChunkRules(chunks=chunks))


def test_bad_methods_are_explained():
    with pytest.raises(RecipeError, match="closed form for 1 and 2 chunks only"):
        closed_form(16, 64, THREE)
    for samples in (0, 2.5):
        with pytest.raises(RecipeError, match=f"samples {samples} must be at least 1 and a whole number"):
            coverage(16, 64, THREE, samples=samples)


@pytest.mark.parametrize(("scheme", "tokens"), [("full", 64), ("short", 8), ("pose", 8)])
def test_sampled_examples_have_the_length_of_those_of_the_closed_form(scheme, tokens):
    assert (
        coverage(8, 64, scheme=scheme, samples=10).train_length == coverage(8, 64, scheme=scheme).train_length == tokens
    )


def test_an_unknown_scheme_names_the_valid_ones():
    with pytest.raises(RecipeError, match="scheme 'foo' is unknown; choose one of pose, randpos, cream, full, short"):
        coverage(16, 64, scheme="foo")


def test_a_target_too_far_for_a_curve_is_refused():
    with pytest.raises(RecipeError, match="target 1,000,000,000: coverage is computed for each distance"):
        coverage(2 * K, 10**9)


def test_what_would_take_hours_is_refused_at_once():
    with pytest.raises(RecipeError, match="chunks 1,000,000 must be between 1 and the train length 2,048"):
        coverage(2 * K, 16 * K, ChunkRules(chunks=10**6))
    with pytest.raises(
        RecipeError, match="chunks 1,000,000 must be at most 16,384, or drawing them takes hours; lower"
    ):
        coverage(2 * 10**6, 4 * 10**6, ChunkRules(chunks=10**6))
    for scheme, most in (("pose", 2**34 // 9), ("randpos", 2**34 // (64 * K))):
        with pytest.raises(RecipeError, match=rf"would take hours; lower samples to {most:,} at the most"):
            coverage(2 * K, 16 * K, THREE, scheme=scheme, samples=10**12)


def test_the_samples_tell_the_method_even_where_the_error_is_zero():
    assert coverage(16, 64).samples == 0
    assert coverage(16, 64, THREE, samples=1).samples == 1
    assert not coverage(16, 64, THREE, samples=1).standard_error.any()


def test_lengths_may_be_written_as_people_write_them():
    np.testing.assert_array_equal(coverage("1k", "4k").probability, coverage(K, 4 * K).probability)


def test_sampling_a_contiguous_scheme_gives_its_closed_form():
    for scheme in ("short", "full"):
        exact, sampled = (coverage(16, 64, scheme=scheme, samples=samples) for samples in (None, 20))
        np.testing.assert_array_equal(exact.probability, sampled.probability)
        assert (exact.samples, sampled.samples) == (0, 20)


def test_a_new_scheme_needs_nothing_but_its_entry_in_the_dictionary(monkeypatch):
    monkeypatch.setitem(SCHEMES, "mine", randpos)
    mine, original = (coverage(64, 256, scheme=scheme, samples=50) for scheme in ("mine", "randpos"))
    np.testing.assert_array_equal(mine.probability, original.probability)


@pytest.mark.parametrize("module", [coverage_module, positions])
def test_the_examples_in_the_docstrings_are_true(module):
    results = doctest.testmod(module)
    assert (results.attempted > 0, results.failed) == (True, 0)
