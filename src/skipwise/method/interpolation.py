"""Position interpolation: inverse frequencies in float64, and the ``rope_parameters`` that express them.

RoPE rotates pair j of a query or key at position m by the angle m * theta_j, with theta_j = base^(-2j/d) for
j = 0..d/2-1 (Su et al., RoFormer, 2021; d is the number of rotated dimensions of a head). Interpolation by the factor
s = L_t / L_c changes theta_j, so that the model meets no new angle at a position below L_t. Each interpolation
is a formula in ``frequencies`` and a dictionary in ``rope_parameters`` with which a stock transformers model computes
the same formula; a parity test compares the two.
"""

import math
from dataclasses import dataclass

import numpy as np

from skipwise.errors import RecipeError, one_of

NAMES = ("none", "linear", "ntk", "yarn", "yarn-revised")

# Where YaRN's ramp starts and ends, in turns within the original window (Peng et al., 2023, section 3.2).
_BETA_FAST, _BETA_SLOW = 32.0, 1.0


@dataclass(frozen=True)
class Rope:
    """A RoPE without interpolation.

    Attributes:
        theta: the base (``rope_theta``).
        dim: number of rotated dimensions of a head; fewer than its size if ``partial_rotary_factor`` < 1.
        original_length: the window that the model was trained with, in tokens.
    """

    theta: float
    dim: int
    original_length: int

    def inverse_frequencies(self) -> np.ndarray:
        """Return theta_j = base^(-2j/d): float64 [dim / 2]."""
        return self.theta ** (-np.arange(0, self.dim, 2, dtype=np.float64) / self.dim)


def frequencies(name: str, rope: Rope, factor: float) -> tuple[np.ndarray, float]:
    """Return the interpolated theta_j, float64 [dim / 2], and the factor by which cos and sin are multiplied.

    - ``none``: theta_j.
    - ``linear``: theta_j / s (Chen et al., 2023).
    - ``ntk``: (base * s^(d/(d-2)))^(-2j/d), so that the slowest pair turns s times slower (NTK-aware, 2023).
    - ``yarn``: m_j theta_j + (1 - m_j) theta_j / s, a mean of frequencies (Peng et al., 2023).
    - ``yarn-revised``: theta_j / ((1 - m_j) s + m_j), a mean of periods, as in the code that the PoSE authors
      released for LLaMA.

    m_j falls from 1 for pairs that turn 32 times within the original window to 0 for pairs that turn once. Both YaRNs
    multiply cos and sin by 0.1 ln s + 1.

    Raises:
        RecipeError: the name is unknown, or the factor is below 1.
    """
    one_of("interpolation", name, NAMES)
    if factor < 1:
        raise RecipeError(f"factor {factor:g} must be at least 1; choose a target above the original length")
    theta = rope.inverse_frequencies()
    if name == "none":
        return theta, 1.0
    if name == "linear":
        return theta / factor, 1.0
    if name == "ntk":
        return Rope(_ntk_theta(rope, factor), rope.dim, rope.original_length).inverse_frequencies(), 1.0
    mask = _yarn_mask(rope)
    if name == "yarn":
        return mask * theta + (1 - mask) * theta / factor, _attention_factor(factor)
    return theta / ((1 - mask) * factor + mask), _attention_factor(factor)


def rope_parameters(name: str, rope: Rope, factor: float) -> dict[str, object]:
    """Return the ``rope_parameters`` with which a stock transformers model computes ``frequencies``.

    The caller must keep other entries of the model's own ``rope_parameters``, such as ``partial_rotary_factor``.
    Revised YaRN becomes ``longrope`` with equal short and long factors, so it never switches between them.

    Raises:
        RecipeError: the name is unknown, or the factor is below 1.
    """
    frequencies(name, rope, factor)  # validates both
    if name == "none":
        return {"rope_type": "default", "rope_theta": rope.theta}
    if name == "linear":
        return {"rope_type": "linear", "rope_theta": rope.theta, "factor": float(factor)}
    if name == "ntk":
        return {"rope_type": "default", "rope_theta": _ntk_theta(rope, factor)}
    shared = {
        "rope_theta": rope.theta,
        "factor": float(factor),
        # Without this entry transformers would use the extended length as the original one.
        "original_max_position_embeddings": rope.original_length,
        "attention_factor": _attention_factor(factor),
    }
    if name == "yarn":
        return {"rope_type": "yarn", **shared, "beta_fast": _BETA_FAST, "beta_slow": _BETA_SLOW}
    mask = _yarn_mask(rope)
    factors = ((1 - mask) * factor + mask).tolist()
    # vLLM reads the attention factor under these names; transformers warns that they are unknown.
    mscale = {"short_mscale": shared["attention_factor"], "long_mscale": shared["attention_factor"]}
    return {"rope_type": "longrope", **shared, "short_factor": factors, "long_factor": list(factors), **mscale}


def _ntk_theta(rope: Rope, factor: float) -> float:
    if rope.dim <= 2:
        raise RecipeError(f"ntk needs more than 2 rotated dimensions, the model has {rope.dim}; choose linear or yarn")
    return rope.theta * factor ** (rope.dim / (rope.dim - 2))


def _yarn_mask(rope: Rope) -> np.ndarray:
    """Return m_j: float64 [dim / 2], 1 where a pair keeps its frequency, 0 where theta_j is divided by s.

    The pair that turns r times within the original window is j(r) = d ln(L_c / (2 pi r)) / (2 ln base). The
    ramp runs from floor(j(32)) to ceil(j(1)), as in YaRN's code and transformers.
    """

    def pair(turns: float) -> float:
        return rope.dim * math.log(rope.original_length / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = max(math.floor(pair(_BETA_FAST)), 0)
    high = min(math.ceil(pair(_BETA_SLOW)), rope.dim - 1)
    width = high - low if high != low else 0.001
    return 1 - np.clip((np.arange(rope.dim // 2) - low) / width, 0, 1)


def _attention_factor(factor: float) -> float:
    """Return 0.1 ln s + 1; attention logits grow by its square (Peng et al., 2023)."""
    return 0.1 * math.log(factor) + 1
