"""Scores hold what a run asks for and nothing of another rule; whether an arm is complete is decided from its records."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from reproduction.exhibits import EXHIBITS
from reproduction.measured import is_complete, requested_records
from reproduction.runs import SCALES, by_position, plan_runs
from reproduction.scores import collect
from skipwise.evaluation.specification import specification_of
from skipwise.results.records import append_record
from tests.reproduced import segments, sliding, trials

ASKED = {"evaluation.source": ["x"], "evaluation.documents": 4}
SMALL = ASKED | {
    "evaluation.documents": 2,
    "evaluation.windows": [256, 512],
    "evaluation.prompt_lengths": [512],
    "evaluation.num_prompts": 3,
}
READ = [sliding(9.0, window=w, document=d, tokens=900) for w in (256, 512) for d in "ab"]
REST = [*segments(1.0, 2.0), *trials(2, 3)]


def planned(rows, seeds=(0,), **changes):
    runs = plan_runs(EXHIBITS["passkey"], SCALES["nano"], Path("/out"), seeds=seeds, changes=ASKED | changes)
    runs = [run for run in runs if run.row in rows and run.block == "yarn, 8x"]
    return [replace(run, recipe=by_position(run.recipe, 2048, 2)) for run in runs]


def write(tmp_path, run, *records) -> None:
    run.folder(tmp_path).mkdir(parents=True)
    append_record(run.folder(tmp_path) / "results.jsonl", *records)


def scores(tmp_path, *records, **changes):
    [run] = planned(["pose"], **changes)
    write(tmp_path, run, *records)
    return collect([run], tmp_path)[0]["yarn, 8x"]["pose"]


@pytest.mark.parametrize(
    ("read", "complete"),
    [
        (READ + REST, True),
        (READ[1:] + REST, False),
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
    assert is_complete(evaluation, requested_records(run, tmp_path)) is complete


def test_what_another_rule_measured_is_left_out(tmp_path) -> None:
    others = [{"stride": 64}, {"data": "y"}, {"window": 300}, {"tokens": 8191}]
    found = scores(
        tmp_path,
        sliding(10.0),
        *(sliding(90.0, **other) for other in others),
        *segments(1.0, 1.0, 9.0),  # of which two are asked for
        *segments(9.0, data="y"),
        *segments(9.0, edges=(1, 512)),
        *trials(40, 60),  # of which fifty are asked for
        *trials(50, 50, seed=1),
        *trials(50, 50, length=300),
        *(sliding(2.0, window=2048, step=step) for step in (10, 30)),
        **{"evaluation.eval_steps": [10, 20]},
    )
    assert list(found.nll) == [("x", 512)]
    assert found.steps == {10: [pytest.approx(0.693147, rel=1e-5)]}
    assert found.perplexity("x", 512) == (pytest.approx(10.0), 0.0)
    assert found.by_position("x", 2048, 0, 2048).mean == pytest.approx(1.0)
    assert found.hits == {512: [(40, 50)]}
    assert found.answers == {512: [{n: n < 40 for n in range(50)}]}


@pytest.mark.parametrize(
    ("rows", "seeds", "partial"),
    [
        (
            {"pose": [sliding(10.0, document=d) for d in "ab"], "full_length": [sliding(10.0)]},
            {"pose": {"sliding"}, "full_length": set()},
            ["full_length"],
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
        write(tmp_path, run, *rows[run.row])
    table, left = collect(runs, tmp_path)
    assert {label: set(row.seeds) for label, row in table["yarn, 8x"].items()} == seeds
    assert [run.row for run in left["yarn, 8x"]] == partial


def test_rows_are_compared_over_the_whole_seeds_that_all_have(tmp_path) -> None:
    runs = planned(["pose", "no_skip"], seeds=(0, 1, 2))
    for run in runs:
        records = [sliding(10.0), sliding(11.0, window=256)]
        if run.row == "pose":
            write(tmp_path, run, *records[: 1 if run.recipe.seed == 2 else 2])  # a kill left the last in part
        elif run.recipe.seed == 1:
            write(tmp_path, run, *records)
    rows, partial = collect(runs, tmp_path)
    assert {label: row.seeds["sliding"] for label, row in rows["yarn, 8x"].items()} == {"pose": [1], "no_skip": [1]}
    assert [run.recipe.seed for run in partial["yarn, 8x"]] == [2]
