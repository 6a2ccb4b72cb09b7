"""Scores hold what the run asks for, and nothing of another rule."""

import pytest

from reproduction.exhibits import EXHIBITS
from reproduction.measured import asked_records
from reproduction.runs import plan_runs
from reproduction.scales import SCALES
from reproduction.scores import collect
from skipwise.results.records import append_record
from tests.reproduced import pooled, segments, sliding, trials

ASKED = {"evaluation.source": ["x"], "evaluation.documents": 4, "evaluation.segments": 2}


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


def measured(tmp_path, **records):
    """The seeds of each row by kind, and the rows of which something is left out."""
    runs = planned(records)
    for run in runs:
        write(tmp_path, run, *records[run.variant])
    rows, partial = collect(runs, tmp_path)
    seeds = {variant: set(row.seeds) for variant, row in rows["yarn, 8x"].items()}
    return seeds, [run.variant for run in partial["yarn, 8x"]]


def test_what_another_rule_measured_is_left_out(tmp_path) -> None:
    found = scores(
        tmp_path,
        pooled(10.0),
        pooled(90.0, documents=8),
        pooled(91.0, documents=3),
        pooled(92.0, stride=64),
        pooled(93.0, data="y"),
        pooled(94.0, window=300),
        pooled(95.0, tokens=4 * 8191),
    )
    assert list(found.nll) == [("x", 512)]
    assert found.perplexity("x", 512) == (pytest.approx(10.0), 0.0)
    assert found.reading["x", 512] == (128, 4)


def test_of_fewer_documents_than_asked_for_the_most_are_taken(tmp_path) -> None:
    found = scores(tmp_path, pooled(11.0, documents=2), pooled(12.0, documents=1))
    assert found.perplexity("x", 512)[0] == pytest.approx(11.0)


def test_documents_are_pooled_and_no_more_than_asked_for_are_taken(tmp_path) -> None:
    found = scores(tmp_path, *(sliding(2.0**i, document=f"d{i}") for i in range(6)))
    assert found.perplexity("x", 512)[0] == pytest.approx(2 ** ((0 + 1 + 2 + 3) / 4))
    assert found.reading["x", 512] == (128, 4)


def test_of_a_document_read_twice_the_longer_reading_counts(tmp_path) -> None:
    found = scores(tmp_path, sliding(9.0, tokens=600), sliding(10.0), sliding(99.0, tokens=5000))
    assert found.perplexity("x", 512)[0] == pytest.approx(10.0)


def test_a_measurement_made_again_counts_once(tmp_path) -> None:
    assert scores(tmp_path, pooled(10.0), pooled(11.0)).perplexity("x", 512) == (pytest.approx(11.0), 0.0)


def test_seeds_give_mean_and_spread(tmp_path) -> None:
    found = scores(tmp_path, pooled(10.0), seeds=(0, 1))
    assert len(found.nll["x", 512]) == 2
    assert found.seeds == {"sliding": [0, 1]}


def test_segments_and_passkeys_follow_the_rule(tmp_path) -> None:
    found = scores(
        tmp_path,
        *segments(1.0, 1.0, 9.0),
        *segments(9.0, data="y"),
        *segments(9.0, edges=(1, 512)),
        *trials(40, 60),
        *trials(50, 50, seed=1),
        *trials(50, 50, length=300),
        sliding(2.0, window=2048, step=10),
    )
    ((place, (seed,)),) = found.segments.items()
    assert (place, len(seed)) == (("x", 2048), 2)
    assert found.by_position("x", 2048, 0, 2048).mean == pytest.approx(1.0)
    assert found.passkeys == {512: [(40, 50)]}
    assert found.answers == {("passkey", 512): [{n: n < 40 for n in range(50)}]}
    assert found.steps == {}


def test_each_task_that_is_asked_for_counts_for_itself(tmp_path) -> None:
    both = {"evaluation.tasks": ["passkey", "keys"]}
    records = [*trials(40, 60), *trials(10, 60, task="keys"), *trials(10, 60, task="lines")]
    assert scores(tmp_path, *records, **both).hits == {"passkey": {512: [(40, 50)]}, "keys": {512: [(10, 50)]}}


def test_steps_are_taken_where_they_are_asked_for(tmp_path) -> None:
    asked = {"evaluation.steps": [10, 20]}
    found = scores(tmp_path, *(sliding(2.0, window=2048, step=step) for step in (10, 30)), **asked)
    assert found.steps == {10: [pytest.approx(0.693147, rel=1e-5)]}
    assert found.nll == {}


def test_nothing_measured_gives_nothing(tmp_path) -> None:
    runs = planned(["pose"])
    found = collect(runs, tmp_path)[0]["yarn, 8x"]["pose"]
    assert not found.measured
    assert asked_records(runs[0], tmp_path) == {}
    assert found.perplexity("x", 512) is None
    assert found.by_position("x", 2048, 0, 2048) is None
    assert found.difference(found, "x", 2048, 0, 2048) is None


def test_rows_of_fewer_documents_than_the_best_measured_are_left_out(tmp_path) -> None:
    rows = {"pose": [pooled(10.0), pooled(10.0, documents=2)], "full": [pooled(10.0, documents=2)]}
    assert measured(tmp_path, **rows) == ({"full": set(), "pose": {"sliding"}}, ["full"])


def test_rows_of_fewer_segments_are_left_out(tmp_path) -> None:
    found = measured(tmp_path, pose=segments(1.0, count=2), full=segments(1.0), short=[pooled(10.0)])
    assert found == ({"full": set(), "pose": {"segments"}, "short": {"sliding"}}, ["full"])


def test_a_row_may_lack_a_length_that_others_have(tmp_path) -> None:
    """As under linear interpolation, where only the original was asked for passkeys beyond the target."""
    both = [*trials(40, 50), *trials(0, 50, length=4096)]
    assert measured(tmp_path, original=both, pose=both[:50]) == ({"original": {"prompts"}, "pose": {"prompts"}}, [])


def test_a_seed_that_a_kill_left_in_part_is_left_out(tmp_path) -> None:
    runs = planned(["pose"], seeds=(0, 1))
    write(tmp_path, runs[0], pooled(10.0), pooled(11.0, window=256))
    write(tmp_path, runs[1], pooled(20.0))
    rows, partial = collect(runs, tmp_path)
    assert rows["yarn, 8x"]["pose"].perplexity("x", 512) == (pytest.approx(10.0), 0.0)
    assert partial["yarn, 8x"] == [runs[1]]


def test_rows_are_compared_over_the_seeds_that_all_have(tmp_path) -> None:
    """Seeds are shared kind by kind: an arm of several exhibits has more seeds of what they all measure."""
    runs = planned(["pose", "short", "full"], seeds=(0, 1))
    for run in runs:
        if run.variant == "short" and run.recipe.seed == 1:
            continue
        asked = trials(40, 50, seed=run.recipe.seed) if run.variant != "short" else []
        write(tmp_path, run, pooled(10.0 + run.recipe.seed), *asked)
    rows = collect(runs, tmp_path)[0]["yarn, 8x"]
    assert {variant: row.seeds["sliding"] for variant, row in rows.items()} == {"pose": [0], "short": [0], "full": [0]}
    assert rows["pose"].seeds["prompts"] == rows["full"].seeds["prompts"] == [0, 1]


def test_rows_of_no_seed_in_common_are_shown_all_the_same(tmp_path) -> None:
    runs = planned(["pose", "full"], seeds=(0, 1))
    for run in runs:
        if (run.variant == "pose") == (run.recipe.seed == 1):
            write(tmp_path, run, pooled(10.0))
    rows = collect(runs, tmp_path)[0]["yarn, 8x"]
    assert (rows["pose"].seeds["sliding"], rows["full"].seeds["sliding"]) == ([1], [0])
