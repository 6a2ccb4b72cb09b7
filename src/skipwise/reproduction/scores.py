"""The records of an exhibit's runs, over texts and seeds, and whether its claims hold on them."""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from skipwise.report.summary import format_share
from skipwise.reproduction.exhibits import Claim, Finds, Lower
from skipwise.reproduction.runs import ArmRun
from skipwise.results import PasskeyRecord, PerplexityRecord, read_records


@dataclass
class Scores:
    """What one variant scored under one setting.

    Attributes:
        nll: mean negative log-likelihood in nats, by text and window, one value a seed.
        hits: passkeys found and asked for, by prompt length, over all seeds.
    """

    nll: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    hits: dict[int, tuple[int, int]] = field(default_factory=dict)

    def perplexity(self, text: str, window: int) -> tuple[float, float] | None:
        """Mean over seeds (of the log, so a geometric mean) and sample standard deviation; None if not measured."""
        values = self.nll.get((text, window))
        if not values:
            return None
        mean = math.exp(min(statistics.fmean(values), 700))
        return mean, mean * statistics.stdev(values) if len(values) > 1 else 0.0


def collect(runs: Iterable[ArmRun], out: Path) -> dict[str, dict[str, Scores]]:
    """The scores by setting and variant; what has not been measured yet is not there."""
    table: dict[str, dict[str, Scores]] = {}
    for run in runs:
        scores = table.setdefault(run.setting, {}).setdefault(run.variant, Scores())
        latest: dict[object, PerplexityRecord | PasskeyRecord] = {}
        for record in read_records(run.folder(out) / "results.jsonl"):
            if isinstance(record, PerplexityRecord):
                latest[record.data, record.window] = record
            elif isinstance(record, PasskeyRecord):
                latest[record.length] = record
        for record in latest.values():
            if isinstance(record, PerplexityRecord):
                scores.nll.setdefault((record.data, record.window), []).append(record.nll / record.tokens)
            else:
                found, asked = scores.hits.get(record.length, (0, 0))
                scores.hits[record.length] = (found + sum(record.hits), asked + record.trials)
    return table


@dataclass(frozen=True)
class Finding:
    """A claim, put to what was measured.

    Attributes:
        rule: the claim in words.
        holds: whether it does; None where it was not measured.
        worst: the length at which it holds least, with its figures.
    """

    rule: str
    holds: bool | None
    worst: str


def judge(claim: Claim, scores: Mapping[str, Scores], original: int, target: int) -> Finding:
    """Put one claim to the scores of one setting: at every text and length it names, up to the target."""
    if isinstance(claim, Lower):
        return _judge_order(claim, scores, original, target)
    return _judge_passkey(claim, scores, original, target)


def _judge_order(claim: Lower, scores: Mapping[str, Scores], original: int, target: int) -> Finding:
    factor = f"{claim.factor:g} x " if claim.factor != 1 else ""
    where = "every length beyond the original" if claim.beyond else "every length"
    rule = f"{claim.arm} at most {factor}{claim.other}, at {where}"
    ratios = []
    low, high = scores.get(claim.arm, Scores()), scores.get(claim.other, Scores())
    for text, window in low.nll:
        ours, theirs = low.perplexity(text, window), high.perplexity(text, window)
        if theirs is None or ours is None or window > target or (claim.beyond and window <= original):
            continue
        ratios.append((ours[0] / theirs[0], window, text))
    if not ratios:
        return Finding(rule, None, "not measured")
    ratio, window, text = max(ratios)
    return Finding(rule, ratio <= claim.factor, f"{ratio:.3f} of it at {window:,} ({text})")


def _judge_passkey(claim: Finds, scores: Mapping[str, Scores], original: int, target: int) -> Finding:
    bound = f"at least {claim.least:.0%}" if claim.least else f"at most {claim.most:.0%}"
    where = "every length beyond the original" if claim.beyond else "every length up to the target"
    rule = f"{claim.arm} finds {bound} of the passkeys at {where}"
    hits = scores.get(claim.arm, Scores()).hits
    shares = [
        (found / asked, length)
        for length, (found, asked) in hits.items()
        if length <= target and not (claim.beyond and length <= original)
    ]
    if not shares:
        return Finding(rule, None, "not measured")
    share, length = min(shares) if claim.least else max(shares)
    return Finding(rule, claim.least <= share <= claim.most, f"{format_share(share)} at {length:,}")
