"""How far a model reads, by rule: found what was hidden, and predicted no worse than its base does inside its window."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from skipwise.intervals import Interval, wilson_interval

FOUND = 0.9  # the share of passkeys, by the lower end of its interval
EXCESS = math.log(1.05)  # nats a token: 5% in perplexity


@dataclass(frozen=True)
class EffectiveLength:
    """The answer, and why it ends there.

    Attributes:
        tokens: the longest length at which this and every shorter tested length passes; 0 where none does.
        rule: in words, with its numbers.
        shortfall: what failed at the next length; empty where all passed.
    """

    tokens: int
    rule: str
    shortfall: str


def effective_length(
    found: Mapping[int, tuple[int, int]], excess: Mapping[int, Interval], control: str
) -> EffectiveLength:
    """Go up through the tested lengths and stop at the first that does not pass.

    Args:
        found: passkeys (found, asked for) by prompt length.
        excess: loss in nats by length n, at the positions up to n that the next shorter length does not have, each token read
            with all of its document before it; less the loss of the same tokens under the control.
        control: the control in words.
    """
    rule = (
        f"The longest length such that, at it and at every shorter tested one, at least {FOUND:.0%} of the passkeys are "
        f"found by the lower end of the 95% interval, and the loss at its positions is at most {EXCESS:.3f} nats (5% in "
        f"perplexity) above that of {control}, on the same tokens."
    )
    missing = [name for name, known in (("passkeys", found), ("loss by position", excess)) if not known]
    if missing:
        return EffectiveLength(0, rule, f"Not judged: {' and '.join(missing)} not measured.")
    lengths, reached = sorted({*found, *excess}), 0
    for length in lengths:
        failures = []
        if length in found:
            hits, asked = found[length]
            low, _ = wilson_interval(hits, asked)
            if hits == asked and low < FOUND:
                why = f"Not judged at {length:,} tokens: all of {asked} passkeys are too few to show {FOUND:.0%}; ask for more."
                return EffectiveLength(reached, rule, why)
            if low < FOUND:
                failures.append(f"{hits} of {asked} passkeys, which may be {low:.0%}, under {FOUND:.0%}")
        if length in excess and not excess[length].mean <= EXCESS:
            failures.append(f"loss {excess[length]} nats above, over {EXCESS:.3f}")
        if failures:
            return EffectiveLength(reached, rule, f"At {length:,} tokens it fails: {'; '.join(failures)}.")
        if length in found and length in excess:
            reached = length
    untested = [n for n in lengths if n > reached]
    return EffectiveLength(
        reached,
        rule,
        f"At {untested[0]:,} tokens only one of passkeys and loss was measured." if untested else "",
    )
