"""What is measured while training goes on is measured once, and an arm is done when all of it is there."""

import io

import pytest
from rich.console import Console

from skipwise.arms import EvaluationPlan, evaluate, evaluate_step, plan_evaluation
from skipwise.job import Job
from skipwise.model.loading import load_model
from skipwise.results import StepRecord, read_records
from skipwise.run_folder import RunFolder
from tests.unit.test_job import prepared

QUIET = Console(file=io.StringIO())


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
