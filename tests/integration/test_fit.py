"""``skipwise fit`` by the real command on real files, and what uses its result."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from skipwise.fit.result import read_fit
from skipwise.method.interpolation import Rope, RopeSettings, frequencies
from skipwise.model.config import read_origin
from skipwise.model.loading import load_model
from skipwise.recipes.loading import load_recipe
from tests.command_line import refused, run
from tests.tiny import checkpoint, corpus

pytestmark = pytest.mark.usefixtures("frozen_imports", "undrawn")
SETTINGS = "data.held_out=0.3 training.max_steps=2 training.global_batch_size=2 evaluation.documents=1"
SETTINGS += " evaluation.num_prompts=0 evaluation.models=[trained] evaluation.other_texts=false"
SMALL = [word for setting in SETTINGS.split() for word in ("--set", setting)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("model"), window=256)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("text"), documents=6, words=600)


@pytest.fixture(scope="module")
def fitted(model: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fits") / "fit"
    with pytest.MonkeyPatch.context() as patch:
        run(patch, "fit", model, "--target", "1k", "--data", text, "--minutes", "5", "--out", out)
    return out


def test_a_fit_leaves_its_record_a_page_and_a_stock_checkpoint(model: Path, fitted: Path) -> None:
    found, about = read_fit(fitted / "fit.json"), json.loads((fitted / "fit.json").read_text())
    assert found.finished
    roles = {one.role for one in found.candidates}
    assert {"YaRN as published", "power, no search", "NTK", "fitted", "YaRN, fitted"} <= roles
    page = (fitted / "report.html").read_text()
    assert "rope_parameters" in page
    assert (fitted / "figures" / "loss-by-place.png").exists()
    loaded = AutoModelForCausalLM.from_pretrained(fitted / "model")
    best = about["best"]
    wanted, attention = frequencies(best["interpolation"], Rope(10_000.0, 16, 256), 4.0, RopeSettings(**best["rope"]))
    np.testing.assert_allclose(loaded.model.rotary_emb.inv_freq, wanted, rtol=1e-6)
    assert loaded.model.rotary_emb.attention_scaling == pytest.approx(attention)
    for name, weight in load_model(str(model)).state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name])
    assert read_origin(str(fitted / "model")).target_length == 1024


def test_a_stopped_fit_goes_on_to_the_same_result(
    model: Path, text: Path, fitted: Path, monkeypatch, tmp_path: Path
) -> None:
    about = read_fit(fitted / "fit.json")
    out = tmp_path / "fit"
    out.mkdir()
    replace(about, finished=False, candidates=about.candidates[:6]).write(out)
    run(monkeypatch, "fit", model, "--target", "1k", "--data", text, "--minutes", "5", "--out", out)
    again = read_fit(out / "fit.json")
    assert again.candidates[:6] == about.candidates[:6]
    assert again.finished


def test_extend_trains_under_a_fit_and_extends_its_own_model_again(
    model: Path, text: Path, fitted: Path, monkeypatch, capsys, tmp_path: Path
) -> None:
    small = ["--data", text, "--method", "paper", *SMALL]
    small += ["--set", "training.precision=float32", "--set", "evaluation.windows=[256]"]
    out, fit = tmp_path / "run", fitted / "fit.json"
    run(monkeypatch, "extend", model, "--target", "1k", "--interpolation", fitted, *small, "--out", out)
    best = read_fit(fit).best.extension
    recipe = (out / "recipe.yaml").read_text()
    assert f"interpolation: {best.interpolation}" in recipe
    assert (out / "fit.json").read_text() == fit.read_text()
    for more in ([], ["--dry-run"]):
        words = ["extend", model, "--target", "2k", "--interpolation", fit, *small, "--out", tmp_path / "no", *more]
        assert "is a fit of" in refused(monkeypatch, capsys, *words)
    other = checkpoint(tmp_path / "other", window=256, hidden_size=64)
    assert "is a fit of" in refused(
        monkeypatch, capsys, "extend", other, "--target", "1k", "--interpolation", fit, *small, "--out", tmp_path / "no"
    )
    # A second step: factors are relative to the base, also where the first changed theta.
    for interpolation, first in (("yarn", out), ("yarn", tmp_path / "ntk")):
        if not first.exists():
            run(monkeypatch, "extend", model, "--target", "1k", "--interpolation", "ntk", *small, "--out", first)
        second = tmp_path / f"second-{first.name}"
        run(monkeypatch, "extend", first, "--target", "2k", "--interpolation", interpolation, *small, "--out", second)
        rope = json.loads((second / "model" / "config.json").read_text())["rope_parameters"]
        assert (rope["factor"], rope["original_max_position_embeddings"], rope["rope_theta"]) == (8.0, 256, 10_000.0)


def test_extend_fits_by_itself_from_eight_times_the_window_on(
    model: Path, text: Path, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    short = corpus(tmp_path / "brief", documents=6, words=30)
    small = [*SMALL, "--set", "train_length=64", "--set", "evaluation.windows=[64]"]

    def interpolation(name: str, target: str, data: Path, *more: str) -> str:
        out = tmp_path / name
        run(monkeypatch, "extend", model, "--target", target, "--data", data, *small, "--out", out, *more)
        return load_recipe(out / "recipe.yaml").interpolation

    fitted = interpolation("far", "2k", text)
    found = read_fit(tmp_path / "far" / "fit.json")
    assert (found.target, found.best.extension.interpolation) == (2048, fitted)
    shutil.rmtree(tmp_path / "cache" / "fits")
    assert interpolation("far", "2k", text, "--resume") == fitted
    assert interpolation("near", "1k", text) == "yarn"
    assert interpolation("short", "2k", short) == "yarn"
    assert not (tmp_path / "near" / "fit.json").exists()
