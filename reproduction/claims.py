"""The paper's claims as rules, written down before anything is run; ``verdicts.py`` puts them to what was measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Lower:
    """At every length (or only beyond the original one) ``arm`` has at most ``factor`` x ``other``'s perplexity."""

    arm: str
    other: str
    factor: float = 1.0
    beyond: bool = False


@dataclass(frozen=True)
class Finds:
    """``arm`` finds at least ``least`` and at most ``most`` of the passkeys, at every length of a kind."""

    arm: str
    least: float = 0.0
    most: float = 1.0
    beyond: bool = False


@dataclass(frozen=True)
class FindsMore:
    """At the target ``arm`` finds more passkeys than ``other``, and the 95% interval of the difference excludes 0: over
    seeds where there are several, else over the prompts."""

    arm: str
    other: str


@dataclass(frozen=True)
class Reads:
    """Beyond the original length ``arm`` predicts better than ``other`` from all that stands before: the 95% interval
    of the difference of their losses by position, over documents, lies below 0, and so does that of every seed."""

    arm: str
    other: str


@dataclass(frozen=True)
class Holds:
    """From the original length to the target ``arm``'s perplexity rises to at most ``most`` times, and at least
    ``least`` times, that at the original length."""

    arm: str
    most: float = float("inf")
    least: float = 0.0


@dataclass(frozen=True)
class Keeps:
    """Inside the original length ``arm``'s loss is at most ``loss`` nats above ``other``'s and its next-token accuracy
    at most ``accuracy`` below, by the far ends of the 95% intervals over documents."""

    arm: str
    other: str
    loss: float = 0.03
    accuracy: float = 0.01


Claim = Lower | Finds | FindsMore | Reads | Holds | Keeps


def arms_of(claim: Claim) -> tuple[str, ...]:
    """The arms that a claim is about."""
    return (claim.arm, claim.other) if hasattr(claim, "other") else (claim.arm,)
