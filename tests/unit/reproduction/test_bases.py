"""What is measured beside the arms: small bases, what a step costs, and closed forms against Monte Carlo."""

import io

import pytest
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from reproduction import bases
from reproduction.bases import BASES, base_folder, make_base
from skipwise.data.store import split_by_name
from skipwise.model.extension import plan_extension
from skipwise.recipes.schema import Data
from tests.tiny import corpus

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
