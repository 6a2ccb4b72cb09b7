"""The name of activation checkpointing, which computes activations again in the backward pass, in this transformers.

Recipes may use either name, and hold the older one. transformers called it ``gradient_checkpointing`` until v5.1x.
"""

from transformers import PreTrainedModel

from skipwise.recipes.schema import Training

_NEW, _OLD = "activation_checkpointing", "gradient_checkpointing"
# Of TrainingArguments' field; with "_kwargs" of its options, with "_enable" of a model's method.
NAME = _NEW if hasattr(PreTrainedModel, f"{_NEW}_enable") else _OLD


def is_on(settings: Training) -> bool:
    """Whether a recipe asks for it."""
    return bool((settings.model_extra or {}).get(_OLD))


def renamed(field: str) -> str:
    """Return the name of a field of TrainingArguments in this release; other fields keep theirs."""
    return field.replace(_OLD, NAME)
