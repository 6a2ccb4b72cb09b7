"""Scores hold what a run asks for and nothing of another rule; whether an arm is complete is decided from its records."""

from types import SimpleNamespace

import pytest

from reproduction.exhibits import EXHIBITS
from reproduction.measured import asked_records, is_complete
from reproduction.runs import plan_runs
from reproduction.scales import SCALES
from reproduction.scores import collect
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


def test_documents_are_pooled_and_of_one_read_twice_the_longer_reading_counts(tmp_path) -> None:
    twice = [sliding(9.0, document="d0", tokens=600), *(sliding(2.0**i, document=f"d{i}") for i in range(6))]
    found = scores(tmp_path, *twice, seeds=(0, 1))
    assert found.perplexity("x", 512)[0] == pytest.approx(2 ** ((0 + 1 + 2 + 3) / 4))
    assert (found.reading["x", 512], found.seeds) == ((128, 4), {"sliding": [0, 1]})


def test_tasks_and_steps_are_taken_where_they_are_asked_for(tmp_path) -> None:
    records = [*trials(40, 60), *trials(10, 60, task="keys"), *trials(10, 60, task="lines")]
    records += [sliding(2.0, window=2048, step=step) for step in (10, 30)]
    found = scores(tmp_path, *records, **{"evaluation.tasks": ["passkey", "keys"], "evaluation.steps": [10, 20]})
    assert found.hits == {"passkey": {512: [(40, 50)]}, "keys": {512: [(10, 50)]}}
    assert found.steps == {10: [pytest.approx(0.693147, rel=1e-5)]}
    assert found.nll == {}


@pytest.mark.parametrize(
    ("rows", "seeds", "partial"),
    [
        (
            {"pose": [pooled(10.0), pooled(10.0, documents=2)], "full": [pooled(10.0, documents=2)]},
            {"pose": {"sliding"}, "full": set()},
            ["full"],
        ),
        (
            {"pose": segments(1.0, count=2), "full": segments(1.0), "short": [pooled(10.0)]},
            {"pose": {"segments"}, "full": set(), "short": {"sliding"}},
            ["full"],
        ),
        (  # a row may lack a length that others have
            {"original": [*trials(40, 50), *trials(0, 50, length=4096)], "pose": trials(40, 50)},
            {"original": {"prompts"}, "pose": {"prompts"}},
            [],
        ),
    ],
)
def test_rows_that_were_measured_on_less_are_left_out(tmp_path, rows, seeds, partial) -> None:
    runs = planned(rows)
    for run in runs:
        write(tmp_path, run, *rows[run.variant])
    table, left = collect(runs, tmp_path)
    assert {variant: set(row.seeds) for variant, row in table["yarn, 8x"].items()} == seeds
    assert [run.variant for run in left["yarn, 8x"]] == partial


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
