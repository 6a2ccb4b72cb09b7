"""The paper's claims as rules, written down before anything is run, and their verdicts by what was measured.

Each claim is judged on one block's rows, at every text and length that it names, up to the target, where it holds least.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from skipwise.recipes.names import display_name
from skipwise.report.numbers import format_share
from skipwise.results.statistics import Interval, mean_interval, share_difference

if TYPE_CHECKING:
    from reproduction.scores import Scores

Rows = Mapping[str, "Scores"]
Judged = tuple[bool | None, str] | None  # whether the claim holds, and its worst place; None where it was not measured


@dataclass(frozen=True)
class Finding:
    """A claim and its verdict."""

    rule: str  # the claim in words
    holds: bool | None  # None: undecided
    worst: str  # the length or text at which it holds least, with its figures

    @property
    def verdict(self) -> str:
        """``holds``, ``does not hold`` in bold, or ``undecided``."""
        return "undecided" if self.holds is None else "holds" if self.holds else "**does not hold**"

    def __str__(self) -> str:
        """Return a line of Markdown."""
        return f"- {self.rule}: {self.verdict} ({self.worst})"


@dataclass(frozen=True)
class Lower:
    """At every window (or only beyond the original length) ``row``'s perplexity is at most ``factor`` x ``other``'s."""

    row: str
    other: str
    factor: float = 1.0
    beyond: bool = False

    @property
    def rule(self) -> str:
        factor = f"{self.factor:g} x " if self.factor != 1 else ""
        where = "every length beyond the original" if self.beyond else "every length"
        return f"perplexity of {display_name(self.row)} at most {factor}that of {display_name(self.other)}, at {where}"

    def judge(self, rows: Rows, original: int, target: int) -> Judged:
        ratios = []
        for text, window in rows[self.row].nll:
            ours, theirs = (rows[row].perplexity(text, window) for row in (self.row, self.other))
            if ours and theirs and window <= target and not (self.beyond and window <= original):
                ratios.append((ours[0] / theirs[0], window, text))
        if not ratios:
            return None
        ratio, window, text = max(ratios)
        return ratio <= self.factor, f"{ratio:.3f} of it at {window:,}, {text}"


@dataclass(frozen=True)
class Falls:
    """Each larger window gives ``row`` a lower perplexity, or one at most ``rise`` higher (the paper's own: 0.4%)."""

    row: str
    rise: float = 0.01

    @property
    def rule(self) -> str:
        return f"{display_name(self.row)}'s perplexity falls as the window grows, or rises by at most {self.rise:.0%}"

    def judge(self, rows: Rows, original: int, target: int) -> Judged:
        row = rows[self.row]
        steps = [
            (after[0] / before[0] - 1, f"{before[0]:.3g} at {near:,}, {after[0]:.3g} at {far:,}, {text}")
            for text in dict.fromkeys(text for text, _ in row.nll)
            for (near, before), (far, after) in pairwise(row.by_window(text).items())
            if far <= target
        ]
        if not steps:
            return None
        rise, place = max(steps)
        return rise <= self.rise, f"{100 * rise:+.1f}%: {place}"


@dataclass(frozen=True)
class Finds:
    """``row`` finds ``least`` to ``most`` of the passkeys at every length up to the target (or only beyond the original)."""

    row: str
    least: float = 0.0
    most: float = 1.0
    beyond: bool = False

    @property
    def rule(self) -> str:
        bound = f"at least {self.least:.0%}" if self.least else f"at most {self.most:.0%}"
        where = "every length beyond the original" if self.beyond else "every length up to the target"
        return f"{display_name(self.row)} finds {bound} of the passkeys at {where}"

    def judge(self, rows: Rows, original: int, target: int) -> Judged:
        lengths = [n for n in rows[self.row].hits if n <= target and not (self.beyond and n <= original)]
        if not lengths:
            return None
        shares = [(rows[self.row].share_found(length), length) for length in lengths]
        share, length = min(shares) if self.least else max(shares)
        return self.least <= share <= self.most, f"{share:.1%} at {length:,}"


@dataclass(frozen=True)
class FindsMore:
    """At the target ``row`` finds more passkeys than ``other``: the 95% interval of the difference lies above 0.

    Undecided where the interval includes 0.
    """

    row: str
    other: str

    @property
    def rule(self) -> str:
        return f"{display_name(self.row)} finds more passkeys than {display_name(self.other)} at the target"

    def judge(self, rows: Rows, original: int, target: int) -> Judged:
        ours, theirs = rows[self.row].hits.get(target), rows[self.other].hits.get(target)
        if not ours or not theirs:
            return None
        shares = [[hits / prompts for hits, prompts in seeds] for seeds in (ours, theirs)]
        differences = [round(a - b, 9) for a, b in zip(*shares, strict=False)]
        if len(set(differences)) > 1:  # the prompts of a seed are one model's: the models are the sample
            apart, over = seeds_interval(differences), f"over {len(differences)} seeds"
        else:  # one seed, or seeds with equal differences, which would give an interval of no width
            answers = (
                {(str(seed), n): hit for seed, hits in enumerate(rows[row].answers[target]) for n, hit in hits.items()}
                for row in (self.row, self.other)
            )
            if (paired := share_difference(*answers)) is None:
                return None
            apart, over = paired, "over the prompts, the same for both"
        found = " against ".join(", ".join(map(format_share, seeds)) for seeds in shares)
        points = f"{100 * apart.low:+.0f} to {100 * apart.high:+.0f} points"
        holds = None if apart.low <= 0 <= apart.high else apart.low > 0
        return holds, f"{found} at {target:,}; difference {points}, 95% interval {over}"


@dataclass(frozen=True)
class Holds:
    """Beyond the original length ``row``'s perplexity rises to ``least`` to ``most`` times that at the original length."""

    row: str
    most: float = float("inf")
    least: float = 0.0

    @property
    def rule(self) -> str:
        bounds = [f"at least {self.least:g} x"] * (self.least > 0)
        bounds += [f"at most {self.most:g} x"] * (self.most < float("inf"))
        return f"{display_name(self.row)}'s perplexity rises to {' and '.join(bounds)} that at the original length"

    def judge(self, rows: Rows, original: int, target: int) -> Judged:
        row, ratios = rows[self.row], []
        for text in dict.fromkeys(text for text, _ in row.segments):
            curve = row.first_tokens(text)
            beyond = {length: value for length, value in curve.items() if original < length <= target}
            if original in curve and beyond:
                length = max(beyond, key=lambda n: beyond[n])
                ratios.append((beyond[length] / curve[original], length, text))
        if not ratios:
            return None
        ratio, length, text = max(ratios) if self.most < float("inf") else min(ratios)
        return self.least <= ratio <= self.most, f"{ratio:.3f} times at {length:,}, {text}"


@dataclass(frozen=True)
class Keeps:
    """Inside the original length ``row``'s loss is at most ``loss`` nats above ``other``'s and its next-token accuracy
    at most ``accuracy`` below, by the far ends of the 95% intervals over documents."""

    row: str
    other: str
    loss: float = 0.03
    accuracy: float = 0.01

    @property
    def rule(self) -> str:
        return (
            f"{display_name(self.row)} loses at most {self.loss:g} nats and {self.accuracy:g} of next-token accuracy "
            f"against {display_name(self.other)}, inside the original length"
        )

    def judge(self, rows: Rows, original: int, target: int) -> Judged:
        changes = []
        for text in (text for text, length in rows[self.row].segments if length == original):
            loss = rows[self.row].difference(rows[self.other], text, original)
            right = rows[self.row].difference(rows[self.other], text, original, "hits")
            if loss and right:
                kept = loss.high <= self.loss and right.low >= -self.accuracy
                changes.append((kept, -loss.high, f"{loss} nats, {right.times(100)} points of accuracy, {text}"))
        if not changes:
            return None
        kept, _, change = min(changes)
        return kept, change


def seeds_interval(values: Sequence[float]) -> Interval:
    """Return the mean of one value for each seed, two at least, and its 95% interval by Student's t (1908)."""
    return mean_interval(values, [1] * len(values), [str(seed) for seed in range(len(values))])


Claim = Lower | Falls | Finds | FindsMore | Holds | Keeps


def rows_of(claim: Claim) -> set[str]:
    """Return the rows that a claim is about."""
    return {getattr(claim, name) for name in ("row", "other") if hasattr(claim, name)}


def judge(claim: Claim, rows: Rows, original: int, target: int) -> Finding | None:
    """Judge one claim by the scores of one block; None where it was not measured."""
    judged = claim.judge(rows, original, target) if rows_of(claim) <= rows.keys() else None
    return Finding(claim.rule, *judged) if judged else None
