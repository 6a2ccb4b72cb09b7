"""Recipes: all settings of a run, validated (``schema``), and the recipes that the package ships (``*.yaml``)."""
