"""Recipes: all settings of a run, validated (``schema``), and the recipes that the package ships (``*.yaml``)."""

from skipwise.recipes.loading import load_recipe as load_recipe
from skipwise.recipes.schema import Recipe as Recipe
