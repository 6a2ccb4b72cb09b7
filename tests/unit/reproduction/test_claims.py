"""A rule holds at its worst length, seed or text, and can fail."""

import math

import pytest

from reproduction.claims import Falls, Finds, FindsMore, Holds, Keeps, Lower, judge
from reproduction.scores import Scores
from tests.reproduced import segments


def sliding(*perplexities: float) -> Scores:
    return Scores({("x", 256 * 2**k): [math.log(value)] for k, value in enumerate(perplexities)})


def read(*losses: tuple[float, float], hits: int = 5) -> Scores:
    """Segments of 512 tokens in documents of their own: mean loss up to 256, and from there on."""
    return Scores(segments={("x", 512): [segments(*losses, edges=(1, 256, 512), hits=hits)]})


def answered(*right: range) -> Scores:
    """Which of 50 prompts of 512 tokens each seed answers rightly."""
    answers = [{n: n in one for n in range(50)} for one in right]
    hits = [(sum(one.values()), 50) for one in answers]
    return Scores(hits={512: hits}, answers={512: answers})


KEPT = {"a": read(*[(2.1, 2.1)] * 3, hits=3), "b": read(*[(2.0, 2.0)] * 3, hits=6)}
ORDER = {"a": sliding(12.0, 10.0, 99.0), "b": sliding(10.0, 20.0, 10.0)}
FOUND = {"a": Scores(hits={256: [(10, 10)], 512: [(5, 10)], 1024: [(0, 10)]})}


UNDECIDED = "undecided"


@pytest.mark.parametrize(
    ("claim", "scores", "holds"),
    [
        (Lower("a", "b"), ORDER, False),
        (Lower("a", "b", factor=1.2), ORDER, True),  # what lies beyond the target of 512 is no matter
        (Lower("a", "b", beyond=True), ORDER, True),
        (Lower("a", "c"), ORDER, None),
        (Holds("a", most=1.0), {"a": read((2.0, 1.9))}, True),
        (Holds("a", least=2.5), {"a": read((2.0, 2.1))}, False),
        (Holds("a", most=1.0), ORDER, None),
        (Falls("a"), {"a": sliding(10.0, 9.0, 99.0)}, True),
        (Falls("a"), {"a": sliding(10.0, 10.9)}, False),
        (Finds("a", least=0.9), FOUND, False),
        (Finds("a", most=0.1), FOUND, False),
        (Finds("a", most=0.5, beyond=True), FOUND, True),
        (Keeps("a", "b", loss=0.03, accuracy=0.01), KEPT, False),
        (Keeps("a", "b", loss=0.2, accuracy=0.02), KEPT, True),
        # Of one seed both were asked the same prompts, so it matters which were answered; of several, models are the sample.
        (FindsMore("a", "b"), {"a": answered(range(28)), "b": answered(range(20))}, True),
        (FindsMore("b", "a"), {"a": answered(range(28)), "b": answered(range(20))}, False),
        (FindsMore("a", "b"), {"a": answered(range(28)), "b": answered(range(30, 50))}, UNDECIDED),
        (FindsMore("a", "b"), {"a": answered(range(46), range(47)), "b": answered(range(37), range(47))}, UNDECIDED),
        (FindsMore("a", "b"), {"a": answered(range(50), range(49)), "b": answered(range(49), range(48))}, UNDECIDED),
    ],
)
def test_a_claim_is_judged_where_it_holds_least_up_to_the_target(claim, scores, holds) -> None:
    original = 512 if isinstance(claim, Keeps) else 256
    finding = judge(claim, scores, original, 512)
    verdicts = {True: "holds", False: "**does not hold**", UNDECIDED: "undecided", None: None}
    assert (finding and finding.verdict) == verdicts[holds]
