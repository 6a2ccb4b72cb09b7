"""Methods by name: settings that belong together, beneath those of a recipe."""

from typing import Any, Literal

Method = Literal["skipwise", "paper"]
DEFAULT: Method = "skipwise"

SETTINGS: dict[str, dict[str, Any]] = {
    # docs/method.md says what each part does.
    "skipwise": {
        "positions": {"content": "aligned", "contiguous": 0.5, "margin": 0.25},
        "data": {"passkey": 0.0, "retrieval": 0.15, "answer_weight": 8.0, "train_jumps": False},
        "training": {"adam_beta2": 0.95},
        "teacher": {"weight": 0.0, "written": 0.15, "written_weight": 32.0},
    },
    # PoSE to the letter (Zhu et al., ICLR 2024).
    "paper": {
        "positions": {"skips": "uniform", "content": "uniform", "contiguous": 0.0, "span": "document", "margin": 0.0},
        "data": {"passkey": 0.0, "retrieval": 0.0, "answer_weight": 1.0, "train_jumps": True},
        "training": {"adam_beta2": 0.999},
    },
}
