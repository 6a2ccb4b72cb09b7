"""Methods by name: settings that belong together, beneath those of a recipe."""

from typing import Any, Literal

Method = Literal["skipwise", "paper"]
DEFAULT: Method = "skipwise"
RATES = {False: 2e-5, True: 2e-4}  # default learning rate by whether LoRA is trained, in place of all weights

SETTINGS: dict[str, dict[str, Any]] = {
    # docs/method.md says what each part does.
    "skipwise": {
        "positions": {"content": "aligned", "contiguous": 0.5, "margin": 0.25},
        "data": {
            "passkey": 0.0,
            "retrieval": 0.15,
            "answer_weight": 4.0,
            "first_digit_weight": 32.0,
            "train_jumps": False,
        },
        "training": {"adam_beta2": 0.95},
        "teacher": {"weight": 0.0, "written": 0.15, "written_weight": 16.0},
    },
    # PoSE to the letter (Zhu et al., ICLR 2024).
    "paper": {
        "positions": {"skips": "uniform", "content": "paper", "contiguous": 0.0, "margin": 0.0},
        "data": {
            "passkey": 0.0,
            "retrieval": 0.0,
            "answer_weight": 1.0,
            "first_digit_weight": None,
            "train_jumps": True,
        },
        "training": {"adam_beta2": 0.999},
    },
}


def over(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``changes``.

    If ``changes`` names another method, the old method's settings in ``base`` are dropped; if it turns LoRA on or off, the
    old default of the learning rate is dropped too. A finished run's file states all of these and would otherwise keep them. A
    file that names no method, or says nothing of LoRA, keeps its settings.
    """
    lora, training = base.get("lora"), base.get("training")
    turned = "lora" in base and (changes.get("lora", lora) is None) != (lora is None)
    if turned and isinstance(training, dict) and training.get("learning_rate") == RATES[lora is not None]:
        base = {**base, "training": {key: value for key, value in training.items() if key != "learning_rate"}}
    if "method" in base and changes.get("method", base["method"]) != base["method"]:
        base = {**base}
        for section in {key for settings in SETTINGS.values() for key in settings}:
            keys = {key for settings in SETTINGS.values() for key in settings.get(section, {})}
            # What else a file may have in the place of a section is refused by its type later, if it is not replaced.
            if isinstance(base.get(section), dict | None):
                kept = {key: value for key, value in (base.pop(section, None) or {}).items() if key not in keys}
                base |= {section: kept} if kept else {}
    return merged(base, changes)


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``changes``, section by section."""
    sections = {key for key, value in changes.items() if isinstance(value, dict) and isinstance(base.get(key), dict)}
    return base | changes | {key: merged(base[key], changes[key]) for key in sections}
