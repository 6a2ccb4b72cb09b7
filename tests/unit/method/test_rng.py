import numpy as np
from hypothesis import given, strategies as st

from skipwise.method.rng import Rng, _mix

GOLDEN = 0x9E3779B97F4A7C15
SEEDS = st.integers(0, 2**64 - 1)


def test_mixing_is_splitmix64() -> None:
    """The first outputs of the reference generator seeded with 0: its state grows by the golden gamma."""
    states = np.array([0, GOLDEN, 2 * GOLDEN % 2**64], dtype=np.uint64)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [int(word) for word in _mix(states)] == expected


def test_frozen_values() -> None:
    """Every plan depends on these words: if they change, a resumed run continues with other examples."""
    rng = Rng.of(seed=0, epoch=0, indices=[0, 1])
    assert [hex(int(word)) for word in rng.bits(0)] == ["0xf58a68dc87e5942", "0x30e9f0eb0062d15f"]


@given(SEEDS, st.integers(0, 1000), st.lists(st.integers(0, 2**40), min_size=1, max_size=20))
def test_an_example_does_not_depend_on_its_batch(seed: int, epoch: int, indices: list[int]) -> None:
    together = Rng.of(seed, epoch, indices).bits(3)
    alone = [Rng.of(seed, epoch, index).bits(3)[0] for index in indices]
    assert together.tolist() == [int(word) for word in alone]


@given(SEEDS, st.integers(0, 2**30), st.integers(-(2**40), 2**40), st.integers(0, 2**40))
def test_integers_stay_within_both_ends(seed: int, draw: int, low: int, width: int) -> None:
    drawn = Rng.of(seed, 0, range(16)).integers(draw, low, low + width)
    assert drawn.dtype == np.int64
    assert drawn.min() >= low
    assert drawn.max() <= low + width


def test_integers_are_uniform() -> None:
    """Chi-square over 100,000 examples; its mean is bins - 1, its variance 2 (bins - 1)."""
    bins, examples = 7, 100_000
    counts = np.bincount(Rng.of(0, 0, np.arange(examples)).integers(0, 0, bins - 1), minlength=bins)
    chi_square = ((counts - examples / bins) ** 2 / (examples / bins)).sum()
    assert len(counts) == bins
    assert chi_square < bins - 1 + 5 * np.sqrt(2 * (bins - 1))


def test_draws_are_uncorrelated() -> None:
    rng = Rng.of(0, 0, np.arange(100_000))
    correlation = np.corrcoef([rng.uniform(draw) for draw in range(4)]) - np.eye(4)
    assert np.abs(correlation).max() < 5 / np.sqrt(100_000)
