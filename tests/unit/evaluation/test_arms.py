"""What a run measures of its arms and of its steps; what could not be measured is refused before training."""

import io
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from skipwise.data.store import split_by_name
from skipwise.data.tokenising import tokenise
from skipwise.errors import DataError, EvaluationError, RecipeError
from skipwise.evaluation.arms import RunEvaluation, plan_evaluation
from skipwise.evaluation.forecast import batches_of
from skipwise.evaluation.runner import answered
from skipwise.model.config import load_config
from skipwise.model.extension import extension_of
from skipwise.model.loading import load_model, load_tokenizer
from skipwise.model.origin import Origin
from skipwise.recipes.loading import load_recipe
from skipwise.results.records import OTHER_TEXT
from tests.tiny import checkpoint, corpus, llama

QUIET = Console(file=io.StringIO())
BEST = {"evaluation.keep": "best", "evaluation.steps": [1], "evaluation.segments": 3, "target": 512}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arms")
    checkpoint(folder / "model", window=64)
    corpus(folder / "text", documents=24, words=200)
    return folder


def planned(files, console: Console = QUIET, **changes) -> RunEvaluation:
    settings = {
        "model": str(files / "model"),
        "target": 128,
        "data.source": str(files / "text"),
        "data.cache": str(files / "cache"),
        "data.held_out": 0.3,
        "training.max_steps": 2,
        "evaluation.prompt_trials": 0,
        "evaluation.documents": 2,
        "evaluation.other": False,
    }
    recipe = load_recipe(None, settings | changes)
    tokenizer = load_tokenizer(recipe.model)
    extension = extension_of(load_config(recipe.model), recipe)
    store = tokenise(recipe.data, tokenizer, QUIET)
    train, _ = split_by_name(store, recipe.data.held_out)
    origin = Origin(recipe.model, extension.rope.original_length, recipe.data, store.digests[train])
    return plan_evaluation(recipe, extension, tokenizer, store, origin, "float32", console)


def test_a_runs_facts_name_tasks_as_its_records_do(files) -> None:
    asked = {
        "evaluation.tasks": ["passkey", "ruler:vt"],
        "evaluation.prompt_trials": 1,
        "evaluation.prompt_lengths": [1024],
        "target": 1024,
    }
    assert planned(files, **asked).facts["tasks"] == ["passkey", "vt"]


def test_the_forecast_counts_what_is_measured_during_training(files) -> None:
    requests = [request for batch in batches_of(planned(files, **BEST)) for request in batch.requests]
    assert {request.step for request in requests} == {None, 1, 2}


def asked(evaluation: RunEvaluation, arm) -> list:
    model = evaluation.model(arm, files_of(evaluation))
    return [request for batch in evaluation.batches(model) for request in batch.requests]


def files_of(evaluation: RunEvaluation):
    from pathlib import Path

    return Path(evaluation.recipe.model)  # stands for the trained model


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({}, False),
        ({"evaluation.windows": [64, 256]}, True),
        ({"evaluation.prompt_lengths": [420], "evaluation.prompt_trials": 1}, True),
    ],
)
def test_lengths_beyond_the_target_are_warned_of_before_training(files, changes, warned) -> None:
    planned(files, console := Console(file=io.StringIO(), width=500), **changes)
    said = "the extended model was made for 128 tokens and is expected to fail beyond" in console.file.getvalue()
    assert said is warned


def test_every_arm_reads_every_window_and_answers_every_prompt(files) -> None:
    evaluation = planned(
        files, **{"evaluation.prompt_trials": 3, "evaluation.prompt_lengths": [420], "positions.scheme": "cream"}
    )
    found = {arm: asked(evaluation, arm) for arm in ("original", "pi-only", "trained")}
    for arm, label in (("original", "original"), ("pi-only", "pi-only"), ("trained", "skipwise-cream")):
        readings = [(r.arm, r.window) for r in found[arm] if r.kind == "reading"]
        assert readings == [(label, w) for w in (64, 128) for _ in range(2)]
        assert [r.trial for r in found[arm] if r.kind == "trial"] == [0, 1, 2]
    assert len({r.digest for r in found["original"]} & {r.digest for r in found["pi-only"]}) == 0


def test_every_task_is_asked_at_every_length(files) -> None:
    tasks = {"evaluation.tasks": ["passkey", "lines"], "evaluation.prompt_lengths": [420, 500]}
    found = asked(planned(files, **tasks, **{"evaluation.prompt_trials": 1}), "trained")
    prompts = [(r.task, r.length) for r in found if r.kind == "trial"]
    assert sorted(prompts) == [(task, length) for task in ("lines", "passkey") for length in (420, 500)]
    with pytest.raises(RecipeError, match=r"task 'line' is unknown \(did you mean lines\?\)"):
        planned(files, **{"evaluation.tasks": ["line"], "evaluation.prompt_trials": 1})


def test_the_original_also_reads_its_own_window(files) -> None:
    evaluation = planned(files, **{"evaluation.windows": [128, 256], "evaluation.stride": 100})
    assert {r.window for r in asked(evaluation, "original")} == {64, 128, 256}
    assert {r.window for r in asked(evaluation, "trained")} == {128, 256}
    model = evaluation.model("original", files_of(evaluation))
    assert answered(lambda: llama(64), evaluation.batches(model), None, QUIET)  # a stride for each of them


def test_documents_are_held_out_and_twice_as_long_as_the_longest_window(files) -> None:
    evaluation = planned(files)
    [names] = evaluation.documents.values()
    assert len(names) == 2
    assert {r.tokens + 1 for r in asked(evaluation, "trained")} == {256}
    limited = planned(files, **{"evaluation.tokens_per_document": 200})
    assert {r.tokens + 1 for r in asked(limited, "trained")} == {200}
    assert set(evaluation.fingerprints) == {f"evaluation text {files / 'text'}"}


def test_segments_are_read_where_the_recipe_asks_for_them(files) -> None:
    evaluation = planned(files, **{"evaluation.segment_lengths": [128], "evaluation.segments": 5})
    segments = [r for r in asked(evaluation, "original") if r.mode == "segment"]
    assert len(segments) == 5
    assert {(r.window, r.edges[-1], r.step) for r in segments} == {(128, 128, None)}


def test_other_text_is_read_inside_the_original_window_by_original_and_trained(files) -> None:
    evaluation = planned(files, **{"evaluation.other": True})
    found = {
        arm: [r for r in asked(evaluation, arm) if r.data == OTHER_TEXT] for arm in ("original", "trained", "pi-only")
    }
    assert found["pi-only"] == []
    for requests in (found["original"], found["trained"]):
        assert Counter(r.document for r in requests) == {"prose": 32, "mathematics": 32, "code": 32}
        assert {(r.mode, r.window, r.edges[-1], r.step) for r in requests} == {("segment", 64, 64, None)}
    assert [(r.document, r.begin) for r in found["original"]] == [(r.document, r.begin) for r in found["trained"]]
    assert OTHER_TEXT not in evaluation.documents


@pytest.mark.parametrize(
    ("changes", "steps"),
    [({}, []), ({"evaluation.steps": [2, 1]}, [2, 1]), (BEST, [1, 2])],
    ids=["none", "asked for", "and the last one where the best is kept"],
)
def test_which_steps_are_measured(files, changes, steps) -> None:
    assert planned(files, **changes).steps == steps


def test_a_step_reads_the_longest_window_and_the_far_segments(files) -> None:
    evaluation = planned(files, **BEST)
    requests = [r for batch in evaluation.step_batches(2) for r in batch.requests]
    assert {(r.arm, r.step) for r in requests} == {("skipwise", 2)}
    assert {r.window for r in requests if r.mode == "sliding"} == {512}
    assert [(r.window, len(evaluation.far)) for r in requests if r.mode == "segment"] == [(512, 3)] * 3
    other = {r.key for batch in evaluation.step_batches(1) for r in batch.requests}
    assert not other & {r.key for r in requests}
    without = planned(files, **{"evaluation.steps": [1]})
    assert {r.mode for batch in without.step_batches(1) for r in batch.requests} == {"sliding"}


def measured(evaluation: RunEvaluation, step: int, model) -> list:
    return [record for batch in evaluation.step_batches(step) for record in batch.answers(model)]


@pytest.mark.parametrize("window", [64, 66], ids=["a multiple of four", "no multiple of four"])
def test_the_far_loss_is_the_mean_beyond_the_original_window(files, tmp_path, window) -> None:
    base = checkpoint(tmp_path / "model", window=window)
    evaluation = planned(files, **BEST | {"model": str(base), "target": 2 * window})
    model = load_model(str(base))
    rows = np.stack([segment.tokens for segment in evaluation.far])
    with torch.inference_mode():
        likelihoods = torch.log_softmax(model(torch.from_numpy(rows)).logits.double(), -1)
    far = [-likelihoods[n, t - 1, rows[n, t]].item() for n in range(3) for t in range(window, 2 * window)]
    losses = evaluation.far_losses(measured(evaluation, 2, model))
    assert losses == {2: pytest.approx(np.mean(far), rel=1e-5)}


def test_records_that_a_kill_cut_or_doubled_change_no_far_loss(files) -> None:
    evaluation = planned(files, **BEST)
    records = measured(evaluation, 1, llama(64))
    whole = evaluation.far_losses(records)
    segments = [r for r in records if r.mode == "segment"]
    assert evaluation.far_losses([*records, *segments[:1]]) == whole
    assert evaluation.far_losses(segments[:-1]) == {}
    assert evaluation.far_losses([replace(r, step=None) for r in segments]) == {}


@pytest.mark.parametrize("mode", ["sliding", "segment"])
def test_a_step_whose_loss_is_not_a_number_is_refused(files, mode) -> None:
    model = llama(64)
    torch.nn.init.constant_(model.lm_head.weight, math.nan)
    evaluation = planned(files, **BEST)
    [batch, *_] = [b for b in evaluation.step_batches(1) if b.requests[0].mode == mode]
    with pytest.raises(EvaluationError, match="logits are not finite"):
        list(batch.answers(model))


def test_keeping_the_best_step_needs_text_as_long_as_the_target(files) -> None:
    with pytest.raises(
        DataError, match=r"on documents of the target, 2,048 tokens; the longest of .*: give longer text"
    ):
        planned(files, **BEST | {"target": "2k"})


def test_a_length_that_is_too_short_for_a_task_is_left_out_and_said(files) -> None:
    lengths, said = [10, 512], Console(file=io.StringIO(), width=400)
    asked = {"evaluation.prompt_trials": 1, "evaluation.prompt_lengths": lengths, "target": 512}
    evaluation = planned(files, said, **asked)
    assert "10 tokens are too few for prompts of passkey (from " in said.file.getvalue()
    model = evaluation.model("original", files / "model")
    prompts = [request for batch in evaluation.batches(model) for request in batch.requests if request.kind == "trial"]
    assert [request.length for request in prompts] == [512]


def test_a_passkey_length_that_is_too_short_is_refused_before_training(files) -> None:
    with pytest.raises(DataError, match="10 tokens are too few for prompts of passkey"):
        planned(files, **{"evaluation.prompt_trials": 1, "evaluation.prompt_lengths": [10]})
