"""A rule holds at its worst length, and can fail."""

import math

import pytest

from reproduction.claims import Finds, FindsMore, Holds, Keeps, Lower, Reads
from reproduction.scores import Scores
from reproduction.verdicts import Finding, judge, verdict
from skipwise.results.records import PositionRecord

WINDOWS = (256, 512, 1024)


def scored(**perplexities: tuple[float, ...]) -> dict[str, Scores]:
    return {
        arm: Scores({("x", w): [math.log(v)] for w, v in zip(WINDOWS, values, strict=False)})
        for arm, values in perplexities.items()
    }


def read(*losses: tuple[float, float], hits: int = 5) -> Scores:
    """Segments of 512 tokens in documents of their own: mean loss up to 256, and from there on."""
    record = PositionRecord(
        arm="a",
        length=512,
        data="x",
        edges=[1, 256, 512],
        documents=[f"d{i}" for i in range(len(losses))],
        nll=[[near * 255, far * 256] for near, far in losses],
        hits=[[hits, hits] for _ in losses],
        precision="float32",
        seconds=1.0,
    )
    return Scores(positions={("x", 512): [record]})


@pytest.mark.parametrize(
    ("claim", "holds", "worst"),
    [
        (Lower("a", "b"), False, "1.200 of it at 256 (x)"),
        (Lower("a", "b", factor=1.2), True, "1.200 of it at 256 (x)"),
        (Lower("a", "b", beyond=True), True, "0.500 of it at 512 (x)"),
        (Lower("a", "c"), None, "not measured"),
        (Holds("a", most=1.0), True, "0.833 times at 512 (x)"),
        (Holds("b", most=1.5), False, "2.000 times at 512 (x)"),
        (Holds("b", least=1.99), True, "2.000 times at 512 (x)"),
        (Holds("b", least=2.5), False, "2.000 times at 512 (x)"),
        (Holds("c", least=2.5), None, "not measured"),
    ],
)
def test_an_order_is_judged_at_its_worst_length_up_to_the_target(claim, holds, worst) -> None:
    finding = judge(claim, scored(a=(12.0, 10.0, 99.0), b=(10.0, 20.0, 10.0)), 256, 512)
    assert (finding.holds, finding.worst) == (holds, worst)


@pytest.mark.parametrize(
    ("claim", "holds", "worst"),
    [
        (Finds("a", least=0.9), False, "50% at 512"),
        (Finds("a", least=0.5), True, "50% at 512"),
        (Finds("a", most=0.1), False, "100% at 256"),
        (Finds("a", most=0.5, beyond=True), True, "50% at 512"),
        (Finds("b", least=0.9), None, "not measured"),
    ],
)
def test_retrieval_is_judged_at_its_worst_length(claim, holds, worst) -> None:
    scores = {"a": Scores(hits={256: [(10, 10)], 512: [(5, 10)], 1024: [(0, 10)]})}
    finding = judge(claim, scores, 256, 512)
    assert (finding.holds, finding.worst) == (holds, worst)


@pytest.mark.parametrize(
    ("ours", "theirs", "holds"),
    [((50, 50), (39, 50), True), ((50, 50), (49, 50), False), ((39, 50), (50, 50), False)],
)
def test_more_passkeys_need_an_interval_above_zero(ours, theirs, holds) -> None:
    scores = {"a": Scores(hits={512: [ours]}), "b": Scores(hits={512: [theirs]})}
    assert judge(FindsMore("a", "b"), scores, 256, 512).holds is holds
    assert judge(FindsMore("a", "b"), scores, 256, 1024).holds is None


@pytest.mark.parametrize(
    ("ours", "theirs", "holds", "told"),
    [  # the first two of a real run: 95% against 84% of 150 prompts, which are three models
        (
            (46, 50, 47),
            (37, 42, 47),
            False,
            "92%, 100%, 94% against 74%, 84%, 94% at 512; difference -13 to +36",
        ),
        ((46, 50, 47), (36, 39, 37), True, "difference +18 to +24 points, 95% interval over 3 seeds"),
        ((46, 50), (36, 40), True, "difference +20 to +20 points, 95% interval over 2 seeds"),
    ],
)
def test_models_and_not_prompts_are_the_sample_of_several_seeds(ours, theirs, holds, told) -> None:
    scores = {
        arm: Scores(hits={512: [(n, 50) for n in found]}) for arm, found in (("a", ours), ("b", theirs))
    }
    finding = judge(FindsMore("a", "b"), scores, 256, 512)
    assert finding.holds is holds
    assert told in finding.worst


def test_every_seed_must_read_better() -> None:
    ours, theirs = read(*[(1.0, 2.0)] * 4), read(*[(1.0, 2.2)] * 4)
    for losses in (2.3, 2.1):  # with the first seed lower on average, the second against it and then for it
        both = Scores(
            positions={
                ("x", 512): [*ours.positions["x", 512], *read(*[(1.0, losses)] * 4).positions["x", 512]]
            }
        )
        other = Scores(positions={("x", 512): [*theirs.positions["x", 512]] * 2})
        finding = judge(Reads("a", "b"), {"a": both, "b": other}, 256, 512)
        assert finding.holds is (losses < 2.2)
    assert finding.worst == "-0.150 [-0.150, -0.150] nats a token, -0.200 to -0.100 by seed (x)"


def test_reading_far_text_is_judged_beyond_the_original_length_alone() -> None:
    near_worse = read(*[(9.0, 2.0 + i / 10) for i in range(6)])
    other = read(*[(1.0, 2.5 + i / 10) for i in range(6)])
    finding = judge(Reads("a", "b"), {"a": near_worse, "b": other}, 256, 512)
    assert finding.holds is True
    assert finding.worst == "-0.500 [-0.500, -0.500] nats a token (x)"
    assert judge(Reads("b", "a"), {"a": near_worse, "b": other}, 256, 512).holds is False
    unsure = read((9.0, 2.0), (9.0, 3.1))  # lower on average, not on every document
    assert judge(Reads("a", "b"), {"a": unsure, "b": read((1, 2.5), (1, 2.9))}, 256, 512).holds is False
    assert judge(Reads("a", "b"), {"a": unsure}, 256, 512).holds is None


@pytest.mark.parametrize(
    ("claim", "holds"),
    [
        (Keeps("a", "b", loss=0.03, accuracy=0.01), False),
        (Keeps("a", "b", loss=0.2, accuracy=0.02), True),
        (Keeps("a", "b", loss=0.2, accuracy=0.001), False),
        (Keeps("b", "a"), True),
        (Keeps("a", "c"), None),
    ],
)
def test_ability_is_kept_in_loss_and_in_accuracy(claim, holds) -> None:
    scores = {"a": read(*[(2.1, 2.1)] * 3, hits=3), "b": read(*[(2.0, 2.0)] * 3, hits=6)}
    for score in scores.values():  # segments of the original length
        score.positions["x", 512][0].__dict__.update(length=512)
    finding = judge(claim, scores, 512, 4096)
    assert finding.holds is holds


def test_a_verdict_says_where_it_does_not_hold() -> None:
    assert verdict(Finding("a below b", False, "1.2 at 256")) == "- a below b: **does not hold** (1.2 at 256)"
    assert verdict(Finding("a below b", None, "")) == "- a below b: not measured"


def test_segments_of_other_documents_are_not_compared() -> None:
    ours, theirs = read((1.0, 2.0), (1.0, 2.0)), read((1.0, 3.0), (1.0, 3.0))
    assert judge(Reads("a", "b"), {"a": ours, "b": theirs}, 256, 512).holds is True
    theirs.positions["x", 512][0].documents[0] = "another"
    assert judge(Reads("a", "b"), {"a": ours, "b": theirs}, 256, 512).holds is None


def test_ability_is_judged_by_the_far_end_of_the_interval() -> None:
    ours = read(*[(2.0, 2.0 + i / 10) for i in (-2, 0, 2)])
    theirs = read(*[(2.0, 2.0)] * 3)
    assert judge(Keeps("a", "b", loss=0.03), {"a": ours, "b": theirs}, 512, 4096).holds is False
