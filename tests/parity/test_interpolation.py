"""Frequencies against an independent scalar oracle, and against what stock transformers computes.

The oracle below shares no code with the package: plain floats, one pair at a time, from the papers' formulas.
Seen to fail with YaRN's ramp inverted, with periods mixed for frequencies, and with log in place of ln s; with
factors multiplied instead of divided by, with power's exponent not raised, with betas swapped, and with a stated attention factor left out.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from skipwise.errors import RecipeError
from skipwise.method.interpolation import NAMES, Rope, RopeSettings, frequencies, rope_parameters, turns_of
from skipwise.model.config import rope_of
from skipwise.model.extension import check_frequencies, plan_extension, set_interpolation
from tests import families

STATED = ("theta", "factors")  # nothing without settings
NAMES = tuple(name for name in NAMES if name not in STATED)
ROPES = [Rope(10_000.0, 128, 2048), Rope(10_000.0, 64, 256), Rope(500_000.0, 128, 8192), Rope(1e6, 16, 64)]
FACTORS = [1.0, 2.0, 8.0, 12.5, 64.0]


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


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("rope", ROPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_formulas(name: str, rope: Rope, factor: float) -> None:
    actual, attention = frequencies(name, rope, factor)
    wanted, scale = oracle(name, rope, factor)
    assert actual.dtype == np.float64
    np.testing.assert_allclose(actual, wanted, rtol=1e-12)
    assert attention == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("rope", ROPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_stock_transformers_computes_the_same(name: str, rope: Rope, factor: float, tmp_path) -> None:
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=2 * rope.dim,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=int(rope.original_length * factor),
        rope_parameters=rope_parameters(name, rope, factor),
    )
    config.save_pretrained(tmp_path)
    rotary = LlamaForCausalLM(LlamaConfig.from_pretrained(tmp_path)).model.rotary_emb
    # A position at the far end switches nothing: frequencies are the same before and after.
    rotary(torch.zeros(1, 1, rope.dim), torch.tensor([[int(rope.original_length * factor) - 1]]))
    wanted, scale = oracle(name, rope, factor)
    np.testing.assert_allclose(rotary.inv_freq.double().numpy(), wanted, rtol=1e-6)
    assert rotary.attention_scaling == pytest.approx(scale, rel=1e-9)


def test_ntk_turns_the_slowest_pair_as_linear_does() -> None:
    rope = ROPES[0]
    assert frequencies("ntk", rope, 8)[0][-1] == pytest.approx(frequencies("linear", rope, 8)[0][-1])
    assert frequencies("ntk", rope, 8)[0][0] == 1.0


def test_the_two_yarns_differ_where_the_ramp_runs() -> None:
    yarn, revised = (frequencies(name, ROPES[0], 16)[0] for name in ("yarn", "yarn-revised"))
    ratio = yarn / revised
    assert (np.abs(ratio - 1) > 1e-3).sum() == 24
    assert ratio.max() == pytest.approx(4.5, abs=0.1)


def rising(pairs: int, last: float = 9.0) -> tuple[float, ...]:
    """Factors that begin below 1 and do not rise everywhere, as published ones."""
    rising = [0.99 * (last / 0.99) ** (j / max(pairs - 1, 1)) for j in range(pairs)]
    return tuple([*rising[:-2], *reversed(rising[-2:])])


def told(rope: Rope) -> list[tuple[str, RopeSettings]]:
    """Every setting, alone and with others."""
    factors = rising(rope.dim // 2)
    return [
        ("theta", RopeSettings(rope_theta=7.3 * rope.theta)),
        ("factors", RopeSettings(factors=factors)),
        ("factors", RopeSettings(factors=factors, attention_factor=1.3)),
        ("power", RopeSettings(power=0.7)),
        ("power", RopeSettings(beta_slow=2.5, power=5, attention_factor=1.1)),
        *((name, RopeSettings(beta_fast=9.0)) for name in ("yarn", "yarn-revised")),
        *((name, RopeSettings(beta_slow=2.5, attention_factor=1.0)) for name in ("yarn", "yarn-revised")),
        *((name, RopeSettings(beta_fast=8, beta_slow=3, attention_factor=0.8)) for name in ("yarn", "yarn-revised")),
    ]


TOLD = [name for name, _ in told(ROPES[0])]


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("rope", ROPES, ids=str)
@pytest.mark.parametrize("case", range(len(TOLD)))
def test_formulas_with_settings(case: int, rope: Rope, factor: float) -> None:
    name, settings = told(rope)[case]
    actual, attention = frequencies(name, rope, factor, settings)
    wanted, scale = oracle(name, rope, factor, settings)
    assert actual.dtype == np.float64
    np.testing.assert_allclose(actual, wanted, rtol=1e-12)
    assert attention == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize("case", range(len(TOLD)))
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_neox", "phi", "gemma3", "olmo2"])
def test_stock_transformers_computes_the_same_with_settings(family: str, case: int, tmp_path) -> None:
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
    wanted, scale = oracle(name, rope, 8.0, settings)
    for position in (0, 8191):  # nothing switches at the far end
        rotary(torch.zeros(1, 1, 64), torch.tensor([[position]]), **kind)
        found = getattr(rotary, f"{prefix}inv_freq").double().numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert getattr(rotary, f"{prefix}attention_scaling") == pytest.approx(scale, rel=1e-9)


ropes = st.builds(Rope, st.floats(1e3, 1e7), st.integers(2, 64).map(lambda pairs: 2 * pairs), st.integers(256, 2**17))
factors = st.floats(1.0, 128.0)


@given(ropes, st.floats(1.01, 128.0))
def test_theta_at_what_ntk_computes_is_ntk(rope: Rope, factor: float) -> None:
    settings = RopeSettings(rope_theta=rope.theta * factor ** (rope.dim / (rope.dim - 2)))
    np.testing.assert_array_equal(frequencies("theta", rope, factor, settings)[0], frequencies("ntk", rope, factor)[0])
    assert rope_parameters("theta", rope, factor, settings) == rope_parameters("ntk", rope, factor)


@given(ropes, factors)
def test_equal_factors_are_linear(rope: Rope, factor: float) -> None:
    settings = RopeSettings(factors=(factor,) * (rope.dim // 2))
    actual = frequencies("factors", rope, factor, settings)[0]
    np.testing.assert_array_equal(actual, frequencies("linear", rope, factor)[0])


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


@pytest.mark.parametrize("name", NAMES)
def test_factor_one_is_no_interpolation(name: str) -> None:
    for rope in ROPES:
        np.testing.assert_allclose(frequencies(name, rope, 1.0)[0], rope.inverse_frequencies(), rtol=1e-15)


def test_what_is_refused_is_explained() -> None:
    with pytest.raises(RecipeError, match=r"'yam' is unknown .*; choose one of none, linear, ntk, yarn"):
        frequencies("yam", ROPES[0], 2)
    with pytest.raises(RecipeError, match=r"rope\.beta_slow 400 must be turns that a pair"):
        frequencies("power", ROPES[0], 2, RopeSettings(beta_slow=400))
    with pytest.raises(RecipeError, match=r"factor 0\.5 must be at least 1"):
        frequencies("linear", ROPES[0], 0.5)
    with pytest.raises(RecipeError, match="ntk needs more than 2 rotated dimensions"):
        rope_parameters("ntk", Rope(10_000.0, 2, 64), 2)
