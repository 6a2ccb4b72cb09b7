"""What is measured beside the arms: small bases, what a step costs, and closed forms against Monte Carlo."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from reproduction import bases, costs
from reproduction.bases import BASES, base_folder, make_base
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
    for name, base in BASES.items():
        monkeypatch.setitem(BASES, name, replace(base, steps=2))
    return Data(source=str(corpus(tmp_path / "text", documents=12, words=700)))


def test_a_base_is_trained_once_and_kept_by_what_decides_it(tiny: Data, tmp_path) -> None:
    folder = make_base("GPT-J", tiny, CONSOLE)
    AutoModelForCausalLM.from_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder)("a").input_ids
    weights = (folder / "model.safetensors").stat().st_mtime_ns
    assert make_base("GPT-J", tiny, CONSOLE) == folder == base_folder("GPT-J", tiny) / "model"
    assert (folder / "model.safetensors").stat().st_mtime_ns == weights
    other = corpus(tmp_path / "other", documents=13, words=700)
    for changes in ({"source": str(other)}, {"held_out": 0.2}, {"max_tokens": 9000}):
        assert base_folder("GPT-J", tiny.model_copy(update=changes)) != folder.parent


def test_steps_are_measured_once_and_a_killed_measurement_goes_on(tmp_path, monkeypatch) -> None:
    recipe = load_recipe("nano", {"model": str(checkpoint(tmp_path / "base", 16)), "training.precision": "float32"})
    monkeypatch.setattr(costs, "FACTORS", (2, 8))
    monkeypatch.setattr(costs, "_ROUNDS", {"pose": 3, "full": 2})
    monkeypatch.setattr(costs, "in_own_process", lambda function, *args: function(*args))
    found = costs.measure_costs(recipe, 16, tmp_path, CONSOLE)
    rows = [(r.arm, r.target, r.window, len(r.step_seconds)) for r in found]
    assert rows == [("pose", 32, 16, 3), ("pose", 128, 16, 3), ("full", 32, 32, 2), ("full", 128, 128, 2)]
    assert costs.measure_costs(recipe, 16, tmp_path, CONSOLE) == found == read_records(tmp_path / "costs.jsonl")
    path = tmp_path / "costs.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    assert len(costs.measure_costs(recipe, 16, tmp_path, CONSOLE)) == 4
    assert costs.known_costs(recipe.model_copy(update={"interpolation": "ntk"}), 16, tmp_path) == []
