"""The paper's claims as rules, written down before anything is run; ``verdicts.py`` judges them by what was measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Lower:
    """At every window (or only beyond the original length) ``row``'s perplexity is at most ``factor`` x ``other``'s."""

    row: str
    other: str
    factor: float = 1.0
    beyond: bool = False


@dataclass(frozen=True)
class Falls:
    """Each larger window gives ``row`` a lower perplexity, or one at most ``rise`` higher (the paper's own: 0.4%)."""

    row: str
    rise: float = 0.01


@dataclass(frozen=True)
class Finds:
    """``row`` finds ``least`` to ``most`` of the passkeys at every length up to the target (or only beyond the original)."""

    row: str
    least: float = 0.0
    most: float = 1.0
    beyond: bool = False


@dataclass(frozen=True)
class FindsMore:
    """At the target ``row`` finds more passkeys than ``other``: the 95% interval of the difference lies above 0."""

    row: str
    other: str


@dataclass(frozen=True)
class Holds:
    """Beyond the original length ``row``'s perplexity rises to ``least`` to ``most`` times that at the original length."""

    row: str
    most: float = float("inf")
    least: float = 0.0


@dataclass(frozen=True)
class Keeps:
    """Inside the original length ``row``'s loss is at most ``loss`` nats above ``other``'s and its next-token accuracy
    at most ``accuracy`` below, by the far ends of the 95% intervals over documents."""

    row: str
    other: str
    loss: float = 0.03
    accuracy: float = 0.01


Claim = Lower | Falls | Finds | FindsMore | Holds | Keeps


def rows_of(claim: Claim) -> set[str]:
    """The rows that a claim is about."""
    return {getattr(claim, name) for name in ("row", "other") if hasattr(claim, name)}
