"""Claims + scores -> findings: whether each holds on what was measured, and where it does least."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reproduction.claims import Claim, Finds, FindsMore, Holds, Keeps, Lower, Reads, arms_of
from reproduction.scores import Scores
from skipwise.report.summary import arm_name, format_share
from skipwise.results.statistics import seeds_interval, share_difference


@dataclass(frozen=True)
class Finding:
    """A claim, put to what was measured.

    Attributes:
        rule: the claim in words.
        holds: whether it does; None where it was not measured.
        worst: the length or text at which it holds least, with its figures.
    """

    rule: str
    holds: bool | None
    worst: str


def verdict(finding: Finding) -> str:
    """A finding as a line of Markdown."""
    if finding.holds is None:
        return f"- {finding.rule}: not measured"
    return f"- {finding.rule}: {'holds' if finding.holds else '**does not hold**'} ({finding.worst})"


def judge(claim: Claim, scores: Mapping[str, Scores], original: int, target: int) -> Finding:
    """Put one claim to the scores of one setting: at every text and length it names, up to the target."""
    scores = {arm: scores.get(arm, Scores()) for arm in arms_of(claim)}
    match claim:
        case Lower():
            return _judge_order(claim, scores, original, target)
        case Finds():
            return _judge_passkey(claim, scores, original, target)
        case FindsMore():
            return _judge_more_passkeys(claim, scores, target)
        case Reads():
            return _judge_reading(claim, scores, original, target)
        case Holds():
            return _judge_level(claim, scores, original, target)
        case Keeps():
            return _judge_ability(claim, scores, original)


def _not_measured(rule: str) -> Finding:
    return Finding(rule, None, "not measured")


def _judge_order(claim: Lower, scores: Mapping[str, Scores], original: int, target: int) -> Finding:
    factor = f"{claim.factor:g} x " if claim.factor != 1 else ""
    where = "every length beyond the original" if claim.beyond else "every length"
    rule = f"{arm_name(claim.arm)} at most {factor}{arm_name(claim.other)}, at {where}"
    ratios = []
    low, high = scores[claim.arm], scores[claim.other]
    for text, window in low.nll:
        ours, theirs = low.perplexity(text, window), high.perplexity(text, window)
        if theirs is None or ours is None or window > target or (claim.beyond and window <= original):
            continue
        ratios.append((ours[0] / theirs[0], window, text))
    if not ratios:
        return _not_measured(rule)
    ratio, window, text = max(ratios)
    return Finding(rule, ratio <= claim.factor, f"{ratio:.3f} of it at {window:,} ({text})")


def _judge_passkey(claim: Finds, scores: Mapping[str, Scores], original: int, target: int) -> Finding:
    bound = f"at least {claim.least:.0%}" if claim.least else f"at most {claim.most:.0%}"
    where = "every length beyond the original" if claim.beyond else "every length up to the target"
    rule = f"{arm_name(claim.arm)} finds {bound} of the passkeys at {where}"
    row = scores[claim.arm]
    shares = [
        (row.found(length)[0] / row.found(length)[1], length)
        for length in row.hits
        if length <= target and not (claim.beyond and length <= original)
    ]
    if not shares:
        return _not_measured(rule)
    share, length = min(shares) if claim.least else max(shares)
    return Finding(rule, claim.least <= share <= claim.most, f"{format_share(share)} at {length:,}")


def _judge_more_passkeys(claim: FindsMore, scores: Mapping[str, Scores], target: int) -> Finding:
    rule = f"{arm_name(claim.arm)} finds more passkeys than {arm_name(claim.other)} at the target"
    ours, theirs = scores[claim.arm].hits.get(target), scores[claim.other].hits.get(target)
    if not ours or not theirs:
        return _not_measured(rule)
    shares = [[found / asked for found, asked in hits] for hits in (ours, theirs)]
    told = f"{_listed(shares[0])} against {_listed(shares[1])} at {target:,}"
    if len(ours) == len(theirs) > 1:  # prompts of one seed are asked of one model: the models are the sample
        apart = seeds_interval([a - b for a, b in zip(*shares, strict=True)])
        over = f"over {len(ours)} seeds"
    else:
        apart = share_difference(ours[0], theirs[0])
        over = "over the prompts of one seed"
    return Finding(
        rule,
        apart.low > 0,
        f"{told}; difference {100 * apart.low:+.0f} to {100 * apart.high:+.0f} points, 95% interval {over}",
    )


def _listed(shares: Sequence[float]) -> str:
    return ", ".join(format_share(share) for share in shares)


def _judge_reading(claim: Reads, scores: Mapping[str, Scores], original: int, target: int) -> Finding:
    rule = f"{arm_name(claim.arm)} predicts positions beyond the original length better than {arm_name(claim.other)}"
    found = []
    for text in scores[claim.arm].texts(target):
        place = (scores[claim.other], text, target, original, target)
        if difference := scores[claim.arm].difference(*place):
            seeds = scores[claim.arm].each_difference(*place)
            told = f", {min(seeds):+.3f} to {max(seeds):+.3f} by seed" if len(seeds) > 1 else ""
            found.append((max(difference.high, *seeds), f"{difference} nats a token{told} ({text})"))
    if not found:
        return _not_measured(rule)
    high, told = max(found)
    return Finding(rule, high < 0, told)


def _judge_level(claim: Holds, scores: Mapping[str, Scores], original: int, target: int) -> Finding:
    bounds = [f"at least {claim.least:g} x"] * (claim.least > 0) + [f"at most {claim.most:g} x"] * (
        claim.most < float("inf")
    )
    rule = f"{arm_name(claim.arm)}'s perplexity rises to {' and '.join(bounds)} that at the original length"
    ratios = []
    for text, curve in scores[claim.arm].curves().items():
        beyond = {length: value for length, value in curve.items() if original < length <= target}
        if original in curve and beyond:
            length = max(beyond, key=lambda n: beyond[n])
            ratios.append((beyond[length] / curve[original], length, text))
    if not ratios:
        return _not_measured(rule)
    ratio, length, text = max(ratios) if claim.most < float("inf") else min(ratios)
    return Finding(rule, claim.least <= ratio <= claim.most, f"{ratio:.3f} times at {length:,} ({text})")


def _points(share: float) -> str:
    return f"{100 * share:g} point{'s' if 100 * share != 1 else ''}"


def _judge_ability(claim: Keeps, scores: Mapping[str, Scores], original: int) -> Finding:
    rule = (
        f"{arm_name(claim.arm)} loses at most {claim.loss:g} nats and {_points(claim.accuracy)} of next-token accuracy "
        f"against {arm_name(claim.other)}, inside the original length"
    )
    found = []
    for text in scores[claim.arm].texts(original):
        loss = scores[claim.arm].difference(scores[claim.other], text, original, 0, original)
        right = scores[claim.arm].difference(scores[claim.other], text, original, 0, original, "hits")
        if loss and right:
            kept = loss.high <= claim.loss and right.low >= -claim.accuracy
            found.append((kept, -loss.high, f"{loss} nats, {right.times(100)} points of accuracy ({text})"))
    if not found:
        return _not_measured(rule)
    kept, _, told = min(found)
    return Finding(rule, kept, told)
