"""The paper's claims as rules, written down before anything is run; ``verdicts.py`` judges them by what was measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Lower:
    """At every window (or only beyond the original length) ``arm``'s perplexity is at most ``factor`` x ``other``'s."""

    arm: str
    other: str
    factor: float = 1.0
    beyond: bool = False


@dataclass(frozen=True)
class Falls:
    """Each larger window gives ``arm`` a lower perplexity, or one at most ``rise`` higher.

    The paper calls its own row "an overall decreasing trend"; from 16k to 32k it rises by 0.4%.
    """

    arm: str
    rise: float = 0.01


@dataclass(frozen=True)
class Recovers:
    """At the target ``arm`` has at least the share ``least`` of what ``full`` gains over ``base``, in nats.

    In the paper's tables the share is 97% or more.
    """

    arm: str
    other: str = "full"
    base: str = "pi-only"
    least: float = 0.95


@dataclass(frozen=True)
class Finds:
    """``arm`` finds at least ``least`` and at most ``most`` of the passkeys at every length up to the target (or only at
    those beyond the original length)."""

    arm: str
    least: float = 0.0
    most: float = 1.0
    beyond: bool = False


@dataclass(frozen=True)
class FindsMore:
    """At the target ``arm`` finds more passkeys than ``other``, and the 95% interval of the difference lies above 0: over
    seeds if there are several, else over the prompts."""

    arm: str
    other: str


@dataclass(frozen=True)
class Reads:
    """Beyond the original length ``arm`` predicts better than ``other``: the 95% interval over documents of the difference
    of their losses by position lies below 0, and so does the difference of every seed."""

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


Claim = Lower | Falls | Recovers | Finds | FindsMore | Reads | Holds | Keeps


def arms_of(claim: Claim) -> tuple[str, ...]:
    """The arms that a claim is about."""
    return tuple(getattr(claim, name) for name in ("arm", "other", "base") if hasattr(claim, name))
