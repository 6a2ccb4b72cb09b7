"""The documents of other kinds that ship with the package: prose, mathematics, code."""

from importlib import resources

KINDS = {"prose": "prose.txt", "mathematics": "mathematics.tex", "code": "code.c"}


def shipped_text(kind: str) -> str:
    """Return the document of one kind: ``prose``, ``mathematics`` or ``code``."""
    return resources.files("skipwise").joinpath("assets", "other", KINDS[kind]).read_text(encoding="utf-8")
