"""Methods by name: settings that belong together, beneath those of a recipe."""

from typing import Any, Literal

Method = Literal["paper", "skipwise"]

SETTINGS: dict[str, dict[str, Any]] = {
    # PoSE to the letter: what the sections have without a method.
    "paper": {},
    # docs/method.md says what each part does, docs/skipwise.md what it is worth, measured.
    "skipwise": {
        "positions": {"content": "aligned", "contiguous": 0.5},
        "data": {"passkey": 0.0, "retrieval": 0.2},
        "teacher": {"weight": 1.0},
    },
}
