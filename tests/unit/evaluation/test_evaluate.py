"""Models of an evaluation and arms of a run: what each measures, and how an evaluation continues."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from skipwise.data.store import split_by_name
from skipwise.data.tokenising import tokenise
from skipwise.errors import DataError, RecipeError, RunError
from skipwise.evaluation.evaluate import RunEvaluation, evaluate, plan_evaluation, plan_models
from skipwise.evaluation.measure import answered
from skipwise.evaluation.specification import EvaluatedModel, Specification, find_models
from skipwise.model.config import load_config
from skipwise.model.extension import extension_of
from skipwise.model.loading import load_model, load_tokenizer
from skipwise.model.origin import Origin
from skipwise.recipes.loading import load_recipe
from skipwise.recipes.schema import Data
from skipwise.results.records import OTHER_TEXT, read_records
from tests.tiny import checkpoint, corpus, llama

QUIET = Console(quiet=True)
BEST = {"evaluation.keep": "best", "evaluation.steps": [1], "evaluation.segments": 3, "target": 512}
ASKED = Specification(documents=0, windows=[512], stride=256, tasks=["passkey"], prompt_lengths=[420], prompt_trials=4)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arms")
    checkpoint(folder / "model", window=64)
    corpus(folder / "text", documents=24, words=200)
    return folder


def planned(files, **changes) -> RunEvaluation:
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
    return plan_evaluation(recipe, extension, tokenizer, store, origin, "float32", QUIET)


def asked(evaluation: RunEvaluation, arm) -> list:
    model = evaluation.model(arm, Path(evaluation.recipe.model))  # stands for the trained model
    return [request for batch in evaluation.batches(model) for request in batch.requests]


def keys(path: Path) -> list[str]:
    return [record.key for record in read_records(path)]


def test_a_killed_evaluation_measures_the_rest(tmp_path) -> None:
    models = find_models([str(checkpoint(tmp_path / "m", window=512))], base="")
    results = evaluate(models, ASKED, out=tmp_path / "e", console=QUIET).results
    whole = set(keys(results))
    results.write_bytes(results.read_bytes()[:-30])
    evaluate(models, ASKED, out=tmp_path / "e", console=QUIET)
    assert set(keys(results)) == whole
    with pytest.raises(RunError, match="seed"):
        evaluate(models, ASKED.model_copy(update={"seed": 1}), out=tmp_path / "e", console=QUIET)


def test_records_of_shards_are_taken_over(tmp_path, monkeypatch) -> None:
    models = find_models([str(checkpoint(tmp_path / "m", window=512))], base="")
    parts = [evaluate(models, ASKED, shard=(n, 2), out=tmp_path / str(n), console=QUIET) for n in (1, 2)]
    other = ASKED.model_copy(update={"seed": 1})
    parts.append(evaluate(models, other, out=tmp_path / "other", console=QUIET))
    monkeypatch.setattr(EvaluatedModel, "load", lambda *_: pytest.fail("measured again"))
    whole = evaluate(models, ASKED, earlier=[part.path for part in parts], out=tmp_path / "e", console=QUIET)
    assert sorted(keys(whole.results)) == sorted(keys(parts[0].results) + keys(parts[1].results))
    with pytest.raises(RunError):
        evaluate(models, ASKED, earlier=[tmp_path], out=tmp_path / "f", console=QUIET)


def test_a_base_of_long_windows_reads_other_text_once(tmp_path, files) -> None:
    base = str(checkpoint(tmp_path / "base", window=64))
    ours = [EvaluatedModel(str(n), base, original=n, target=2 * n, base="b") for n in (2048, 4096)]
    control = EvaluatedModel("b", base, original=64, target=64, control=True)
    text = Data(source=str(files / "text"), cache=str(tmp_path / "cache"))
    rule = Specification(texts=[text], windows=[64], stride=32, documents=1)
    batches = plan_models([*ours, control], rule, QUIET).batches["b"]
    other = [r.key for batch in batches for r in batch.requests if r.data == OTHER_TEXT]
    assert len(other) == len(set(other)) == 24


def test_all_batches_include_those_during_training(files) -> None:
    requests = [request for batch in planned(files, **BEST).all_batches for request in batch.requests]
    assert {request.step for request in requests} == {None, 1, 2}


def test_every_arm_reads_every_window_and_answers_every_prompt(files) -> None:
    prompts = {"evaluation.tasks": ["passkey", "lines"], "evaluation.prompt_lengths": [420, 500]}
    evaluation = planned(files, **prompts, **{"evaluation.prompt_trials": 2, "positions.scheme": "cream"})
    found = {arm: asked(evaluation, arm) for arm in ("original", "pi-only", "trained")}
    for arm, label in (("original", "original"), ("pi-only", "pi-only"), ("trained", "skipwise-cream")):
        readings = [(r.arm, r.window) for r in found[arm] if r.kind == "reading"]
        assert readings == [(label, w) for w in (64, 128) for _ in range(2)]
        assert Counter((r.task, r.length) for r in found[arm] if r.kind == "trial") == {
            (task, length): 2 for task in ("passkey", "lines") for length in (420, 500)
        }
    assert not {r.digest for r in found["original"]} & {r.digest for r in found["pi-only"]}


def test_the_original_also_reads_its_own_window(files) -> None:
    evaluation = planned(files, **{"evaluation.windows": [128, 256], "evaluation.stride": 100})
    assert {r.window for r in asked(evaluation, "original")} == {64, 128, 256}
    assert {r.window for r in asked(evaluation, "trained")} == {128, 256}
    model = evaluation.model("original", Path())
    assert answered(lambda: llama(64), evaluation.batches(model), None, QUIET)  # a stride for each of them


def test_documents_are_held_out_and_twice_as_long_as_the_longest_window(files) -> None:
    evaluation = planned(files)
    assert {r.tokens + 1 for r in asked(evaluation, "trained")} == {256}
    limited = planned(files, **{"evaluation.tokens_per_document": 200})
    assert {r.tokens + 1 for r in asked(limited, "trained")} == {200}
    assert set(evaluation.fingerprints) == {f"evaluation text {files / 'text'}"}


def test_original_and_trained_read_other_text_inside_the_original_window(files) -> None:
    evaluation = planned(files, **{"evaluation.other": True})
    found = {
        arm: [r for r in asked(evaluation, arm) if r.data == OTHER_TEXT] for arm in ("original", "trained", "pi-only")
    }
    assert found["pi-only"] == []
    for requests in (found["original"], found["trained"]):
        assert Counter(r.document for r in requests) == {"prose": 32, "mathematics": 32, "code": 32}
        assert {(r.mode, r.window, r.edges[-1], r.step) for r in requests} == {("segment", 64, 64, None)}
    assert [(r.document, r.begin) for r in found["original"]] == [(r.document, r.begin) for r in found["trained"]]


def test_a_step_reads_the_longest_window_and_the_far_segments(files) -> None:
    evaluation = planned(files, **BEST)
    requests = [r for batch in evaluation.step_batches(2) for r in batch.requests]
    assert {(r.arm, r.step) for r in requests} == {("skipwise", 2)}
    assert {r.window for r in requests if r.mode == "sliding"} == {512}
    assert [(r.window, len(evaluation.far)) for r in requests if r.mode == "segment"] == [(512, 3)] * 3
    assert not {r.key for batch in evaluation.step_batches(1) for r in batch.requests} & {r.key for r in requests}
    without = planned(files, **{"evaluation.steps": [1]})
    assert {r.mode for batch in without.step_batches(1) for r in batch.requests} == {"sliding"}


def measured(evaluation: RunEvaluation, step: int, model) -> list:
    return [record for batch in evaluation.step_batches(step) for record in batch.answers(model)]


@pytest.mark.parametrize("window", [64, 66])
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


def test_cut_off_and_doubled_records_change_no_far_loss(files) -> None:
    evaluation = planned(files, **BEST)
    records = measured(evaluation, 1, llama(64))
    segments = [r for r in records if r.mode == "segment"]
    assert evaluation.far_losses([*records, *segments[:1]]) == evaluation.far_losses(records)
    assert evaluation.far_losses(segments[:-1]) == {}
    assert evaluation.far_losses([replace(r, step=None) for r in segments]) == {}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (BEST | {"target": "2k"}, DataError),  # no document is as long
        ({"evaluation.prompt_trials": 1, "evaluation.prompt_lengths": [10]}, DataError),
        ({"evaluation.tasks": ["line"], "evaluation.prompt_trials": 1}, RecipeError),
    ],
)
def test_settings_that_cannot_be_measured_are_refused_before_training(files, changes, error) -> None:
    with pytest.raises(error):
        planned(files, **changes)
