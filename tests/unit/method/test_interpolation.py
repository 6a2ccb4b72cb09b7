"""Which settings an interpolation takes, and what of them is refused."""

import pytest
from hypothesis import given, strategies as st

from skipwise.errors import RecipeError
from skipwise.method.interpolation import (
    INTERPOLATIONS,
    Rope,
    RopeSettings,
    check_settings,
    frequencies,
    rope_parameters,
)
from skipwise.method.lengths import format_length, parse_length

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


@pytest.mark.parametrize("name", INTERPOLATIONS)
@pytest.mark.parametrize("key", NUMBERS)
def test_a_setting_changes_its_own_interpolations_and_is_refused_by_others(name: str, key: str) -> None:
    needs = INTERPOLATIONS[name].needs
    needed = {needs: NUMBERS[needs]} if needs else {}
    settings = RopeSettings(**{**needed, key: NUMBERS[key]})
    if key not in INTERPOLATIONS[name].settings:
        with pytest.raises(RecipeError):
            frequencies(name, ROPE, 8, settings)
    elif key not in needed:
        assert rope_parameters(name, ROPE, 8, settings) != rope_parameters(name, ROPE, 8, RopeSettings(**needed))
    else:
        check_settings(name, settings)


def test_engines_find_a_stated_attention_factor_under_their_names() -> None:
    yarn = rope_parameters("yarn", ROPE, 8, RopeSettings(attention_factor=1.5))
    assert yarn["attn_factor"] * rope_parameters("yarn", ROPE, 8)["attention_factor"] == pytest.approx(1.5)
    assert "attn_factor" not in rope_parameters("yarn", ROPE, 8, RopeSettings(beta_fast=16))
    listed = rope_parameters("factors", ROPE, 8, RopeSettings(factors=RISING, attention_factor=1.5))
    assert listed["short_mscale"] == listed["long_mscale"] == listed["attention_factor"] == 1.5


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("theta", {}),  # what it needs is missing
        ("theta", {"rope_theta": 1e4}),  # the model's own
        ("factors", {"factors": (1.0, 2.0)}),
        ("yarn", {"beta_fast": 1.0}),
    ],
)
def test_settings_that_make_no_sense_are_refused(name: str, settings: dict) -> None:
    with pytest.raises(RecipeError):
        frequencies(name, ROPE, 8, RopeSettings(**settings))


@pytest.mark.parametrize(
    ("written", "tokens"),
    [(2048, 2048), ("2,048", 2048), (" 2K ", 2048), ("1,048,576", 2**20), ("1.5k", 1536), (1000.0, 1000)],
)
def test_reads_what_people_write(written: int | str, tokens: int) -> None:
    assert parse_length(written) == tokens


@pytest.mark.parametrize("wrong", [0, "-2k", "1.1k", "2x", "nan", 2**40, "2,04"])
def test_what_is_no_length_is_refused(wrong: int | str) -> None:
    with pytest.raises(RecipeError):
        parse_length(wrong)


@given(st.integers(1, 2**40 - 1))
def test_reads_back_what_it_writes(tokens: int) -> None:
    assert parse_length(format_length(tokens)) == tokens
    assert format_length(tokens).endswith("k") is (tokens % 1024 == 0)
