"""Whether an arm is complete is decided from its records, without its model."""

from types import SimpleNamespace

import pytest

from reproduction.exhibits import EXHIBITS
from reproduction.measured import asked_records, is_complete
from reproduction.runs import plan_runs
from reproduction.scales import SCALES
from skipwise.evaluation.specification import specification_of
from skipwise.results.records import append_record
from tests.reproduced import pooled, segments, sliding, trials

ASKED = {
    "evaluation.source": ["x"], "evaluation.documents": 2, "evaluation.windows": [256, 512], "evaluation.segments": 2,
    "evaluation.prompt_lengths": [512], "evaluation.prompt_trials": 3,
}  # fmt: skip


@pytest.fixture
def arm(tmp_path):
    runs = plan_runs(EXHIBITS["passkey"], SCALES["nano"], seeds=[0], changes=ASKED)
    run = next(run for run in runs if (run.setting, run.variant) == ("yarn, 8x", "pose"))
    run.folder(tmp_path).mkdir(parents=True)
    documents = [SimpleNamespace(tokens=range(901))] * 2
    text = SimpleNamespace(source="x", documents=documents, windows=[256, 512], segments={2048: ["a", "b"], 4096: []})
    asked = specification_of(run.recipe, 256, 2048, "float32")
    return run, SimpleNamespace(specification=asked, texts=[text], recipe=run.recipe)


NOW = [sliding(9.0, window=w, document=d, tokens=900) for w in (256, 512) for d in "ab"]
BEFORE = [
    pooled(9.0, documents=2, window=w, tokens=1800) for w in (256, 512)
]  # as published before documents had records of their own
REST = [*segments(1.0, 2.0), *trials(2, 3)]


@pytest.mark.parametrize("read", [NOW, BEFORE])
def test_an_arm_is_complete_when_every_document_segment_and_prompt_is_there(tmp_path, arm, read) -> None:
    run, evaluation = arm
    path = run.folder(tmp_path) / "results.jsonl"
    append_record(path, *read[1:], *REST)
    assert not is_complete(evaluation, asked_records(run, tmp_path))
    append_record(path, read[0])
    assert is_complete(evaluation, asked_records(run, tmp_path))
    evaluation.recipe = SimpleNamespace(evaluation=run.recipe.evaluation, measured_steps=[10])
    assert not is_complete(evaluation, asked_records(run, tmp_path))


def test_an_arm_that_read_less_of_each_document_is_not_complete(tmp_path, arm) -> None:
    run, evaluation = arm
    short = [sliding(9.0, window=w, document=d, tokens=899) for w in (256, 512) for d in "ab"]
    append_record(run.folder(tmp_path) / "results.jsonl", *short, *REST)
    assert not is_complete(evaluation, asked_records(run, tmp_path))


@pytest.mark.parametrize("lost", range(len(REST)))
def test_an_arm_that_lacks_a_segment_or_a_prompt_is_not_complete(tmp_path, arm, lost) -> None:
    run, evaluation = arm
    append_record(run.folder(tmp_path) / "results.jsonl", *NOW, *(r for i, r in enumerate(REST) if i != lost))
    assert not is_complete(evaluation, asked_records(run, tmp_path))
