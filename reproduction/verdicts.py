"""Claims + scores -> findings: whether each claim holds on what was measured, and the place where it holds least."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from reproduction.claims import Claim, Falls, Finds, FindsMore, Holds, Keeps, Lower, rows_of
from reproduction.scores import Scores, seeds_interval
from skipwise.recipes.names import arm_name
from skipwise.report.numbers import format_share
from skipwise.results.statistics import Sums, share_difference

Rows = Mapping[str, Scores]
_SUMS: tuple[Sums, Sums] = ("nll", "hits")


@dataclass(frozen=True)
class Finding:
    """A claim and what was measured of it."""

    rule: str  # the claim in words
    holds: bool | None = None  # None where it was not measured
    worst: str = ""  # the length or text at which it holds least, with its figures

    @property
    def verdict(self) -> str:
        """``holds``, ``does not hold`` in bold, or ``not run yet``."""
        return "not run yet" if self.holds is None else "holds" if self.holds else "**does not hold**"

    def __str__(self) -> str:
        """The finding as a line of Markdown."""
        return f"- {self.rule}: {self.verdict}" + (f" ({self.worst})" if self.worst else "")


def judge(claim: Claim, scores: Rows, original: int, target: int) -> Finding:
    """Judge one claim by the scores of one block: at every text and length it names, up to the target."""
    rows = {row: scores.get(row, Scores()) for row in rows_of(claim)}
    return _JUDGES[type(claim)](claim, rows, original, target)


def _judge_order(claim: Lower, rows: Rows, original: int, target: int) -> Finding:
    factor = f"{claim.factor:g} x " if claim.factor != 1 else ""
    where = "every length beyond the original" if claim.beyond else "every length"
    rule = f"perplexity of {arm_name(claim.row)} at most {factor}that of {arm_name(claim.other)}, at {where}"
    ratios = []
    for text, window in rows[claim.row].nll:
        ours, theirs = (rows[row].perplexity(text, window) for row in (claim.row, claim.other))
        if ours and theirs and window <= target and not (claim.beyond and window <= original):
            ratios.append((ours[0] / theirs[0], window, text))
    if not ratios:
        return Finding(rule)
    ratio, window, text = max(ratios)
    return Finding(rule, ratio <= claim.factor, f"{ratio:.3f} of it at {window:,}, {text}")


def _judge_fall(claim: Falls, rows: Rows, original: int, target: int) -> Finding:
    row = rows[claim.row]
    rule = f"{arm_name(claim.row)}'s perplexity falls as the window grows, or rises by at most {claim.rise:.0%}"
    steps = [
        (after[0] / before[0] - 1, f"{before[0]:.3g} at {near:,}, {after[0]:.3g} at {far:,}, {text}")
        for text in dict.fromkeys(text for text, _ in row.nll)
        for (near, before), (far, after) in pairwise(row.by_window(text).items())
        if far <= target
    ]
    if not steps:
        return Finding(rule)
    rise, told = max(steps)
    return Finding(rule, rise <= claim.rise, f"{100 * rise:+.1f}%: {told}")


def _judge_passkey(claim: Finds, rows: Rows, original: int, target: int) -> Finding:
    row = rows[claim.row]
    bound = f"at least {claim.least:.0%}" if claim.least else f"at most {claim.most:.0%}"
    where = "every length beyond the original" if claim.beyond else "every length up to the target"
    rule = f"{arm_name(claim.row)} finds {bound} of the passkeys at {where}"
    shares = [
        (row.share_found(length), length)
        for length in row.hits
        if length <= target and not (claim.beyond and length <= original)
    ]
    if not shares:
        return Finding(rule)
    share, length = min(shares) if claim.least else max(shares)
    return Finding(rule, claim.least <= share <= claim.most, f"{share:.1%} at {length:,}")


def _judge_more_passkeys(claim: FindsMore, rows: Rows, original: int, target: int) -> Finding:
    rule = f"{arm_name(claim.row)} finds more passkeys than {arm_name(claim.other)} at the target"
    ours, theirs = rows[claim.row].hits.get(target), rows[claim.other].hits.get(target)
    if not ours or not theirs:
        return Finding(rule)
    shares = [[found / asked for found, asked in hits] for hits in (ours, theirs)]
    differences = [round(a - b, 9) for a, b in zip(*shares, strict=False)]
    if len(set(differences)) > 1:  # prompts of one seed are asked of one model: the models are the sample
        apart, over = seeds_interval(differences), f"over {len(differences)} seeds"
    else:  # one seed, or seeds whose differences happen to be equal, which would give an interval of no width
        answers = (
            {
                (str(seed), number): hit
                for seed, one in enumerate(rows[row].answers[target])
                for number, hit in one.items()
            }
            for row in (claim.row, claim.other)
        )
        if (paired := share_difference(*answers)) is None:
            return Finding(rule)
        apart, over = paired, "over the prompts, which both were asked"
    told = " against ".join(", ".join(map(format_share, each)) for each in shares)
    points = f"{100 * apart.low:+.0f} to {100 * apart.high:+.0f} points"
    return Finding(rule, apart.low > 0, f"{told} at {target:,}; difference {points}, 95% interval {over}")


def _judge_level(claim: Holds, rows: Rows, original: int, target: int) -> Finding:
    row = rows[claim.row]
    bounds = [f"at least {claim.least:g} x"] * (claim.least > 0)
    bounds += [f"at most {claim.most:g} x"] * (claim.most < float("inf"))
    rule = f"{arm_name(claim.row)}'s perplexity rises to {' and '.join(bounds)} that at the original length"
    ratios = []
    for text in dict.fromkeys(text for text, _ in row.segments):
        curve = row.first_tokens(text)
        beyond = {length: value for length, value in curve.items() if original < length <= target}
        if original in curve and beyond:
            length = max(beyond, key=lambda n: beyond[n])
            ratios.append((beyond[length] / curve[original], length, text))
    if not ratios:
        return Finding(rule)
    ratio, length, text = max(ratios) if claim.most < float("inf") else min(ratios)
    return Finding(rule, claim.least <= ratio <= claim.most, f"{ratio:.3f} times at {length:,}, {text}")


def _judge_ability(claim: Keeps, rows: Rows, original: int, target: int) -> Finding:
    rule = (
        f"{arm_name(claim.row)} loses at most {claim.loss:g} nats and {claim.accuracy:g} of next-token accuracy "
        f"against {arm_name(claim.other)}, inside the original length"
    )
    found: list[tuple[bool, float, str]] = []
    for text, length in rows[claim.row].segments:
        if length == original:
            loss, right = (rows[claim.row].difference(rows[claim.other], text, original, s) for s in _SUMS)
            if loss and right:
                kept = loss.high <= claim.loss and right.low >= -claim.accuracy
                found.append((kept, -loss.high, f"{loss} nats, {right.times(100)} points of accuracy, {text}"))
    if not found:
        return Finding(rule)
    kept, _, told = min(found)
    return Finding(rule, kept, told)


_JUDGES: Mapping[type[Claim], Callable[[Any, Rows, int, int], Finding]] = {
    Lower: _judge_order,
    Falls: _judge_fall,
    Finds: _judge_passkey,
    FindsMore: _judge_more_passkeys,
    Holds: _judge_level,
    Keeps: _judge_ability,
}
