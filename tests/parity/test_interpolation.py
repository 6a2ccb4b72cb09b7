"""Frequencies against an independent scalar oracle, and against what stock transformers computes.

The oracle below shares no code with the package: plain floats, one pair at a time, from the papers' formulas.
Seen to fail with YaRN's ramp inverted, with periods mixed for frequencies, and with log in place of ln s.
"""

import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from skipwise.errors import RecipeError
from skipwise.method.interpolation import NAMES, Rope, frequencies, rope_parameters

ROPES = [Rope(10_000.0, 128, 2048), Rope(10_000.0, 64, 256), Rope(500_000.0, 128, 8192), Rope(1e6, 16, 64)]
FACTORS = [1.0, 2.0, 8.0, 12.5, 64.0]


def oracle(name: str, rope: Rope, s: float) -> tuple[list[float], float]:
    d, base, length = rope.dim, rope.theta, rope.original_length
    scale = 1.0 if name in ("none", "linear", "ntk") else 1 + math.log(s) / 10

    def turns_to_pair(turns: float) -> float:
        # The pair whose wavelength 2 pi base^(2j/d) fits the window `turns` times.
        return math.log(length / turns / (2 * math.pi), base) * d / 2

    low, high = max(0, math.floor(turns_to_pair(32))), min(d - 1, math.ceil(turns_to_pair(1)))
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


@pytest.mark.parametrize("name", NAMES)
def test_factor_one_is_no_interpolation(name: str) -> None:
    for rope in ROPES:
        np.testing.assert_allclose(frequencies(name, rope, 1.0)[0], rope.inverse_frequencies(), rtol=1e-15)


def test_what_is_refused_is_explained() -> None:
    with pytest.raises(RecipeError, match=r"'yam' is unknown .*; choose one of none, linear, ntk, yarn"):
        frequencies("yam", ROPES[0], 2)
    with pytest.raises(RecipeError, match=r"factor 0\.5 must be at least 1"):
        frequencies("linear", ROPES[0], 0.5)
    with pytest.raises(RecipeError, match="ntk needs more than 2 rotated dimensions"):
        rope_parameters("ntk", Rope(10_000.0, 2, 64), 2)
