"""Scores hold what a run asks for and nothing of another rule; whether an arm is complete is decided from its records."""

import math
from types import SimpleNamespace

import pytest

from reproduction.claims import Falls, Finds, FindsMore, Holds, Keeps, Lower, Reads, Recovers
from reproduction.exhibits import EXHIBITS
from reproduction.measured import asked_records, is_complete
from reproduction.runs import plan_runs
from reproduction.scales import SCALES
from reproduction.scores import Scores, collect
from reproduction.verdicts import judge
from skipwise.evaluation.specification import specification_of
from skipwise.results.records import append_record
from tests.reproduced import pooled, segments, sliding, trials

ASKED = {"evaluation.source": ["x"], "evaluation.documents": 4, "evaluation.segments": 2}
SMALL = ASKED | {
    "evaluation.documents": 2,
    "evaluation.windows": [256, 512],
    "evaluation.prompt_lengths": [512],
    "evaluation.prompt_trials": 3,
}
NOW = [sliding(9.0, window=w, document=d, tokens=900) for w in (256, 512) for d in "ab"]
BEFORE = [pooled(9.0, documents=2, window=w, tokens=1800) for w in (256, 512)]  # a sum over documents, as published
REST = [*segments(1.0, 2.0), *trials(2, 3)]


def planned(variants, seeds=(0,), **changes):
    runs = plan_runs(EXHIBITS["passkey"], SCALES["nano"], seeds=seeds, changes=ASKED | changes)
    return [run for run in runs if run.variant in variants and run.setting == "yarn, 8x"]


def write(tmp_path, run, *records) -> None:
    run.folder(tmp_path).mkdir(parents=True)
    append_record(run.folder(tmp_path) / "results.jsonl", *records)


def scores(tmp_path, *records, seeds=(0,), **changes):
    runs = planned(["pose"], seeds, **changes)
    for run in runs:
        write(tmp_path, run, *records)
    return collect(runs, tmp_path)[0]["yarn, 8x"]["pose"]


@pytest.mark.parametrize(
    ("read", "complete"),
    [
        (NOW + REST, True),
        (BEFORE + REST, True),
        (NOW[1:] + REST, False),
        (NOW + REST[1:], False),
        (NOW + REST[:-1], False),
        ([sliding(9.0, window=w, document=d, tokens=899) for w in (256, 512) for d in "ab"] + REST, False),
    ],
)
def test_an_arm_is_complete_when_every_document_segment_and_prompt_is_there(tmp_path, read, complete) -> None:
    [run] = planned(["pose"], **SMALL)
    write(tmp_path, run, *read)
    documents = [SimpleNamespace(tokens=range(901))] * 2
    text = SimpleNamespace(source="x", documents=documents, windows=[256, 512], segments={2048: ["a", "b"], 4096: []})
    asked = specification_of(run.recipe, 256, 2048, "float32")
    evaluation = SimpleNamespace(specification=asked, texts=[text], recipe=run.recipe)
    assert is_complete(evaluation, asked_records(run, tmp_path)) is complete
    evaluation.recipe = SimpleNamespace(evaluation=run.recipe.evaluation, measured_steps=[10])
    assert not is_complete(evaluation, asked_records(run, tmp_path))


def test_what_another_rule_measured_is_left_out(tmp_path) -> None:
    others = [{"stride": 64}, {"data": "y"}, {"window": 300}, {"tokens": 4 * 8191}, {"documents": 8}]
    found = scores(
        tmp_path,
        pooled(10.0),
        *(pooled(90.0, **other) for other in others),
        pooled(91.0, documents=3),
        *segments(1.0, 1.0, 9.0),  # of which two are asked for
        *segments(9.0, data="y"),
        *segments(9.0, edges=(1, 512)),
        *trials(40, 60),  # of which fifty are asked for
        *trials(50, 50, seed=1),
        *trials(50, 50, length=300),
    )
    assert list(found.nll) == [("x", 512)]
    assert found.perplexity("x", 512) == (pytest.approx(10.0), 0.0)
    assert found.by_position("x", 2048, 0, 2048).mean == pytest.approx(1.0)
    assert found.passkeys == {512: [(40, 50)]}
    assert found.answers == {("passkey", 512): [{n: n < 40 for n in range(50)}]}


def test_rows_are_compared_over_the_whole_seeds_that_all_have(tmp_path) -> None:
    runs = planned(["pose", "short"], seeds=(0, 1, 2))
    for run in runs:
        records = [pooled(10.0 + run.recipe.seed), pooled(11.0, window=256)]
        if run.variant == "pose":
            write(tmp_path, run, *records[: 1 if run.recipe.seed == 2 else 2])  # a kill left the last in part
        elif run.recipe.seed == 1:
            write(tmp_path, run, *records)
    rows, partial = collect(runs, tmp_path)
    assert {variant: row.seeds["sliding"] for variant, row in rows["yarn, 8x"].items()} == {"pose": [1], "short": [1]}
    assert [run.recipe.seed for run in partial["yarn, 8x"]] == [2]


def windows(*perplexities: float) -> Scores:
    return Scores({("x", 256 * 2**k): [math.log(value)] for k, value in enumerate(perplexities)})


def read(*losses: tuple[float, float], hits: int = 5) -> Scores:
    """Segments of 512 tokens in documents of their own: mean loss up to 256, and from there on."""
    return Scores(segments={("x", 512): [segments(*losses, edges=(1, 256, 512), hits=hits)]})


def answered(*right: range) -> Scores:
    """Which of 50 prompts of 512 tokens each seed answers rightly."""
    answers = [{n: n in one for n in range(50)} for one in right]
    hits = [(sum(one.values()), 50) for one in answers]
    return Scores(hits={"passkey": {512: hits}}, answers={("passkey", 512): answers})


READ = {
    "a": read((9.0, 2.0), (9.0, 2.1)),
    "b": read((1.0, 2.5), (1.0, 2.6)),
    "unsure": read((9.0, 2.0), (9.0, 3.1)),
    "fewer": read((2.0, 2.0)),
}
KEPT = {"a": read(*[(2.1, 2.1)] * 3, hits=3), "b": read(*[(2.0, 2.0)] * 3, hits=6)}
ORDER = {"a": windows(12.0, 10.0, 99.0), "b": windows(10.0, 20.0, 10.0)}
FOUND = {"a": Scores(hits={"passkey": {256: [(10, 10)], 512: [(5, 10)], 1024: [(0, 10)]}})}
GAIN = {"full": windows(1.0, 10.0), "pi-only": windows(1.0, 40.0), "worse": windows(1.0, 50.0)}


@pytest.mark.parametrize(
    ("claim", "scores", "holds"),
    [
        (Lower("a", "b"), ORDER, False),
        (Lower("a", "b", factor=1.2), ORDER, True),  # what lies beyond the target of 512 is no matter
        (Lower("a", "b", beyond=True), ORDER, True),
        (Lower("a", "c"), ORDER, None),
        (Holds("b", least=2.5), ORDER, False),
        (Falls("a"), {"a": windows(10.0, 9.0, 99.0)}, True),
        (Falls("a"), {"a": windows(10.0, 10.9)}, False),
        (Falls("a"), {"a": windows(10.0)}, None),
        (Finds("a", least=0.9), FOUND, False),
        (Finds("a", most=0.5, beyond=True), FOUND, True),
        (Recovers("a"), GAIN | {"a": windows(1.0, 10.0)}, True),
        (Recovers("a"), GAIN | {"a": windows(1.0, 20.0)}, False),
        (Recovers("a", other="worse"), GAIN | {"a": windows(1.0, 10.0)}, None),
        (Reads("a", "b"), READ, True),
        (Reads("b", "a"), READ, False),
        (Reads("unsure", "b"), READ, False),
        (Reads("fewer", "b"), READ, None),  # segments of other documents
        (Keeps("a", "b", loss=0.03, accuracy=0.01), KEPT, False),
        (Keeps("a", "b", loss=0.2, accuracy=0.02), KEPT, True),
        # Of one seed both were asked the same prompts, so it matters which were answered; of several, models are the sample.
        (FindsMore("a", "b"), {"a": answered(range(28)), "b": answered(range(20))}, True),
        (FindsMore("a", "b"), {"a": answered(range(28)), "b": answered(range(30, 50))}, False),
        (FindsMore("a", "b"), {"a": answered(range(46), range(47)), "b": answered(range(37), range(47))}, False),
        (FindsMore("a", "b"), {"a": answered(range(50), range(49)), "b": answered(range(49), range(48))}, False),
    ],
)
def test_a_claim_is_judged_where_it_holds_least_up_to_the_target(claim, scores, holds) -> None:
    original = 512 if isinstance(claim, Keeps) else 256
    finding = judge(claim, scores, original, 512)
    assert finding.holds is holds
    assert (str(finding).count(": not measured") == 1) is (holds is None)
