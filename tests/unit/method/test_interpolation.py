"""Which settings an interpolation takes, and what of them is refused."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipwise.errors import RecipeError
from skipwise.method.interpolation import NAMES, Rope, RopeSettings, check_settings, frequencies, rope_parameters

ROPE = Rope(10_000.0, 32, 2048)
RISING = tuple(8 ** (j / 15) for j in range(16))
NUMBERS = {
    "rope_theta": 5e6,
    "beta_fast": 16.0,
    "beta_slow": 2.0,
    "power": 3.0,
    "attention_factor": 1.2,
    "factors": RISING,
}
READ = {
    "yarn": {"beta_fast", "beta_slow", "attention_factor"},
    "yarn-revised": {"beta_fast", "beta_slow", "attention_factor"},
    "power": {"beta_slow", "power", "attention_factor"},
    "theta": {"rope_theta"},
    "factors": {"factors", "attention_factor"},
}
NEEDED = {"theta": "rope_theta", "factors": "factors"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", NUMBERS)
def test_a_setting_changes_its_own_interpolations_and_is_refused_by_others(name: str, key: str) -> None:
    needed = {NEEDED[name]: NUMBERS[NEEDED[name]]} if name in NEEDED else {}
    settings = RopeSettings(**{**needed, key: NUMBERS[key]})
    if key not in READ.get(name, set()):
        with pytest.raises(RecipeError, match=rf"rope\.{key} belongs to interpolation .*, not to {name}; leave it out"):
            frequencies(name, ROPE, 8, settings)
    elif key not in needed:
        assert rope_parameters(name, ROPE, 8, settings) != rope_parameters(name, ROPE, 8, RopeSettings(**needed))
    else:
        check_settings(name, settings)


@pytest.mark.parametrize("name", NEEDED)
def test_what_an_interpolation_needs_is_said(name: str) -> None:
    with pytest.raises(RecipeError, match=rf"rope\.{NEEDED[name]} is missing: interpolation {name} needs it"):
        rope_parameters(name, ROPE, 8)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-4, 1e300, float("nan"), float("inf")])
@pytest.mark.parametrize("key", NUMBERS)
def test_numbers_lie_in_their_bounds(key: str, value: float) -> None:
    name = next(name for name, keys in READ.items() if key in keys)
    settings = RopeSettings(**{key: (value, *RISING[1:]) if key == "factors" else value})
    with pytest.raises(RecipeError, match=re.escape(f"rope.{key} {value} must lie in ")):
        check_settings(name, settings)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "theta",
            {"rope_theta": 5e3},
            r"rope\.rope_theta 5,000 must exceed the model's own rope_theta, 10,000; give a",
        ),
        ("theta", {"rope_theta": 1e4}, r"rope\.rope_theta 10,000 must exceed the model's own rope_theta, 10,000"),
        (
            "factors",
            {"factors": (1.0, 2.0)},
            r"rope\.factors has 2 numbers and must have 16, one for each rotated pair",
        ),
        ("factors", {"factors": ()}, r"rope\.factors has 0 numbers and must have 16"),
        ("yarn", {"beta_fast": 1.0}, r"rope\.beta_fast 1 must exceed rope\.beta_slow 1; raise the one or lower"),
        ("yarn-revised", {"beta_slow": 40}, r"rope\.beta_fast 32 must exceed rope\.beta_slow 40"),
        (
            "yarn",
            {"beta_fast": 9e9, "beta_slow": 8e9},
            "must be turns that pairs of the model make within its 2,048 tok",
        ),
    ],
)
def test_settings_that_make_no_sense_are_explained(name: str, settings: dict, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        frequencies(name, ROPE, 8, RopeSettings(**settings))


@given(st.lists(st.floats(0.5, 100), min_size=16, max_size=16))
def test_any_factors_are_taken_as_they_are(factors: list[float]) -> None:
    """Published lists begin below 1 and need not rise."""
    settings = RopeSettings(factors=tuple(factors))
    assert rope_parameters("factors", ROPE, 8, settings)["long_factor"] == factors
    np.testing.assert_allclose(ROPE.inverse_frequencies() / frequencies("factors", ROPE, 8, settings)[0], factors)


def test_engines_find_a_stated_attention_factor_under_their_names() -> None:
    yarn = rope_parameters("yarn", ROPE, 8, RopeSettings(attention_factor=1.5))
    assert yarn["attn_factor"] * rope_parameters("yarn", ROPE, 8)["attention_factor"] == pytest.approx(1.5)
    assert "attn_factor" not in rope_parameters("yarn", ROPE, 8, RopeSettings(beta_fast=16))
    listed = rope_parameters("factors", ROPE, 8, RopeSettings(factors=RISING, attention_factor=1.5))
    assert listed["short_mscale"] == listed["long_mscale"] == listed["attention_factor"] == 1.5
