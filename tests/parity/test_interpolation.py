"""Frequencies against an independent scalar oracle, and against what stock transformers computes.

The oracle below shares no code with the package: plain floats, one pair at a time, from the papers' formulas."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from skipwise.errors import RecipeError
from skipwise.method.interpolation import INTERPOLATIONS, Rope, RopeSettings, frequencies, rope_parameters, turns_of
from skipwise.model.config import rope_of
from skipwise.model.extension import check_frequencies, plan_extension, set_interpolation
from tests import families

STATED = ("theta", "factors")  # nothing without settings
NAMES = tuple(name for name in INTERPOLATIONS if name not in STATED)
ORACLE = ("none", "linear", "ntk", "yarn", "yarn-revised", "power", *STATED)
CASES = [(Rope(10_000.0, 128, 2048), 8.0), (Rope(500_000.0, 64, 8192), 12.5), (Rope(1e6, 16, 64), 1.0)]


def oracle(name: str, rope: Rope, s: float, told: RopeSettings | None = None) -> tuple[list[float], float]:
    d, base, length = rope.dim, rope.theta, rope.original_length
    told = told or RopeSettings()
    scale = 1.0 if name in ("none", "linear", "ntk", "theta") else 1 + math.log(s) / 10
    if name == "power":
        scale = 1 + 7 * math.log(s) / 100
    if name == "factors":
        scale = (1 + math.log(s, length)) ** 0.5
    scale = told.attention_factor or scale

    def turns_to_pair(turns: float) -> float:
        # The pair whose wavelength 2 pi base^(2j/d) fits the window `turns` times.
        return math.log(length / turns / (2 * math.pi), base) * d / 2

    whole = turns_to_pair(told.beta_slow or 0.6)
    low, high = turns_to_pair(told.beta_fast or 32), turns_to_pair(told.beta_slow or 1)
    low, high = max(0, math.floor(low)), min(d - 1, math.ceil(high))
    result = []
    for j in range(d // 2):
        period = base ** (2 * j / d)  # 1 / theta_j
        keep = 1 - min(1, max(0, (j - low) / (high - low)))  # 1 for fast pairs
        if name == "none":
            result.append(1 / period)
        elif name == "linear":
            result.append(1 / (s * period))
        elif name == "ntk":
            result.append(1 / (base * s ** (d / (d - 2))) ** (2 * j / d))
        elif name == "theta":
            result.append(1 / told.rope_theta ** (2 * j / d))
        elif name == "factors":
            result.append(1 / (told.factors[j] * period))
        elif name == "power":
            result.append(math.exp(-math.log(s) * min(1, j / whole) ** (told.power or 2)) / period)
        elif name == "yarn":
            result.append(keep / period + (1 - keep) / (s * period))
        else:
            result.append(1 / (keep * period + (1 - keep) * s * period))
    return result, scale


def rising(pairs: int, last: float = 9.0) -> tuple[float, ...]:
    """Factors that begin below 1 and do not rise everywhere, as published ones."""
    rising = [0.99 * (last / 0.99) ** (j / max(pairs - 1, 1)) for j in range(pairs)]
    return tuple([*rising[:-2], *reversed(rising[-2:])])


def told(rope: Rope) -> list[tuple[str, RopeSettings]]:
    """Every interpolation, and every setting, alone and with others."""
    factors = rising(rope.dim // 2)
    return [
        *((name, RopeSettings()) for name in NAMES),
        ("theta", RopeSettings(rope_theta=7.3 * rope.theta)),
        ("factors", RopeSettings(factors=factors)),
        ("factors", RopeSettings(factors=factors, attention_factor=1.3)),
        ("power", RopeSettings(power=0.7)),
        ("power", RopeSettings(beta_slow=2.5, power=5, attention_factor=1.1)),
        *((name, RopeSettings(beta_fast=9.0)) for name in ("yarn", "yarn-revised")),
        *((name, RopeSettings(beta_slow=2.5, attention_factor=1.0)) for name in ("yarn", "yarn-revised")),
        *((name, RopeSettings(beta_fast=8, beta_slow=3, attention_factor=0.8)) for name in ("yarn", "yarn-revised")),
    ]


TOLD = [name for name, _ in told(CASES[0][0])]


@pytest.mark.parametrize(("rope", "factor"), CASES, ids=str)
@pytest.mark.parametrize("case", [case for case, name in enumerate(TOLD) if name in ORACLE])
def test_formulas(case: int, rope: Rope, factor: float) -> None:
    name, settings = told(rope)[case]
    actual, attention = frequencies(name, rope, factor, settings)
    wanted, scale = oracle(name, rope, factor, settings)
    assert actual.dtype == np.float64
    np.testing.assert_allclose(actual, wanted, rtol=1e-12)
    assert attention == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize("case", range(len(TOLD)))
@pytest.mark.parametrize("family", ["llama", "phi", "gemma3"])
def test_stock_transformers_computes_the_same(family: str, case: int, tmp_path) -> None:
    dim = families.ROTATED.get(family, 16)
    rope = Rope(rope_of(families.config(family))["rope_theta"], dim, 1024)
    name, settings = told(rope)[case]
    config = families.config(family, max_position_embeddings=1024)
    asked = {key: value for key, value in vars(settings).items() if value is not None}
    extension = plan_extension(config, target_length=8192, original_length=1024, interpolation=name, rope=asked)
    set_interpolation(config, extension)
    config.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    check_frequencies(model, extension)
    prefix = "full_attention_" if family == "gemma3" else ""
    (rotary,) = [part for part in model.modules() if hasattr(part, f"{prefix}inv_freq")]
    kind = {"layer_type": "full_attention"} if family == "gemma3" else {}
    wanted, scale = (oracle if name in ORACLE else frequencies)(name, rope, 8.0, settings)
    for position in (0, 8191):  # nothing switches at the far end
        rotary(torch.zeros(1, 1, 64), torch.tensor([[position]]), **kind)
        found = getattr(rotary, f"{prefix}inv_freq").double().numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert getattr(rotary, f"{prefix}attention_scaling") == pytest.approx(scale, rel=1e-9)


ropes = st.builds(Rope, st.floats(1e3, 1e7), st.integers(2, 64).map(lambda pairs: 2 * pairs), st.integers(256, 2**17))
factors = st.floats(1.0, 128.0)


@given(ropes, factors)
def test_the_list_that_revised_yarn_computes_is_revised_yarn(rope: Rope, factor: float) -> None:
    revised = rope_parameters("yarn-revised", rope, factor)
    settings = RopeSettings(factors=tuple(revised["long_factor"]), attention_factor=revised["attention_factor"])
    assert rope_parameters("factors", rope, factor, settings) == revised


@given(ropes, factors, st.sampled_from(["yarn", "yarn-revised"]))
def test_defaults_that_are_stated_change_nothing(rope: Rope, factor: float, name: str) -> None:
    attention = frequencies(name, rope, factor)[1]
    settings = RopeSettings(beta_fast=32, beta_slow=1, attention_factor=attention)
    assert rope_parameters(name, rope, factor, settings) == rope_parameters(name, rope, factor)


@given(ropes, factors)
def test_power_one_to_the_last_pair_is_ntk(rope: Rope, factor: float) -> None:
    settings = RopeSettings(beta_slow=turns_of(rope, rope.dim / 2 - 1), power=1.0)
    if settings.beta_slow >= 1e-3:
        actual = frequencies("power", rope, factor, settings)[0]
        np.testing.assert_allclose(actual, frequencies("ntk", rope, factor)[0], rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "dim", "factor"),
    [("yam", 128, 2.0), ("linear", 128, 0.5), ("ntk", 2, 2.0), ("factors", 128, 2.0), ("power", 128, 2.0)],
)
def test_what_cannot_be_computed_is_refused(name: str, dim: int, factor: float) -> None:
    settings = {"factors": RopeSettings(factors=(2.0,)), "power": RopeSettings(beta_slow=400)}
    with pytest.raises(RecipeError):
        rope_parameters(name, Rope(10_000.0, dim, 64), factor, settings.get(name, RopeSettings()))
