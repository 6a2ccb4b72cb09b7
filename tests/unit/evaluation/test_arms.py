"""What is measured while training goes on is measured once, and an arm is done when all of it is there."""

import io
import math

import pytest
from rich.console import Console
from tests.unit.test_job import prepared

from skipwise.errors import DataError, EvaluationError
from skipwise.evaluation.arms import EvaluationPlan, evaluate, evaluate_step, plan_evaluation
from skipwise.evaluation.perplexity import Score
from skipwise.model.loading import load_model
from skipwise.results.records import StepRecord, read_records
from skipwise.results.run_folder import RunFolder
from skipwise.training.prepare import Job

QUIET = Console(file=io.StringIO())
BEST = {
    "evaluation.keep": "best",
    "evaluation.steps": [1],
    "evaluation.segments": 3,
    "evaluation.passkey_trials": 0,
}


@pytest.fixture
def planned(tmp_path) -> tuple[Job, EvaluationPlan, RunFolder]:
    job = prepared(
        tmp_path,
        **{
            "target": 128,
            "evaluation.arms": ["original"],
            "evaluation.steps": [1, 2],
            "evaluation.passkey_trials": 0,
            "evaluation.documents": 1,
        },
    )
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    return job, plan_evaluation(job, QUIET), run


def measure(planned: tuple[Job, EvaluationPlan, RunFolder], *steps: int) -> list[int]:
    job, plan, run = planned
    for step in steps:
        evaluate_step(job, plan, run, load_model(job.recipe.model), step)
    return [record.step for record in read_records(run.results) if isinstance(record, StepRecord)]


def test_a_step_is_measured_once_and_only_where_asked_for(planned) -> None:
    assert measure(planned, 1, 1, 3, 2, 1) == [1, 2]


def test_an_arm_is_done_when_every_step_is_there_too(planned) -> None:
    job, plan, run = planned
    evaluate(job, plan, run, QUIET)
    assert not plan.done(run)
    measure(planned, 1)
    assert not plan.done(run)
    measure(planned, 2)
    assert plan.done(run)


@pytest.mark.parametrize("name", ["far_loss", "sliding_perplexity"])
def test_a_step_without_a_number_ends_the_run_and_leaves_no_record(tmp_path, monkeypatch, name) -> None:
    job, run = prepared(tmp_path, **BEST), RunFolder(tmp_path / "run")
    run.path.mkdir()
    value = math.nan if name == "far_loss" else Score(1, 1, math.nan, 0.0)
    monkeypatch.setattr(f"skipwise.evaluation.arms.{name}", lambda *args, **options: value)
    with pytest.raises(EvaluationError, match="logits are not finite measuring step 1"):
        measure((job, plan_evaluation(job, QUIET), run), 1)
    assert not run.results.exists()
    assert not run.checkpoints.exists()


def test_the_last_step_takes_part_where_the_best_is_kept(tmp_path) -> None:
    plan = plan_evaluation(prepared(tmp_path, **BEST), QUIET)
    assert plan.steps == [1, 2]
    assert plan.far.shape == (3, 512)


def test_the_best_step_needs_text_as_long_as_the_target(tmp_path) -> None:
    job = prepared(tmp_path, **BEST | {"target": "2k"})
    longest = max(job.held_out, key=lambda document: job.store.lengths[document])
    found = rf"{job.store.names[longest]}, has {job.store.lengths[longest]:,}: give longer text"
    with pytest.raises(DataError, match=rf"of the target, 2,048 tokens; the longest of .*, {found}"):
        plan_evaluation(job, QUIET)
