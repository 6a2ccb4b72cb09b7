"""Methods by name: settings that belong together, beneath those of a recipe."""

from typing import Any, Literal

Method = Literal["paper", "skipwise"]

SETTINGS: dict[str, dict[str, Any]] = {
    # PoSE to the letter: what the sections have without a method.
    "paper": {},
    # docs/method.md says what each part does.
    "skipwise": {
        "positions": {"content": "aligned", "contiguous": 0.5},
        "data": {"passkey": 0.0, "retrieval": 0.4},
        "teacher": {"weight": 4.0, "written": 0.2},
    },
}
