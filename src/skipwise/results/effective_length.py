"""The effective length: how far a model reads, by one rule for reports, ``evaluate`` and model cards.

A length passes where the hidden passkeys are found, and where far positions are predicted no worse than the base
predicts the same tokens inside its own window. Each condition has three answers, for its 95% interval may lie on one
side of the limit, on the other, or across it: then too little was measured to say.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from skipwise.results.statistics import Interval, wilson_interval

FOUND = 0.9  # the share of passkeys that must be found
EXCESS = math.log(1.05)  # nats a token: 5% in perplexity


@dataclass(frozen=True)
class EffectiveLength:
    """The answer, and what was seen at the first length that did not pass."""

    tokens: int  # the longest length at which this and every shorter tested length passes; 0 where none does
    rule: str  # in words, with its numbers
    next: str = ""  # what was seen at the next length; empty where all tested lengths passed
    unknown: bool = False  # whether too little was measured to say that the next length fails
    base_fails: str = ""  # what the base does not find inside its own window; empty where it finds enough

    def claimed(self, original: int | None) -> int | None:
        """The length that is claimed, in tokens, 0 for a model that fails; None where too little was measured to say."""
        return None if self.unknown and self.tokens <= (original or 0) else self.tokens

    def headline(self, original: int | None, target: int | None = None) -> str:
        """How far the model reads, in one sentence; ``original`` and ``target`` are lengths in tokens."""
        return "; ".join(filter(None, [self._reads(original, target), self.base_fails]))

    def _reads(self, original: int | None, target: int | None) -> str:
        extended = self.tokens > (original or 0)
        if self.claimed(original) is None:
            return "Too little was measured to say how far it reads"
        if not self.tokens:
            return "Not extended: it fails the rule at the shortest length that was tested"
        if not extended and not self.next and target != original:
            return f"Not known whether it was extended: measured up to {self.tokens:,} tokens, and its original has {original:,}"
        if not extended:
            return f"Not extended: it reads {self.tokens:,} tokens, no more than its original {original:,}"
        times = f", {self.tokens / original:.3g} times its original {original:,}" if original else ""
        if self.unknown:
            return f"Reads at least {self.tokens:,} tokens{times}; too little was measured to say more"
        short = ""
        if target and self.tokens < target:
            short = (
                f", short of its target {target:,}"
                if self.next
                else f"; more, up to its target {target:,}, was not measured"
            )
        return f"Reads {self.tokens:,} tokens{times}{short}"


def effective_length(
    found: Mapping[int, tuple[int, int]],
    excess: Mapping[int, Interval],
    control: str,
    own: tuple[int, int, int] | None = None,
) -> EffectiveLength:
    """Go up through the tested lengths and stop at the first that does not pass.

    ``found`` are passkeys (found, asked for) by prompt length. ``excess`` is by length n the loss in nats a token at
    the positions up to n that the next shorter length does not have, each token read with all of its document before
    it, less the loss of the same tokens under ``control``, which is named in words. ``own`` are the base's passkeys
    inside its own window: length, found, asked for. If the base fails there, so many of what it finds are needed.
    """
    needed, of_base, base_fails = FOUND, "", ""
    if own and wilson_interval(*own[1:])[1] < FOUND:
        share = own[1] / own[2]
        needed, of_base = FOUND * share, f" ({FOUND:.0%} of the share that the base finds at {own[0]:,} tokens)"
        base_fails = f"the base itself finds {share:.0%} of the passkeys in {own[0]:,} tokens"
    blind = base_fails and not needed  # so would any model pass
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
        return reads(
            0, next="Passkeys do not tell how far it reads, because the base finds none of them.", unknown=True
        )
    reached, lengths = 0, sorted({*found, *excess})
    for length in lengths:
        told = [_judge_passkeys(*found[length], needed)] if length in found else []
        told += [_judge_loss(excess[length])] if length in excess else []
        if failures := [why for passes, why in told if passes is False]:
            return reads(reached, next=f"At {length:,} tokens it fails: {'; '.join(failures)}.")
        if unknown := [why for passes, why in told if passes is None]:
            why = f"At {length:,} tokens too little was measured: {'; '.join(unknown)}."
            return reads(reached, next=why, unknown=True)
        if length in found and length in excess:  # a length at which only one was measured is not reached
            reached = length
    if beyond := [length for length in lengths if length > reached]:
        other = "loss" if beyond[0] in found else "passkeys"
        why = f"At {beyond[0]:,} tokens too little was measured: {other} not measured."
        return reads(reached, next=why, unknown=True)
    return reads(reached)


def _judge_passkeys(hits: int, asked: int, needed: float) -> tuple[bool | None, str]:
    """Whether enough passkeys are found, None where too few were asked for, and the figures."""
    low, high = wilson_interval(hits, asked)
    passes = True if low >= needed else False if high < needed else None
    advice = "; ask for more prompts" if passes is None else ""
    return (
        passes,
        f"{hits} of {asked} passkeys found, 95% interval {low:.0%} to {high:.0%}, {needed:.0%} needed{advice}",
    )


def _judge_loss(excess: Interval) -> tuple[bool | None, str]:
    """Whether the loss is low enough, None where too few documents were read, and the figures."""
    passes = True if excess.high <= EXCESS else None
    if excess.low > EXCESS or math.isnan(excess.mean):
        passes = False
    advice = "; read more documents" if passes is None else ""
    return passes, f"loss {excess} nats above the control, {EXCESS:.3f} allowed{advice}"
