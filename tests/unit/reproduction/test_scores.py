"""Scores hold what the run asks for, and nothing of another rule."""

import math

import pytest

from reproduction.exhibits import EXHIBITS
from reproduction.runs import plan_runs
from reproduction.scales import SCALES
from reproduction.scores import collect, whole_and_partial
from skipwise.results.records import (
    PasskeyRecord,
    PerplexityRecord,
    PositionRecord,
    StepRecord,
    append_record,
)

ASKED = {"evaluation.source": ["x"], "evaluation.documents": 4, "evaluation.segments": 2}


def perplexity(value: float, **changes) -> PerplexityRecord:
    plain = {"window": 512, "stride": 128, "documents": 4, "tokens": 4 * 4095, "data": "x"} | changes
    nll = math.log(value) * plain["tokens"]
    return PerplexityRecord(arm="pose", nll=nll, precision="bf16", seconds=1.0, **plain)


def segments(loss: float, count: int, data: str = "x", length: int = 2048) -> PositionRecord:
    return PositionRecord(
        "pose",
        length,
        data,
        [1, length],
        ["d"] * count,
        [[loss * (length - 1)]] * count,
        [[1]] * count,
        "bf16",
        1.0,
    )


def passkey(hits: int, trials: int, seed: int = 0, length: int = 512) -> PasskeyRecord:
    hit = [True] * hits + [False] * (trials - hits)
    return PasskeyRecord("pose", length, seed, [0.5] * trials, [length] * trials, hit, 1.0)


def scores(tmp_path, *records, seeds=(0,), **changes):
    runs = plan_runs(EXHIBITS["passkey"], SCALES["nano"], seeds=seeds, changes=ASKED | changes)
    pose = [run for run in runs if run.variant == "pose"]
    for run in pose:
        run.folder(tmp_path).mkdir(parents=True)
        for record in records:
            append_record(run.folder(tmp_path) / "results.jsonl", record)
    return collect(pose, tmp_path)["yarn, 8x"]["pose"]


def test_what_another_rule_measured_is_left_out(tmp_path) -> None:
    found = scores(
        tmp_path,
        perplexity(10.0),
        perplexity(90.0, documents=8, tokens=8 * 4095),
        perplexity(91.0, documents=3, tokens=3 * 4095),
        perplexity(92.0, stride=64),
        perplexity(93.0, data="y"),
        perplexity(94.0, window=300),
        perplexity(95.0, tokens=4 * 8191),
    )
    assert list(found.nll) == [("x", 512)]
    assert found.perplexity("x", 512) == (pytest.approx(10.0), 0.0)


def test_of_fewer_documents_than_asked_for_the_most_are_taken(tmp_path) -> None:
    found = scores(
        tmp_path, perplexity(11.0, documents=2, tokens=99), perplexity(12.0, documents=1, tokens=50)
    )
    assert found.perplexity("x", 512)[0] == pytest.approx(11.0)


def test_a_measurement_made_again_counts_once(tmp_path) -> None:
    found = scores(tmp_path, perplexity(10.0), perplexity(11.0))
    assert found.perplexity("x", 512) == (pytest.approx(11.0), 0.0)


def test_seeds_give_mean_and_spread(tmp_path) -> None:
    found = scores(tmp_path, perplexity(10.0), seeds=(0, 1))
    assert len(found.nll["x", 512]) == 2


def test_segments_and_passkeys_follow_the_rule(tmp_path) -> None:
    found = scores(
        tmp_path,
        segments(1.0, 2),
        segments(9.0, 3),
        segments(9.0, 2, data="y"),
        segments(9.0, 2, length=512),
        passkey(40, 50),
        passkey(2, 3),
        passkey(50, 50, seed=1),
        passkey(50, 50, length=300),
        StepRecord("pose", 10, 512, 128, 1, 10, 1.0, "x"),
    )
    assert [(place, len(found.positions[place])) for place in found.positions] == [(("x", 2048), 1)]
    assert found.by_position("x", 2048, 0, 2048).mean == pytest.approx(1.0)
    assert found.hits == {512: [(40, 50)]}
    assert found.steps == {}


def test_nothing_measured_gives_nothing(tmp_path) -> None:
    found = scores(tmp_path)
    assert (found.nll, found.hits, found.positions, found.steps) == ({}, {}, {}, {})
    assert found.perplexity("x", 512) is None
    assert found.by_position("x", 2048, 0, 2048) is None
    assert found.difference(found, "x", 2048, 0, 2048) is None


def measured(tmp_path, **records):
    """Runs of passkey by row, and what of each is measured."""
    runs = plan_runs(EXHIBITS["passkey"], SCALES["nano"], seeds=[0], changes=ASKED)
    chosen = {run.variant: run for run in runs if run.variant in records}
    for variant, found in records.items():
        chosen[variant].folder(tmp_path).mkdir(parents=True)
        for record in found:
            append_record(chosen[variant].folder(tmp_path) / "results.jsonl", record)
    whole, partial = whole_and_partial(chosen.values(), tmp_path)
    return [run.variant for run in whole], [run.variant for run in partial]


def test_rows_that_a_kill_left_in_part_are_told_from_whole_ones(tmp_path) -> None:
    both = [perplexity(10.0), perplexity(11.0, window=256), passkey(40, 50)]
    found = measured(tmp_path, pose=both, full=both[:1], short=both[:2], cream=[], randpos=both)
    assert found == (["randpos", "pose"], ["full", "short"])


def test_rows_of_fewer_documents_than_the_best_measured_are_in_part(tmp_path) -> None:
    many, few = perplexity(10.0), perplexity(10.0, documents=2, tokens=2 * 4095)
    assert measured(tmp_path, pose=[few, many], full=[few]) == (["pose"], ["full"])


def test_rows_of_fewer_segments_are_in_part(tmp_path) -> None:
    assert measured(tmp_path, pose=[segments(1.0, 2)], full=[segments(1.0, 1)]) == (["pose"], ["full"])
