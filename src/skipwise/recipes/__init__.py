"""Recipes: all settings of a run, validated (``schema``), and the recipes that the package ships (``*.yaml``)."""

from skipwise.recipes.schema import Recipe as Recipe
from skipwise.recipes.schema import load_recipe as load_recipe
