"""The recipe that a command line asks for."""

import pytest

from skipwise.cli.extension import _recipe
from skipwise.errors import RecipeError
from skipwise.recipes.loading import load_recipe


def test_a_model_has_its_own_recipe_or_the_defaults_however_it_is_named() -> None:
    for name, recipe in (("nano", "nano"), ("some/model", None)):
        wanted = load_recipe(recipe, {"model": name})
        assert _recipe(None, {"model": name}, None, False) == wanted
        assert _recipe(None, {"model": None}, [f"model={name}"], False) == wanted
    assert _recipe(None, {"model": None}, None, False) == load_recipe("nano")


def test_a_model_that_is_no_name_is_explained() -> None:
    with pytest.raises(RecipeError, match=r"model = \[1\]: "):
        _recipe(None, {"model": None}, ["model=[1]"], False)
