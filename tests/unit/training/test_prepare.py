"""What a recipe comes to before training: every setting arrives, and what cannot be is refused."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from skipwise.data.documents import is_held_out
from skipwise.errors import ModelError, RecipeError
from skipwise.evaluation.arms import evaluation_windows
from skipwise.recipes.schema import Evaluation, load_recipe
from skipwise.training.prepare import Job, prepare
from tests.tiny import checkpoint, corpus


def prepared(folder: Path, model: Path | None = None, **changes) -> Job:
    settings = {
        "model": str(model or checkpoint(folder / "model", window=64)),
        "target": 512,
        "data.source": str(corpus(folder / "text", documents=24, words=200)),
        "data.cache": str(folder / "cache"),
        "data.held_out": 0.3,
        "training.max_steps": 2,
        "training.batch_size": 3,
        "training.precision": "float32",
    }
    return prepare(load_recipe(None, {**settings, **changes}), Console(file=io.StringIO()))


def test_every_setting_reaches_the_job(tmp_path) -> None:
    job = prepared(tmp_path, **{"seed": 7, "data.train_jumps": True, "interpolation": "linear"})
    data = job.dataset()
    assert (data.seed, data.train_jumps, len(data)) == (7, True, 6)
    assert job.extension.interpolation == "linear"
    assert (tmp_path / "cache").is_dir()
    held = [is_held_out(name, 0.3) for name in job.store.names]
    assert job.held_out.tolist() == np.flatnonzero(held).tolist()
    assert not set(job.train) & set(job.held_out)


def test_the_full_scheme_takes_documents_of_the_target_length(tmp_path) -> None:
    job = prepared(tmp_path, **{"target": 1100, "positions.scheme": "full"})
    assert job.shortest == 1100
    assert job.store.lengths[job.train].min() >= 1100
    assert job.dropped > 0


def test_a_train_length_above_the_target_is_refused(tmp_path) -> None:
    with pytest.raises(RecipeError, match="train_length 600 must not exceed the target 512; lower it"):
        prepared(tmp_path, train_length=600)


def test_a_scaled_model_is_replaced_from_the_length_given(tmp_path) -> None:
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    model = checkpoint(tmp_path / "model", window=64, rope_parameters=rope)
    with pytest.raises(ModelError, match="already linear x2"):
        prepared(tmp_path, model)
    job = prepared(tmp_path, model, existing_rope="replace", original_length=64)
    assert job.extension.rope.original_length == 64


def test_windows_default_to_doublings_up_to_the_target() -> None:
    assert evaluation_windows(Evaluation(), 256, 2048) == [256, 512, 1024, 2048]
    assert evaluation_windows(Evaluation(), 256, 1000) == [256, 512, 1000]
    assert evaluation_windows(Evaluation(windows=[512, 256, 512]), 256, 2048) == [256, 512]


def test_steps_of_a_model_in_shares_are_neither_measured_nor_kept(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("skipwise.training.processes.launched", lambda: 3)
    monkeypatch.setattr(
        "skipwise.training.prepare.training_arguments", lambda *args: None
    )  # would see one process
    monkeypatch.setattr("skipwise.training.processes.engine", lambda: "zero3")
    with pytest.raises(RecipeError, match=r"leave it out, with evaluation\.keep, or take"):
        prepared(tmp_path, **{"evaluation.keep": "best", "evaluation.steps": [1]})
