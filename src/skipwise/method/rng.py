"""Random numbers that are a pure function of (seed, epoch, example index, draw number).

A counter-based generator keeps no state: it scrambles a counter, here those four numbers, and the result is the
random number. So an example is the same on every worker, rank and machine, and after every resume. The scrambling
function is SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), a
bijection of 64-bit integers; its output on consecutive inputs passes BigCrush.
"""

from dataclasses import dataclass

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(x: np.ndarray) -> np.ndarray:
    """Scramble uint64 ``x`` with the SplitMix64 finaliser; the arithmetic wraps modulo 2**64 on purpose."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class Rng:
    """A counter-based random number generator for each example of a batch.

    Every method takes the number of a draw and returns one value per example. The same draw gives the same values
    again, so code that needs several independent values gives each its own number.

    Attributes:
        state: uint64 [examples], the scrambled (seed, epoch, index) of each example.
    """

    state: np.ndarray

    @classmethod
    def of(cls, seed: int, epoch: int, indices: "np.ndarray | list[int] | int") -> "Rng":
        """Make the generators of the examples ``indices`` [examples] in one epoch."""
        words = np.atleast_1d(np.asarray(indices)).astype(np.uint64)
        head = _mix(np.array([seed % 2**64], dtype=np.uint64))
        head = _mix(head ^ np.uint64(epoch % 2**64))
        return cls(_mix(words ^ head))

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.state)

    def bits(self, draw: int) -> np.ndarray:
        """Return uniform 64-bit words: uint64 [examples]."""
        return _mix(self.state ^ _mix(np.array([draw], dtype=np.uint64)))

    def table(self, draw: int, columns: int) -> np.ndarray:
        """Return the words of the draws ``draw..draw + columns - 1``: uint64 [examples, columns]."""
        draws = np.arange(draw, draw + columns, dtype=np.uint64)
        return _mix(self.state[:, None] ^ _mix(draws)[None, :])

    def uniform(self, draw: int) -> np.ndarray:
        """Return uniform floats in [0, 1) with 53 random bits: float64 [examples]."""
        return (self.bits(draw) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def integers(self, draw: int, low: "np.ndarray | int", high: "np.ndarray | int") -> np.ndarray:
        """Return uniform integers from ``low`` to ``high``, both included: int64 [examples].

        The chance of a value differs from uniform by at most a relative (high - low + 1) * 2**-53.
        """
        low, high = np.asarray(low, dtype=np.int64), np.asarray(high, dtype=np.int64)
        return low + np.floor(self.uniform(draw) * (high - low + 1)).astype(np.int64)
