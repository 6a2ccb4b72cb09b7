"""Lengths in tokens as people write them, ``2048`` or ``2k`` (k = 1,024), and limits of lengths and counts.

Recipes, commands and computations share the limits. A command line reads them before it imports anything slow.
"""

import re

from skipwise.errors import RecipeError

LONGEST = 2**24  # tokens: coverage is computed for each distance below the target
MOST_CHUNKS = 2**14  # each is drawn in turn
MOST_TRIALS = 10_000  # prompts of each length, which are planned before the first is asked
WINDOW = "window"  # a target length: the window that the model has
SHORT_WINDOW = 4096  # tokens of a training window, unless a recipe sets more; positions skip over the rest
LAST_SEED = 2**32 - 1  # the largest that numpy accepts

_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+k?")  # 1,5 and 2,04 are none


def parse_length(value: float | str) -> int:
    """Return the number of tokens that ``2048``, ``"2,048"``, ``"2k"`` or ``"1.5k"`` means.

    Raises:
        RecipeError: the value is not a positive whole number of tokens.
    """
    text = str(value).strip().lower().replace("_", "")
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    try:
        tokens = float(text[:-1]) * 1024 if text.endswith("k") else float(text)
    except ValueError:
        tokens = float("nan")
    if not 0 < tokens < 2**40 or tokens != int(tokens):
        raise RecipeError(
            f"{value!r} is not a length; write a positive number of tokens, for example 2048 or 2k (k = 1,024)"
        )
    return int(tokens)


def format_length(tokens: int) -> str:
    """Return a short form of a length: ``2k`` for 2048, ``1000`` for 1000."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)
