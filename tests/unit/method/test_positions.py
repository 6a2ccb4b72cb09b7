"""Laws of the position plans: conservation, order, bounds, reproducibility, and the distributions of the paper."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from skipwise.errors import DataError, RecipeError
from skipwise.method.positions import (
    SCHEMES,
    ChunkRules,
    Plans,
    cream,
    end_anchored_skips,
    full_length,
    no_skip,
    pose,
    randpos,
)
from skipwise.method.rng import Rng


def rng(examples: int = 64, seed: int = 0, epoch: int = 0) -> Rng:
    return Rng.of(seed, epoch, np.arange(examples))


@st.composite
def settings_of_pose(draw: st.DrawFn) -> dict:
    train = draw(st.integers(1, 96))
    return {
        "train_length": train,
        "target_length": draw(st.integers(train, 1000)),
        "chunks": draw(st.integers(1, min(train, 8))),
        "content": draw(st.sampled_from(["paper", "even", "zero", "aligned"])),
        "no_skip_share": draw(st.sampled_from([0.0, 0.5])),
        "room": draw(st.integers(0, 500)),
        "seed": draw(st.integers(0, 2**63)),
    }


def plan(rule: dict, examples: int = 32) -> Plans:
    documents = np.full(examples, rule["train_length"] + rule["room"])
    return pose(
        rng(examples, rule["seed"]),
        rule["train_length"],
        rule["target_length"],
        documents,
        ChunkRules(chunks=rule["chunks"], content=rule["content"], no_skip_share=rule["no_skip_share"]),
    )


@given(settings_of_pose())
def test_every_plan_keeps_the_laws(rule: dict) -> None:
    plans = plan(rule)
    positions, content = plans.position_ids(), plans.content_indices()
    assert plans.lengths.shape == (32, rule["chunks"])
    assert (plans.lengths >= 1).all()
    assert (plans.lengths.sum(axis=1) == rule["train_length"]).all()
    assert (np.diff(positions, axis=1) > 0).all()
    assert (positions[:, 0] == 0).all()
    assert positions.max() < rule["target_length"]
    assert content.min() >= 0
    assert content.max() < rule["train_length"] + rule["room"]
    assert (np.diff(plans.skips, axis=1) >= 0).all()
    assert (np.diff(plans.offsets, axis=1) >= 0).all()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("train", "target"), [(64, 512), (65, 1000), (8, 8)])
def test_every_scheme_stays_within_the_target_and_the_document(scheme: str, train: int, target: int) -> None:
    plans = SCHEMES[scheme](rng(), train, target, np.full(64, 1200), ChunkRules())
    positions, content = plans.position_ids(), plans.content_indices()
    assert (plans.lengths.sum(axis=1) == (target if scheme == "full_length" else train)).all()
    assert (np.diff(positions, axis=1) > 0).all()
    assert positions.min() >= 0
    assert positions.max() < target
    assert content.min() >= 0
    assert content.max() < 1200


def test_a_share_of_examples_is_contiguous_and_the_others_are_as_without_it() -> None:
    plans, without = (
        pose(rng(4000, 3), 64, 512, np.full(4000, 300), ChunkRules(no_skip_share=share)) for share in (0.25, 0.0)
    )
    contiguous = (plans.position_ids() == np.arange(64)).all(axis=1) & (np.diff(plans.content_indices()) == 1).all(
        axis=1
    )
    assert plans.content_indices()[contiguous, 0].max() == 300 - 64
    assert abs(contiguous.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 4000)
    assert (plans.position_ids()[~contiguous] == without.position_ids()[~contiguous]).all()


def test_position_ids_are_the_papers_equation() -> None:
    plans = Plans(np.array([[2, 3]]), np.array([[0, 10]]), np.array([[0, 4]]))
    assert plans.position_ids().tolist() == [[0, 1, 12, 13, 14]]
    assert plans.content_indices().tolist() == [[0, 1, 6, 7, 8]]


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_epochs_and_seeds_give_other_examples(scheme: str) -> None:
    documents = np.full(64, 2000)
    plans = [SCHEMES[scheme](k, 64, 512, documents) for k in (rng(), rng(seed=1), rng(epoch=1))]
    drawn = [np.hstack([p.position_ids(), p.content_indices()]) for p in plans]
    for a in range(3):
        for b in range(a):
            assert (drawn[a] != drawn[b]).any(axis=1).mean() > 0.95


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


def test_first_length_and_skip_are_uniform_as_in_the_paper() -> None:
    examples, train, target = 40_000, 33, 65
    plans = pose(rng(examples), train, target, np.full(examples, 100))
    first = np.bincount(plans.lengths[:, 0], minlength=train)[1:]
    skip = np.bincount(plans.skips[:, 1], minlength=target - train + 1)
    offset = np.bincount(plans.offsets[:, 1], minlength=100 - train + 1)
    assert (len(first), len(skip), len(offset)) == (32, 33, 68)
    # The 0.9999 quantiles of chi-square with so many classes.
    assert chi_square(first) < 71
    assert chi_square(skip) < 72
    assert chi_square(offset) < 119


@given(st.integers(2, 40), st.integers(0, 200))
def test_end_anchored_skips_give_every_far_distance_the_same_chance(train: int, room: int) -> None:
    skips = end_anchored_skips(train, train + room)
    for distance in range(train, train + room):
        assert np.sum((distance - train + 1 <= skips) & (skips <= distance - 1)) == 1


@given(st.integers(3, 96), st.integers(0, 3000), st.integers(0, 500), st.integers(0, 2**63))
def test_cream_has_a_head_at_0_and_a_tail_at_the_target(train, more, room, seed) -> None:
    target = train + more
    documents = np.full(32, train + room)
    plans = cream(rng(32, seed), train, target, documents)
    positions = plans.position_ids()
    head, middle, tail = plans.lengths.T
    assert (plans.lengths >= 1).all()
    assert (head == tail).all()
    assert set(head.tolist()) <= {train // 3, min(train // 3, 4 * target // train)}
    assert (head + middle + tail == train).all()
    assert (np.diff(positions, axis=1) > 0).all()
    assert (positions[:, 0] == 0).all()
    assert (positions[:, -1] == target - 1).all()


def test_randpos_draws_each_position_with_the_same_chance() -> None:
    examples, train, target = 8000, 8, 24
    positions = randpos(rng(examples), train, target, np.full(examples, 50)).position_ids()
    assert (np.diff(positions, axis=1) > 0).all()
    share = np.bincount(positions.ravel(), minlength=target) / examples
    assert np.abs(share - train / target).max() < 5 * (train / target / examples) ** 0.5


def test_controls_are_contiguous() -> None:
    documents = np.full(3, 600)
    assert (full_length(rng(3), 64, 512, documents).position_ids() == np.arange(512)).all()
    assert (no_skip(rng(3), 64, 512, documents).position_ids() == np.arange(64)).all()


@pytest.mark.parametrize(
    ("lengths", "options", "error"),
    [
        ((64, 512, 100), {"chunks": 65}, RecipeError),
        ((64, 32, 100), {}, RecipeError),
        ((64, 512, 63), {}, DataError),
        ((64, 512, 64), {"chunks": 3, "skips": "end_anchored"}, RecipeError),
    ],
)
def test_what_no_plan_can_meet_is_refused(lengths, options, error) -> None:
    train, target, tokens = lengths
    with pytest.raises(error):
        pose(rng(1), train, target, np.array([tokens]), ChunkRules(**options))
    with pytest.raises(DataError):
        full_length(rng(1), 64, 512, np.array([511]))
