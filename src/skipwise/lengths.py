"""Lengths in tokens as people write them: ``2048`` or ``2k`` (k = 1,024)."""

from skipwise.errors import RecipeError


def parse_length(value: float | str) -> int:
    """Read a positive length in tokens, ``2048``, ``"2,048"``, ``"2k"`` or ``"1.5k"``.

    Raises:
        RecipeError: the value is not a whole positive number of tokens.
    """
    text = str(value).strip().lower().replace(",", "").replace("_", "")
    try:
        tokens = float(text[:-1]) * 1024 if text.endswith("k") else float(text)
    except ValueError:
        tokens = float("nan")
    if not 0 < tokens < 2**40 or tokens != int(tokens):
        raise RecipeError(
            f"{value!r} is not a length; write a positive number of tokens, as 2048 or 2k (k = 1,024)"
        )
    return int(tokens)


def format_length(tokens: int) -> str:
    """Write a length shortly: 2048 -> ``2k``, 1000 -> ``1000``."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)
