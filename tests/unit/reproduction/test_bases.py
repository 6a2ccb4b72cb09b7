"""What is measured beside the arms: small bases, what a step costs, and closed forms against Monte Carlo."""

import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from reproduction import bases, costs, coverage_check
from reproduction.bases import BASES, base_folder, make_base
from reproduction.coverage_check import coverage_section
from skipwise.data.store import split_by_name
from skipwise.model.extension import plan_extension
from skipwise.recipes.loading import load_recipe
from skipwise.recipes.schema import Data
from skipwise.results.records import read_records
from tests.tiny import checkpoint, corpus

CONSOLE = Console(file=io.StringIO())


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> Data:
    """Text of a few documents, and bases of two steps."""
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(bases, "_TOKENS", 1024)
    whole = bases._settings
    monkeypatch.setattr(bases, "_settings", lambda base: whole(base).model_copy(update={"max_steps": 2}))
    return Data(source=str(corpus(tmp_path / "text", documents=12, words=700)), held_out=0.5)


def test_a_base_is_trained_once_on_what_is_not_held_out(tiny: Data, tmp_path, monkeypatch) -> None:
    folder, seen, train = base_folder("GPT-J", tiny, tmp_path), [], bases.train
    monkeypatch.setattr(bases, "train", lambda *given, **how: (seen.append(given[1]), train(*given, **how)))
    make_base("GPT-J", tiny, tmp_path, CONSOLE)
    config = AutoModelForCausalLM.from_pretrained(folder / "model").config
    assert plan_extension(config, interpolation="yarn").rope.original_length == BASES["GPT-J"].window
    assert AutoTokenizer.from_pretrained(folder / "model")("a").input_ids
    weights = (folder / "model" / "model.safetensors").stat().st_mtime_ns
    make_base("GPT-J", tiny, tmp_path, CONSOLE)
    assert (folder / "model" / "model.safetensors").stat().st_mtime_ns == weights
    [dataset] = seen
    _, held_out = split_by_name(dataset.store, tiny.held_out)
    assert len(held_out)
    assert not set(held_out) & set(dataset.documents)
    for changes in ({"source": "other"}, {"held_out": 0.2}, {"max_train_tokens": 9000}):
        assert base_folder("GPT-J", tiny.model_copy(update=changes), tmp_path) != folder


def test_steps_are_measured_once_and_a_killed_measurement_goes_on(tmp_path, monkeypatch) -> None:
    recipe = load_recipe("nano", {"model": str(checkpoint(tmp_path / "base", 16)), "training.precision": "float32"})
    monkeypatch.setattr(costs, "FACTORS", (2, 8))
    monkeypatch.setattr(costs, "_ROUNDS", {"pose": 3, "full_length": 2})
    monkeypatch.setattr(costs, "in_own_process", lambda function, *args: function(*args))
    found = costs.measure_costs(recipe, 16, tmp_path, CONSOLE)
    rows = [(r.arm, r.target, r.window, len(r.step_seconds)) for r in found]
    assert rows == [("pose", 32, 16, 3), ("pose", 128, 16, 3), ("full_length", 32, 32, 2), ("full_length", 128, 128, 2)]
    assert costs.measure_costs(recipe, 16, tmp_path, CONSOLE) == found == read_records(tmp_path / "costs.jsonl")
    path = tmp_path / "costs.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    assert len(costs.measure_costs(recipe, 16, tmp_path, CONSOLE)) == 4
    assert costs.known_costs(recipe.model_copy(update={"interpolation": "ntk"}), 16, tmp_path) == []


@pytest.mark.parametrize("shift", [0.0, 0.03])
def test_coverage_agrees_with_monte_carlo_and_a_wrong_form_is_found_out(shift, tmp_path, monkeypatch) -> None:
    true = coverage_check.coverage

    def shifted(*rule, samples=None, **scheme):
        curve = true(*rule, samples=samples, **scheme)
        wrong = 0 if samples else shift
        return dataclasses.replace(curve, probability=np.clip(curve.probability - wrong, 0, 1))

    for name, value in (("_SAMPLES", 10_000), ("TRAIN", 128), ("TARGET", 1024), ("coverage", shifted)):
        monkeypatch.setattr(coverage_check, name, value)
    _, (agrees, rises, papers) = coverage_section(tmp_path / "figures")
    assert (agrees.holds, rises.holds, papers.holds and shift > 0) == (shift == 0, True, False)
