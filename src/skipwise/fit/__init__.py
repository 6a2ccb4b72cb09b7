"""Fit an interpolation to a model by measuring it, before any training."""
