"""Models of an evaluation and arms of a run: what each measures, and how an evaluation continues."""

from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from skipwise.data.store import split_by_name, tokenise
from skipwise.errors import DataError, RunError
from skipwise.evaluation.evaluate import RunEvaluation, evaluate, plan_evaluation
from skipwise.evaluation.specification import Specification, find_models
from skipwise.model.config import Origin, load_config
from skipwise.model.extension import extension_of
from skipwise.model.loading import load_model, load_tokenizer
from skipwise.recipes.loading import load_recipe
from skipwise.results.records import read_records
from tests.tiny import checkpoint, corpus

QUIET = Console(quiet=True)
BEST = {"evaluation.save_best": True, "evaluation.eval_steps": [1], "target": 512}
ASKED = Specification(documents=0, windows=[512], stride=256, tasks=["passkey"], prompt_lengths=[420], num_prompts=4)


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
        "data.held_out": 0.3,
        "training.max_steps": 2,
        "evaluation.num_prompts": 0,
        "evaluation.documents": 2,
        "evaluation.other_texts": False,
    }
    recipe = load_recipe(None, settings | changes)
    tokenizer = load_tokenizer(recipe.model)
    extension = extension_of(load_config(recipe.model), recipe)
    store = tokenise(recipe.data, tokenizer, QUIET)
    train, _ = split_by_name(store, recipe.data.held_out)
    origin = Origin(recipe.model, extension.rope.original_length, recipe.data, store.digests[train])
    return plan_evaluation(recipe, extension, tokenizer, store, origin, "float32", QUIET)


def keys(path: Path) -> list[str]:
    return [record.key for record in read_records(path)]


def test_a_killed_evaluation_measures_the_rest(tmp_path) -> None:
    models = find_models([str(checkpoint(tmp_path / "m", window=512))], base="")
    results = evaluate(models, ASKED, out=tmp_path / "e", console=QUIET).results
    whole = set(keys(results))
    results.write_bytes(results.read_bytes()[:-30])
    evaluate(models, ASKED, out=tmp_path / "e", console=QUIET)
    assert set(keys(results)) == whole
    with pytest.raises(RunError):
        evaluate(models, ASKED.model_copy(update={"seed": 1}), out=tmp_path / "e", console=QUIET)


@pytest.mark.parametrize("window", [64, 66])
def test_the_far_loss_is_the_mean_beyond_the_original_window(files, tmp_path, window) -> None:
    base = checkpoint(tmp_path / "model", window=window)
    evaluation = planned(files, **BEST | {"model": str(base), "target": 2 * window})
    model = load_model(str(base))
    rows = np.stack([segment.tokens for segment in evaluation.texts[0].far])
    with torch.inference_mode():
        likelihoods = torch.log_softmax(model(torch.from_numpy(rows)).logits.double(), -1)
    far = [-likelihoods[n, t - 1, rows[n, t]].item() for n in range(len(rows)) for t in range(window, 2 * window)]
    records = [record for batch in evaluation.step_batches(2) for record in batch.answers(model)]
    segments = [record for record in records if record.mode == "segment"]
    assert evaluation.far_losses([*records, *segments[:1]]) == {2: pytest.approx(np.mean(far), rel=1e-5)}
    assert evaluation.far_losses(segments[:-1]) == {}  # cut off


def test_settings_that_cannot_be_measured_are_refused_before_training(files) -> None:
    with pytest.raises(DataError):  # no document is as long
        planned(files, **BEST | {"target": "2k"})
