"""Settings with two names: a recipe may use either, and holds one of them."""

from typing import Any

_KEPT = {
    "activation_checkpointing": "gradient_checkpointing",  # transformers' newer name; its options end in "_kwargs"
    "passkey_lengths": "prompt_lengths",  # their names in earlier versions
    "passkey_trials": "prompt_trials",
}


def one_name(key: str) -> str:
    """Return a setting's key, as ``evaluation.passkey_trials``, with the name that recipes hold."""
    for other, kept in _KEPT.items():
        key = key.replace(other, kept)
    return key


def renamed(section: Any) -> Any:
    """Return a section of a recipe with the names that recipes hold; what is no section stays as it is.

    Raises:
        ValueError: a setting is given by both of its names.
    """
    if not isinstance(section, dict):
        return section
    found: dict[Any, str] = {}
    for key in section:
        name = one_name(key) if isinstance(key, str) else key
        if name in found:
            raise ValueError(f"{found[name]} and {key} are two names of one setting; leave one out")
        found[name] = key
    return {name: section[key] for name, key in found.items()}
