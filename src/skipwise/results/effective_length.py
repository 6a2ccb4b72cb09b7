"""The effective length of a model, by one rule for reports, ``evaluate`` and model cards.

A length passes if the passkeys are found, and if far positions are predicted no worse than the base predicts the same
tokens inside its own window. A condition whose 95% interval crosses its limit is undecided: too little was measured.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from skipwise.results.statistics import Interval, wilson_interval

FOUND = 0.9  # the share of passkeys that must be found
EXCESS = math.log(1.05)  # nats per token: 5% in perplexity


@dataclass(frozen=True)
class EffectiveLength:
    """The effective length, and the measurement at the first length that did not pass."""

    tokens: int  # the longest length at which this and every shorter tested length passes, or 0
    rule: str  # in words, with its numbers
    next: str = ""  # measured at the next length; empty if all tested lengths passed
    unknown: bool = False  # whether the next length is undecided
    base_fails: str = ""  # the base's share inside its own window, if that is too small

    def claimed(self, original: int | None) -> int | None:
        """Return the claimed length in tokens, 0 for a model that fails; None if undecided."""
        return None if self.unknown and self.tokens <= (original or 0) else self.tokens

    def headline(self, original: int | None, target: int | None = None) -> str:
        """Return the result in one sentence; ``original`` and ``target`` are in tokens."""
        return "; ".join(filter(None, [self._reads(original, target), self.base_fails]))

    def _reads(self, original: int | None, target: int | None) -> str:
        if self.claimed(original) is None:
            return "Too little was measured to say how far it reads"
        if not self.tokens:
            return "Not extended: it fails the rule at the shortest length that was tested"
        if self.tokens <= (original or 0):
            if self.next or target == original:
                return f"Not extended: it reads {self.tokens:,} tokens, no more than its original {original:,}"
            return f"Not known whether it was extended: measured up to {self.tokens:,} tokens, and its original has {original:,}"
        times = f", {self.tokens / original:.3g} times its original {original:,}" if original else ""
        if self.unknown:
            return f"Reads at least {self.tokens:,} tokens{times}; too little was measured to say more"
        reads = f"Reads {self.tokens:,} tokens{times}"
        if not target or self.tokens >= target:
            return reads
        if self.next:
            return f"{reads}, short of its target {target:,}"
        return f"{reads}; more, up to its target {target:,}, was not measured"


def effective_length(
    found: Mapping[int, tuple[int, int]],
    excess: Mapping[int, Interval],
    control: str,
    own: tuple[int, int, int] | None = None,
) -> EffectiveLength:
    """Return the effective length: go up through the tested lengths to the first that does not pass.

    Args:
        found: passkeys (found, all) by prompt length.
        excess: by length n, the loss at the positions between the next shorter length and n, each token with its whole
            document before it, less the loss of the same tokens under ``control``, in nats per token.
        control: name of the control in the rule.
        own: the base's passkeys inside its own window (length, found, all). If the base fails there, its share sets the limit.
    """
    needed, of_base, base_fails = FOUND, "", ""
    if own and wilson_interval(*own[1:])[1] < FOUND:
        share = own[1] / own[2]
        needed, of_base = FOUND * share, f" ({FOUND:.0%} of the share that the base finds at {own[0]:,} tokens)"
        base_fails = f"the base itself finds {share:.0%} of the passkeys in {own[0]:,} tokens"
    blind = base_fails and not needed  # any model would pass
    if blind:
        needed, of_base = FOUND, ""
    rule = (
        f"The longest tested length such that, at it and at every shorter one, at least {needed:.0%} of the passkeys"
        f"{of_base} are found, and the loss at its positions is at most {EXCESS:.3f} nats a token (5% in perplexity) above "
        f"that of {control} on the same tokens. The whole 95% interval must lie on that side."
    )
    reads = partial(EffectiveLength, rule=rule, base_fails=base_fails)
    if missing := [name for name, known in (("passkeys", found), ("loss by position", excess)) if not known]:
        return reads(0, next=f"Not measured: {' and '.join(missing)}.", unknown=True)
    if blind:
        return reads(0, next="Passkeys decide nothing, because the base finds none of them.", unknown=True)
    reached, lengths = 0, sorted({*found, *excess})
    for length in lengths:
        verdicts = [_judge_passkeys(*found[length], needed)] if length in found else []
        verdicts += [_judge_loss(excess[length])] if length in excess else []
        if failures := [why for passes, why in verdicts if passes is False]:
            return reads(reached, next=f"At {length:,} tokens it fails: {'; '.join(failures)}.")
        if undecided := [why for passes, why in verdicts if passes is None]:
            why = f"At {length:,} tokens too little was measured: {'; '.join(undecided)}."
            return reads(reached, next=why, unknown=True)
        if len(verdicts) == 2:  # a length with one measurement is not reached
            reached = length
    if beyond := [length for length in lengths if length > reached]:
        other = "loss" if beyond[0] in found else "passkeys"
        why = f"At {beyond[0]:,} tokens too little was measured: {other} not measured."
        return reads(reached, next=why, unknown=True)
    return reads(reached)


def _judge_passkeys(hits: int, trials: int, needed: float) -> tuple[bool | None, str]:
    """Return whether enough passkeys are found, None if undecided, and the numbers."""
    low, high = wilson_interval(hits, trials)
    passes = True if low >= needed else False if high < needed else None
    advice = "; ask for more prompts" if passes is None else ""
    numbers = f"{hits} of {trials} passkeys found, 95% interval {low:.0%} to {high:.0%}, {needed:.0%} needed"
    return passes, numbers + advice


def _judge_loss(excess: Interval) -> tuple[bool | None, str]:
    """Return whether the loss is low enough, None if undecided, and the numbers."""
    passes = True if excess.high <= EXCESS else None
    if excess.low > EXCESS or math.isnan(excess.mean):
        passes = False
    advice = "; read more documents" if passes is None else ""
    return passes, f"loss {excess} nats above the control, {EXCESS:.3f} allowed{advice}"
