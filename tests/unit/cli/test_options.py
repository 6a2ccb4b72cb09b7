"""What options and names ask for: lists of lengths, and the recipe of a model."""

import pytest

from skipwise.cli.extension import _recipe
from skipwise.cli.options import read_lengths
from skipwise.errors import RecipeError
from skipwise.recipes.loading import load_recipe


@pytest.mark.parametrize("text", ["2,048", "65,536,131,072", "2k,4,096", "128,000"])
def test_a_length_with_a_separator_of_thousands_is_no_list_of_two(text: str) -> None:
    with pytest.raises(RecipeError):
        read_lengths(text)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [("64,512", [64, 512]), ("192,512,1k", [192, 512, 1024]), ("2k, 4096", [2048, 4096]), (None, [])],
)
def test_a_list_of_lengths(text: str | None, lengths: list[int]) -> None:
    assert read_lengths(text) == lengths


def test_a_model_has_its_own_recipe_or_the_defaults_however_it_is_named() -> None:
    for name, recipe in (("nano", "nano"), ("some/model", None)):
        wanted = load_recipe(recipe, {"model": name})
        assert _recipe(None, {"model": name}, None, False) == wanted
        assert _recipe(None, {"model": None}, [f"model={name}"], False) == wanted
    assert _recipe(None, {"model": None}, None, False) == load_recipe("nano")
    with pytest.raises(RecipeError):
        _recipe(None, {"model": None}, ["model=[1]"], False)
