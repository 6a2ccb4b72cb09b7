from itertools import chain

import pytest

from skipwise.results.records import RulerRecord
from skipwise.results.scores import THRESHOLD, paired, ruler_length, scores_of, shared_tasks
from skipwise.results.statistics import wilson_interval


def answered(arm: str, task: str, length: int, *scores: float, real: bool = True) -> list[RulerRecord]:
    return [
        RulerRecord(arm, task, length, 0, trial, real, "float32", "d", score=score)
        for trial, score in enumerate(scores)
    ]


def model(arm: str, *averages: float, tasks: tuple[str, ...] = ("vt", "cwe")) -> list[RulerRecord]:
    """Averages at 1k, 2k, 4k, ...: of two tasks, one of them 10 points above and one below."""
    records = []
    for number, average in enumerate(averages):
        for task, apart in zip(tasks, (0.1, -0.1), strict=True):
            records += answered(arm, task, 1024 * 2**number, *[average + apart] * 4)
    return records


def test_scores_are_means_of_prompts_and_averages_are_means_of_tasks() -> None:
    [scores] = scores_of([*answered("m", "vt", 512, 1.0, 0.5), *answered("m", "cwe", 512, 0.0, 0.1, real=False)])
    assert scores.score("vt", 512).mean == 0.75
    assert (scores.score("vt", 512).low, scores.score("vt", 512).high) == wilson_interval(1.5, 2)
    assert scores.score("vt", 1024) is scores.score("fwe", 512) is None
    average = scores.average(512, ["vt", "cwe"])
    assert average.mean == pytest.approx(0.4)
    assert (average.low, average.high) == pytest.approx(wilson_interval(1.6, 4))
    assert scores.average(512, ["vt", "cwe", "fwe"]) == average  # of those that were asked
    assert scores.real == {"vt": True, "cwe": False}


def test_a_prompt_that_was_answered_again_counts_once() -> None:
    [scores] = scores_of([*answered("m", "vt", 512, 0.0), *answered("m", "vt", 512, 1.0)])
    assert scores.score("vt", 512).mean == 1.0


def test_averages_are_of_tasks_that_every_length_has() -> None:
    records = [*model("m", 0.9, 0.8), *answered("m", "fwe", 2048, 0.0)]
    assert shared_tasks(scores_of(records)) == ["vt", "cwe"]
    other = [*answered("n", "cwe", 1024, 1.0), *answered("n", "fwe", 1024, 1.0)]
    assert shared_tasks(scores_of([*records, *other])) == ["cwe"]
    assert shared_tasks([]) == []


@pytest.mark.parametrize(
    ("own", "base", "tokens", "needed"),
    [
        ((0.95, 0.9, 0.86), (0.9,), 4096, THRESHOLD),  # all of it
        ((0.95, 0.9, 0.85), (0.9,), 2048, THRESHOLD),  # up to the first length that falls short
        ((0.95, 0.8, 0.9), (0.9,), 1024, THRESHOLD),
        ((0.5, 0.5, 0.4), (0.5,), 2048, 0.5),  # a base below RULER's limit sets its own
        ((0.4, 0.5, 0.5), (0.45,), 0, 0.45),
    ],
)
def test_how_far_a_model_reads_by_rulers_rule(own, base, tokens, needed) -> None:
    ours, theirs = scores_of([*model("m", *own), *model("base", *base)])
    found = ruler_length(ours, theirs, original=1024)
    assert found.tokens == tokens
    assert f"at least {needed:.1%}" in found.told
    assert "the base" in found.told
    assert "By RULER's rule, on some of its tasks" in found.told


def test_without_a_base_the_model_itself_sets_the_limit() -> None:
    [ours] = scores_of(model("m", 0.5, 0.6, 0.4))
    assert ruler_length(ours, None, original=1024).tokens == 2048
    assert "the model itself" in ruler_length(ours, None, original=1024).told
    assert ruler_length(ours, None, original=512) is None  # nothing was asked inside its window
    assert ruler_length(ours, None, original=None) is None


def test_differences_pair_the_same_prompts() -> None:
    ours, theirs = scores_of([*answered("m", "vt", 512, 1.0, 0.5, 1.0), *answered("base", "vt", 512, 0.5, 0.5)])
    length, apart = paired(ours, theirs)
    assert (length, apart.mean) == (512, pytest.approx(0.25))
    [alone] = scores_of(answered("n", "cwe", 512, 1.0))
    assert paired(ours, alone) is None


def test_a_base_that_finds_nothing_sets_no_limit() -> None:
    ours, theirs = scores_of(
        [*answered("m", "vt", 1024, 0.0), *answered("m", "vt", 2048, 0.0), *answered("base", "vt", 1024, 0.0)]
    )
    found = ruler_length(ours, theirs, original=1024)
    assert found.tokens == 0
    assert found.told == "RULER tells nothing of its length: the base scores 0% at 1,024 tokens."


def test_all_thirteen_tasks_on_its_own_texts_are_rulers() -> None:
    tasks = [answered(arm, f"task-{n}", 1024, 1.0) for arm in ("m", "base") for n in range(13)]
    assert ruler_length(*scores_of(chain(*tasks)), original=1024).told.startswith("By RULER it reads 1,024 tokens")
    tasks[0] = answered("m", "task-0", 1024, 1.0, real=False)
    assert "another text" in ruler_length(*scores_of(chain(*tasks)), original=1024).told
