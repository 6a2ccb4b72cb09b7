"""Coverage: the paper's figure, the laws every curve obeys, and the messages."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipwise.coverage import closed_form, coverage, coverage_record, monte_carlo
from skipwise.errors import RecipeError

K = 1024


@pytest.fixture(scope="module")
def three_chunks():
    return monte_carlo(2 * K, 16 * K, 3, samples=20_000, seed=1)


def test_one_chunk_covers_its_own_length_and_nothing_beyond():
    curve = closed_form(2 * K, 16 * K, 1)
    assert (curve.probability[: 2 * K - 1] == 1).all()
    assert (curve.probability[2 * K - 1 :] == 0).all()


def test_two_chunks_have_the_papers_plateau_exactly():
    curve = closed_form(2 * K, 16 * K, 2)
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
    np.testing.assert_array_equal(
        coverage(16, 64, scheme="short").probability, closed_form(16, 64, 1).probability
    )
    assert (coverage(16, 64, scheme="full").probability == 1).all()


def test_closed_form_is_chosen_up_to_two_chunks():
    assert not coverage(16, 64, 2).standard_error.any()
    assert coverage(16, 64, 3, samples=200).standard_error.any()
    assert coverage(16, 64, 2, samples=200).standard_error.any()  # asked for


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_curve_is_a_probability_and_starts_at_one(data):
    train = data.draw(st.integers(3, 40))
    target = data.draw(st.integers(train + 1, 200))
    chunks = data.draw(st.integers(1, min(train // 2, 5)))
    curve = coverage(train, target, chunks, samples=50)
    assert len(curve.distances) == len(curve.probability) == target - 1
    assert ((curve.probability >= 0) & (curve.probability <= 1)).all()
    assert curve.probability[0] == 1


def test_samples_are_a_function_of_the_seed_and_not_of_the_batches(monkeypatch):
    whole = monte_carlo(16, 64, 3, samples=100, seed=3).probability
    monkeypatch.setattr("skipwise.coverage._BATCH_ELEMENTS", 100)
    np.testing.assert_array_equal(whole, monte_carlo(16, 64, 3, samples=100, seed=3).probability)
    assert (whole != monte_carlo(16, 64, 3, samples=100, seed=4).probability).any()


def test_record_thins_the_curve_and_keeps_its_bends():
    record = coverage_record(closed_form(2 * K, 16 * K, 2), "2 chunks", points=100)
    assert (record.label, record.train_length, record.target_length) == ("2 chunks", 2 * K, 16 * K)
    assert len(record.distances) <= 104
    assert {1, 2047, 2048, 14_336, 14_337, 16_383} <= set(record.distances)
    full = closed_form(2 * K, 16 * K, 2)
    assert record.probability == full.probability[np.array(record.distances) - 1].tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 64, 1), "train length 0 must be at least 1 token"),
        ((64, 64, 1), "target 64 must exceed the train length 64"),
        ((4096, 2048, 2), "target 2,048 must exceed the train length 4,096"),
        ((16, 64, 0), "chunks 0 must be between 1 and the train length 16"),
        ((16, 64, 17), "chunks 17 must be between 1 and the train length 16"),
    ],
)
def test_bad_lengths_and_chunks_are_explained(arguments, message):
    with pytest.raises(RecipeError, match=message):
        coverage(*arguments)


def test_bad_methods_are_explained():
    with pytest.raises(RecipeError, match="closed form for 1 and 2 chunks only"):
        closed_form(16, 64, 3)
    with pytest.raises(RecipeError, match="samples 0 must be at least 1"):
        monte_carlo(16, 64, 3, samples=0)
    with pytest.raises(RecipeError, match="'full'"):
        monte_carlo(16, 64, 3, scheme="full")


def test_unknown_schemes_and_length_rules_name_the_valid_ones():
    with pytest.raises(
        RecipeError, match="scheme 'foo' is unknown; choose one of pose, randpos, cream, full, short"
    ):
        coverage(16, 64, scheme="foo")
    with pytest.raises(RecipeError, match="lengths 'foo' is unknown; choose one of paper, released"):
        coverage(16, 64, lengths="foo")
    with pytest.raises(RecipeError, match="skips 'foo' is unknown; choose one of uniform, end_anchored"):
        coverage(16, 64, skips="foo")


def test_a_target_too_far_for_a_curve_is_refused():
    with pytest.raises(RecipeError, match="target 1,000,000,000: coverage is computed distance by distance"):
        coverage(2 * K, 10**9)


def test_the_samples_tell_the_method_even_where_the_error_is_zero():
    assert coverage(16, 64, 2).samples == 0
    assert coverage(16, 64, 3, samples=1).samples == 1
    assert not coverage(16, 64, 3, samples=1).standard_error.any()
