"""Methods by name: settings that belong together; a recipe's own settings override them."""

from typing import Any, Literal

Method = Literal["pose", "paper"]
DEFAULT: Method = "pose"
RATES = {False: 2e-5, True: 2e-4}  # default learning rate without and with LoRA

SETTINGS: dict[str, dict[str, Any]] = {
    "pose": {  # docs/method.md has the reasons
        "positions": {"content": "even", "no_skip_share": 0.0},
        "data": {"train_chunk_starts": False},
        "training": {"adam_beta2": 0.95},
    },
    "paper": {  # PoSE to the letter (Zhu et al., ICLR 2024)
        "positions": {"skips": "uniform", "content": "paper", "no_skip_share": 0.0},
        "data": {"train_chunk_starts": True},
        "training": {"adam_beta2": 0.999},
    },
}


def over(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe ``base`` with ``changes``.

    A finished run's file has every setting. If ``changes`` choose another method, the old method's settings in ``base`` are
    dropped; if they turn LoRA on or off, so is the old default of the learning rate.
    """
    base = {key: dict(value) if isinstance(value, dict) else value for key, value in base.items()}
    lora, training = base.get("lora"), base.get("training")
    turned = "lora" in base and (changes.get("lora", lora) is None) != (lora is None)
    if turned and isinstance(training, dict) and training.get("learning_rate") == RATES[lora is not None]:
        del training["learning_rate"]
    if "method" in base and changes.get("method", base["method"]) != base["method"]:
        for section in {section for settings in SETTINGS.values() for section in settings}:
            keys = {key for settings in SETTINGS.values() for key in settings.get(section, {})}
            if isinstance(base.get(section), dict | None):  # another type is refused later
                kept = {key: value for key, value in (base.pop(section, None) or {}).items() if key not in keys}
                base |= {section: kept} if kept else {}
    return merged(base, changes)


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``changes``, section by section."""
    sections = {key for key, value in changes.items() if isinstance(value, dict) and isinstance(base.get(key), dict)}
    return base | changes | {key: merged(base[key], changes[key]) for key in sections}
