"""Claims + scores -> findings: whether each claim holds on what was measured, and the place where it holds least."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from reproduction.claims import Claim, Falls, Finds, FindsMore, Holds, Keeps, Lower, Reads, Recovers, arms_of
from reproduction.intervals import seeds_interval
from reproduction.scores import Scores
from skipwise.recipes.names import arm_name
from skipwise.report.numbers import format_share
from skipwise.results.statistics import share_difference


@dataclass(frozen=True)
class Finding:
    """A claim and what was measured of it.

    Attributes:
        rule: the claim in words.
        holds: whether it does; None where it was not measured.
        worst: the length or text at which it holds least, with its figures.
    """

    rule: str
    holds: bool | None = None
    worst: str = "not measured"

    @property
    def verdict(self) -> str:
        """``holds``, ``does not hold`` in bold, or ``not measured``."""
        return "not measured" if self.holds is None else "holds" if self.holds else "**does not hold**"

    def __str__(self) -> str:
        """The finding as a line of Markdown."""
        return f"- {self.rule}: {self.verdict}" + ("" if self.holds is None else f" ({self.worst})")


def judge(claim: Claim, scores: Mapping[str, Scores], original: int, target: int) -> Finding:
    """Judge one claim by the scores of one setting: at every text and length it names, up to the target."""
    rows = {arm: scores.get(arm, Scores()) for arm in arms_of(claim)}
    match claim:
        case Lower():
            return _judge_order(claim, rows, original, target)
        case Falls():
            return _judge_fall(claim, rows[claim.arm], target)
        case Recovers():
            return _judge_recovery(claim, rows, target)
        case Finds():
            return _judge_passkey(claim, rows[claim.arm], original, target)
        case FindsMore():
            return _judge_more_passkeys(claim, rows, target)
        case Reads():
            return _judge_reading(claim, rows, original, target)
        case Holds():
            return _judge_level(claim, rows[claim.arm], original, target)
        case Keeps():
            return _judge_ability(claim, rows, original)


def _judge_order(claim: Lower, rows: Mapping[str, Scores], original: int, target: int) -> Finding:
    factor = f"{claim.factor:g} x " if claim.factor != 1 else ""
    where = "every length beyond the original" if claim.beyond else "every length"
    rule = f"{arm_name(claim.arm)} at most {factor}{arm_name(claim.other)}, at {where}"
    ratios = []
    for text, window in rows[claim.arm].nll:
        ours, theirs = (rows[arm].perplexity(text, window) for arm in (claim.arm, claim.other))
        if ours and theirs and window <= target and not (claim.beyond and window <= original):
            ratios.append((ours[0] / theirs[0], window, text))
    if not ratios:
        return Finding(rule)
    ratio, window, text = max(ratios)
    return Finding(rule, ratio <= claim.factor, f"{ratio:.3f} of it at {window:,} ({text})")


def _judge_fall(claim: Falls, row: Scores, target: int) -> Finding:
    rule = f"{arm_name(claim.arm)}'s perplexity falls as the window grows, or rises by at most {claim.rise:.0%}"
    steps = [
        (after[0] / before[0] - 1, f"{before[0]:.3g} at {near:,}, {after[0]:.3g} at {far:,} ({text})")
        for text in dict.fromkeys(text for text, _ in row.nll)
        for (near, before), (far, after) in pairwise(row.by_window(text).items())
        if far <= target
    ]
    if not steps:
        return Finding(rule)
    rise, told = max(steps)
    return Finding(rule, rise <= claim.rise, f"{100 * rise:+.1f}%: {told}")


def recovered(rows: Mapping[str, Scores], claim: Recovers, text: str, target: int) -> tuple[float, list[float]] | None:
    """The share of ``other``'s gain over ``base`` that ``arm`` has at the target: of the means over seeds, and by seed.

    None where a row is missing, or where ``other`` gains nothing.
    """
    ours, full, base = (rows[arm].nll.get((text, target), []) for arm in (claim.arm, claim.other, claim.base))
    if not (ours and full and base) or fmean(base) <= fmean(full):
        return None
    start = fmean(base)
    each = [(start - a) / (start - b) for a, b in zip(ours, full, strict=False) if start > b]
    return (start - fmean(ours)) / (start - fmean(full)), each


def _judge_recovery(claim: Recovers, rows: Mapping[str, Scores], target: int) -> Finding:
    arm, other, base = map(arm_name, arms_of(claim))
    rule = f"{arm} recovers at least {claim.least:.0%} of {other}'s gain over {base} at the target, in nats"
    shares = []
    for text in dict.fromkeys(text for text, _ in rows[claim.arm].nll):
        if share := recovered(rows, claim, text, target):
            mean, each = share
            seeds = f", {min(each):.0%} to {max(each):.0%} by seed" if len(each) > 1 else ""
            shares.append((mean, f"{mean:.0%} at {target:,}{seeds} ({text})"))
    if not shares:
        return Finding(rule)
    least, told = min(shares)
    return Finding(rule, least >= claim.least, told)


def _judge_passkey(claim: Finds, row: Scores, original: int, target: int) -> Finding:
    bound = f"at least {claim.least:.0%}" if claim.least else f"at most {claim.most:.0%}"
    where = "every length beyond the original" if claim.beyond else "every length up to the target"
    rule = f"{arm_name(claim.arm)} finds {bound} of the passkeys at {where}"
    shares = [
        (row.share_found(length), length)
        for length in row.passkeys
        if length <= target and not (claim.beyond and length <= original)
    ]
    if not shares:
        return Finding(rule)
    share, length = min(shares) if claim.least else max(shares)
    told = format_share(share)
    if told == format_share(claim.least) and share < claim.least:  # rounded, it would be what was asked for
        told = f"{share:.1%}"
    return Finding(rule, claim.least <= share <= claim.most, f"{told} at {length:,}")


def _judge_more_passkeys(claim: FindsMore, rows: Mapping[str, Scores], target: int) -> Finding:
    rule = f"{arm_name(claim.arm)} finds more passkeys than {arm_name(claim.other)} at the target"
    ours, theirs = rows[claim.arm].passkeys.get(target), rows[claim.other].passkeys.get(target)
    if not ours or not theirs:
        return Finding(rule)
    shares = [[found / asked for found, asked in hits] for hits in (ours, theirs)]
    told = f"{_listed(shares[0])} against {_listed(shares[1])} at {target:,}"
    differences = [round(a - b, 9) for a, b in zip(*shares, strict=False)]
    if len(ours) == len(theirs) and len(set(differences)) > 1:
        # Prompts of one seed are asked of one model: the models are the sample.
        apart, over = seeds_interval(differences), f"over {len(ours)} seeds"
    else:  # one seed, or seeds whose differences happen to be equal, which would give an interval of no width
        seeds = len(ours) if len(ours) == len(theirs) else 1
        answers = (
            {
                (str(seed), number): hit
                for seed, one in enumerate(rows[arm].answers["passkey", target][:seeds])
                for number, hit in one.items()
            }
            for arm in (claim.arm, claim.other)
        )
        if (paired := share_difference(*answers)) is None:
            return Finding(rule)
        of = "one seed" if seeds == 1 else f"{seeds} seeds"
        apart, over = paired, f"over the prompts of {of}, which both were asked"
    points = f"{100 * apart.low:+.0f} to {100 * apart.high:+.0f} points"
    return Finding(rule, apart.low > 0, f"{told}; difference {points}, 95% interval {over}")


def _listed(shares: Sequence[float]) -> str:
    return ", ".join(format_share(share) for share in shares)


def _judge_reading(claim: Reads, rows: Mapping[str, Scores], original: int, target: int) -> Finding:
    rule = f"{arm_name(claim.arm)} predicts positions beyond the original length better than {arm_name(claim.other)}"
    found = []
    for text in rows[claim.arm].texts(target):
        place = (rows[claim.other], text, target, original, target)
        if difference := rows[claim.arm].difference(*place):
            seeds = rows[claim.arm].each_difference(*place)
            told = f", {min(seeds):+.3f} to {max(seeds):+.3f} by seed" if len(seeds) > 1 else ""
            found.append((max(difference.high, *seeds), f"{difference} nats a token{told} ({text})"))
    if not found:
        return Finding(rule)
    high, told = max(found)
    return Finding(rule, high < 0, told)


def _judge_level(claim: Holds, row: Scores, original: int, target: int) -> Finding:
    bounds = [f"at least {claim.least:g} x"] * (claim.least > 0)
    bounds += [f"at most {claim.most:g} x"] * (claim.most < float("inf"))
    rule = f"{arm_name(claim.arm)}'s perplexity rises to {' and '.join(bounds)} that at the original length"
    ratios = []
    for text, curve in row.curves().items():
        beyond = {length: value for length, value in curve.items() if original < length <= target}
        if original in curve and beyond:
            length = max(beyond, key=lambda n: beyond[n])
            ratios.append((beyond[length] / curve[original], length, text))
    if not ratios:
        return Finding(rule)
    ratio, length, text = max(ratios) if claim.most < float("inf") else min(ratios)
    return Finding(rule, claim.least <= ratio <= claim.most, f"{ratio:.3f} times at {length:,} ({text})")


def _judge_ability(claim: Keeps, rows: Mapping[str, Scores], original: int) -> Finding:
    points = f"{100 * claim.accuracy:g} point{'s' if claim.accuracy != 0.01 else ''}"
    rule = (
        f"{arm_name(claim.arm)} loses at most {claim.loss:g} nats and {points} of next-token accuracy against "
        f"{arm_name(claim.other)}, inside the original length"
    )
    found = []
    for text in rows[claim.arm].texts(original):
        place = (rows[claim.other], text, original, 0, original)
        loss, right = (rows[claim.arm].difference(*place, sums) for sums in ("nll", "hits"))
        if loss and right:
            kept = loss.high <= claim.loss and right.low >= -claim.accuracy
            found.append((kept, -loss.high, f"{loss} nats, {right.times(100)} points of accuracy ({text})"))
    if not found:
        return Finding(rule)
    kept, _, told = min(found)
    return Finding(rule, kept, told)
