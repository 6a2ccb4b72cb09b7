"""Position interpolation: the ``rope_parameters`` of each, and the inverse frequencies that they have, in float64.

RoPE rotates pair j of a query or key at position m by the angle m * theta_j, with theta_j = base^(-2j/d) for
j = 0..d/2-1 (Su et al., RoFormer, 2021; d is the number of rotated dimensions of a head). Interpolation by the factor
s = L_t / L_o changes theta_j, so that the model meets no new angle at a position below L_t. Each interpolation
is an entry of ``INTERPOLATIONS``: a function that returns the ``rope_parameters`` with which a stock transformers model
computes it. A parity test compares ``frequencies`` with such a model.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from skipwise.errors import RecipeError, one_of

# Where YaRN's ramp starts and ends, in turns within the original window (Peng et al., 2023, section 3.2).
BETA_FAST, BETA_SLOW = 32.0, 1.0
# Defaults of ``power``, which read better than YaRN on both models that were measured (docs/results.md): the turns of the first
# pair that gets the whole factor, the power, and k of the attention factor 1 + k ln s.
POWER_SLOW, POWER, ATTENTION = 0.6, 2.0, 0.07
# Far wider than what is published; beyond them angles leave float32, or attention its range.
_BOUNDS = {
    "rope_theta": (1.0, 1e15),
    "beta_fast": (1e-3, 1e12),
    "beta_slow": (1e-3, 1e12),
    "power": (0.1, 100.0),
    "attention_factor": (1e-2, 1e2),
    "factors": (1e-3, 1e6),
}


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


@dataclass(frozen=True)
class RopeSettings:
    """Optional settings of an interpolation; None is its default.

    Attributes:
        rope_theta: the base that ``theta`` sets, above the model's own.
        beta_fast: pairs that make at least this many turns within the original window keep their frequency (YaRNs); default 32.
        beta_slow: pairs that make at most this many are divided by s; default 1 (YaRNs) or 0.6 (``power``).
        power: how late the divisor rises to s, pair by pair (``power``); default 2.
        attention_factor: cos and sin are multiplied by it; ``frequencies`` has the defaults.
        factors: what ``factors`` divides theta_j by, a number for each rotated pair, the fastest pair first.
    """

    rope_theta: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    power: float | None = None
    attention_factor: float | None = None
    factors: tuple[float, ...] | None = None

    def __str__(self) -> str:
        """Those that are set, as ``beta_fast 16, attention_factor 1.1``; a list by its length."""
        given = {key: value for key, value in vars(self).items() if value is not None}
        return ", ".join(f"{len(v)} {k}" if isinstance(v, tuple) else f"{k} {v:.12g}" for k, v in given.items())


DEFAULTS = RopeSettings()


@dataclass(frozen=True)
class Interpolation:
    """An entry of ``INTERPOLATIONS``.

    Attributes:
        parameters: ``(rope, factor, settings) -> rope_parameters``, as ``_base`` or ``_longrope`` write them.
        settings: the fields of ``RopeSettings`` that it reads.
        needs: the one of them that it cannot do without.
    """

    parameters: Callable[[Rope, float, RopeSettings], dict[str, Any]]
    settings: tuple[str, ...] = ()
    needs: str | None = None


def check_settings(name: str, settings: RopeSettings) -> None:
    """Require settings that belong to the interpolation, those that it needs, and numbers in their bounds.

    Factors below 1, and factors that do not rise, are taken: published lists have them, as MiniCPM4's begins with 0.998.

    Raises:
        RecipeError: the name is unknown, or a setting breaks its rule.
    """
    one_of("interpolation", name, INTERPOLATIONS)
    entry = INTERPOLATIONS[name]
    for key, (least, most) in _BOUNDS.items():
        value = getattr(settings, key)
        if value is None:
            if key == entry.needs:
                raise RecipeError(f"rope.{key} is missing: interpolation {name} needs it; give it, or choose another")
            continue
        if key not in entry.settings:
            names = [name for name, entry in INTERPOLATIONS.items() if key in entry.settings]
            raise RecipeError(
                f"rope.{key} belongs to interpolation {' or '.join(names)}, not to {name}; leave it out, or choose "
                f"interpolation {names[0]}"
            )
        for number in value if key == "factors" else [value]:
            if not least <= number <= most:
                raise RecipeError(f"rope.{key} {number} must lie in {least:g}..{most:g}; correct it")
    fast, slow = _betas(settings)
    if "beta_fast" in entry.settings and fast <= slow:
        raise RecipeError(
            f"rope.beta_fast {fast:g} must exceed rope.beta_slow {slow:g}; raise the one or lower the other"
        )


def rope_parameters(name: str, rope: Rope, factor: float, settings: RopeSettings = DEFAULTS) -> dict[str, Any]:
    """Return the ``rope_parameters`` with which a stock transformers model computes ``frequencies``.

    The caller must keep other entries of the model's own ``rope_parameters``, such as ``partial_rotary_factor``.

    Raises:
        RecipeError: the name is unknown, the factor is below 1, or a setting breaks its rule.
    """
    check_settings(name, settings)
    if factor < 1:
        raise RecipeError(f"factor {factor:g} must be at least 1; choose a target above the original length")
    return INTERPOLATIONS[name].parameters(rope, float(factor), settings)


def frequencies(name: str, rope: Rope, factor: float, settings: RopeSettings = DEFAULTS) -> tuple[np.ndarray, float]:
    """Return the interpolated theta_j, float64 [dim / 2], and the factor by which cos and sin are multiplied.

    It is 1 where an interpolation has no attention factor.

    Raises:
        RecipeError: the name is unknown, the factor is below 1, or a setting breaks its rule.
    """
    made = rope_parameters(name, rope, factor, settings)
    theta = Rope(made["rope_theta"], rope.dim, rope.original_length).inverse_frequencies()
    if made["rope_type"] == "linear":
        theta = theta / factor
    elif made["rope_type"] == "yarn":
        mask = _yarn_mask(rope, settings)
        theta = mask * theta + (1 - mask) * theta / factor
    elif made["rope_type"] == "longrope":
        theta = theta / np.array(made["long_factor"])
    return theta, made.get("attention_factor", 1.0)


def _none(rope: Rope, factor: float, settings: RopeSettings) -> dict[str, Any]:
    """Keep theta_j."""
    return _base(rope.theta)


def _linear(rope: Rope, factor: float, settings: RopeSettings) -> dict[str, Any]:
    """Divide every theta_j by s (Chen et al., 2023)."""
    return {"rope_type": "linear", "rope_theta": rope.theta, "factor": factor}


def _ntk(rope: Rope, factor: float, settings: RopeSettings) -> dict[str, Any]:
    """Take base * s^(d/(d-2)), so that the slowest pair turns s times slower (NTK-aware, 2023)."""
    if rope.dim <= 2:
        raise RecipeError(f"ntk needs more than 2 rotated dimensions, the model has {rope.dim}; choose linear or yarn")
    return _base(rope.theta * factor ** (rope.dim / (rope.dim - 2)))


def _theta(rope: Rope, factor: float, settings: RopeSettings) -> dict[str, Any]:
    """Take the base that is given (adjusted base frequency, Xiong et al., 2023)."""
    assert settings.rope_theta is not None  # check_settings
    if settings.rope_theta <= rope.theta:
        raise RecipeError(
            f"rope.rope_theta {settings.rope_theta:,.12g} must exceed the model's own rope_theta, {rope.theta:,.12g}; "
            "give a larger one"
        )
    return _base(float(settings.rope_theta))


def _yarn(rope: Rope, factor: float, settings: RopeSettings) -> dict[str, Any]:
    """Take m_j theta_j + (1 - m_j) theta_j / s, a mean of frequencies (Peng et al., 2023)."""
    _yarn_mask(rope, settings)  # refuses what no pair turns
    beta_fast, beta_slow = _betas(settings)
    scaled = _scaled(rope, factor, settings, yarn_attention(factor))
    # vLLM and SGLang read attn_factor, which multiplies YaRN's default; transformers warns that it is unknown.
    times = scaled["attention_factor"] / yarn_attention(factor)
    others = {} if times == 1 else {"attn_factor": times}
    return {"rope_type": "yarn", **scaled, "beta_fast": beta_fast, "beta_slow": beta_slow, **others}


def _yarn_revised(rope: Rope, factor: float, settings: RopeSettings) -> dict[str, Any]:
    """Divide by (1 - m_j) s + m_j, a mean of periods, as the code that the PoSE authors released for LLaMA."""
    mask = _yarn_mask(rope, settings)
    return _longrope((1 - mask) * factor + mask, rope, factor, settings, yarn_attention(factor))


def _power(rope: Rope, factor: float, settings: RopeSettings) -> dict[str, Any]:
    """Divide by s^(min(1, j / c)^power), where pair c turns beta_slow times within the original window.

    So every pair but the first is divided, the slow ones by s; power 1 has the shape of LongRoPE2's start (Shang et al., 2025).
    """
    slow = POWER_SLOW if settings.beta_slow is None else settings.beta_slow
    last = pair_of(rope, slow)
    if last <= 0:
        raise RecipeError(
            f"rope.beta_slow {slow:g} must be turns that a pair of the model makes within its "
            f"{rope.original_length:,} tokens, and none does; choose a smaller one"
        )
    power = POWER if settings.power is None else settings.power
    exponents = np.minimum(1, np.arange(rope.dim // 2) / last) ** power
    return _longrope(factor**exponents, rope, factor, settings, 1 + ATTENTION * math.log(factor))


def _factors(rope: Rope, factor: float, settings: RopeSettings) -> dict[str, Any]:
    """Divide theta_j by factors_j, a list that a search found (LongRoPE, Ding et al., 2024)."""
    factors = np.array(settings.factors, dtype=np.float64)
    if len(factors) != (pairs := len(rope.inverse_frequencies())):
        raise RecipeError(
            f"rope.factors has {len(factors)} numbers and must have {pairs}, one for each rotated pair of a head; correct it"
        )
    # The attention factor of LongRoPE, as in transformers.
    return _longrope(factors, rope, factor, settings, math.sqrt(1 + math.log(factor) / math.log(rope.original_length)))


_YARN = ("beta_fast", "beta_slow", "attention_factor")
INTERPOLATIONS = {
    "none": Interpolation(_none),
    "linear": Interpolation(_linear),
    "ntk": Interpolation(_ntk),
    "yarn": Interpolation(_yarn, _YARN),
    "yarn-revised": Interpolation(_yarn_revised, _YARN),
    "power": Interpolation(_power, ("beta_slow", "power", "attention_factor")),
    "theta": Interpolation(_theta, ("rope_theta",), needs="rope_theta"),
    "factors": Interpolation(_factors, ("attention_factor", "factors"), needs="factors"),
}


def _base(theta: float) -> dict[str, Any]:
    """Return parameters with another base alone."""
    return {"rope_type": "default", "rope_theta": theta}


def _scaled(rope: Rope, factor: float, settings: RopeSettings, attention: float) -> dict[str, Any]:
    """Return the parameters that YaRN and longrope share; ``attention`` is the default of the attention factor."""
    return {
        "rope_theta": rope.theta,
        "factor": factor,
        # Without this entry transformers would use the extended length as the original one.
        "original_max_position_embeddings": rope.original_length,
        "attention_factor": attention if settings.attention_factor is None else float(settings.attention_factor),
    }


def _longrope(
    divisors: np.ndarray, rope: Rope, factor: float, settings: RopeSettings, attention: float
) -> dict[str, Any]:
    """Return parameters that divide theta_j by divisors_j: float64 [dim / 2].

    The short and long factors are equal, so a model never switches between them. vLLM and SGLang read the mscales.
    """
    scaled = _scaled(rope, factor, settings, attention)
    mscales = dict.fromkeys(("short_mscale", "long_mscale"), scaled["attention_factor"])
    lists = {"short_factor": divisors.tolist(), "long_factor": divisors.tolist()}
    return {"rope_type": "longrope", **scaled, **lists, **mscales}


def _betas(settings: RopeSettings) -> tuple[float, float]:
    """Return where YaRN's ramp starts and ends, in turns within the original window."""
    fast, slow = settings.beta_fast, settings.beta_slow
    return (BETA_FAST if fast is None else float(fast)), (BETA_SLOW if slow is None else float(slow))


def _yarn_mask(rope: Rope, settings: RopeSettings) -> np.ndarray:
    """Return m_j: float64 [dim / 2], 1 where a pair keeps its frequency, 0 where theta_j is divided by s.

    The ramp runs from floor(j(beta_fast)) to ceil(j(beta_slow)), as in YaRN's code and transformers.
    """
    beta_fast, beta_slow = _betas(settings)
    low = max(math.floor(pair_of(rope, beta_fast)), 0)
    high = min(math.ceil(pair_of(rope, beta_slow)), rope.dim - 1)
    if low > high:  # transformers would divide the fast pairs and keep the slow ones
        raise RecipeError(
            f"rope.beta_fast {beta_fast:g} and rope.beta_slow {beta_slow:g} must be turns that pairs of the model make within "
            f"its {rope.original_length:,} tokens, and none does; choose others, as the defaults {BETA_FAST:g} and "
            f"{BETA_SLOW:g}"
        )
    width = high - low if high != low else 0.001
    return 1 - np.clip((np.arange(rope.dim // 2) - low) / width, 0, 1)


def pair_of(rope: Rope, turns: float) -> float:
    """Return the pair j(r) = d ln(L_o / (2 pi r)) / (2 ln base) that turns r times within the original window."""
    return rope.dim * math.log(rope.original_length / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def turns_of(rope: Rope, pair: float) -> float:
    """Return how often a pair turns within the original window: the inverse of ``pair_of``."""
    return rope.original_length / (2 * math.pi * rope.theta ** (2 * pair / rope.dim))


def yarn_attention(factor: float) -> float:
    """Return 0.1 ln s + 1, YaRN's default attention factor (Peng et al., 2023)."""
    return 0.1 * math.log(factor) + 1
