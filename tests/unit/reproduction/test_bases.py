"""Small bases: each of its architecture, trained once, kept by all that decides it."""

import io

import pytest
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from skipwise.model.loading import load_config, plan_extension
from skipwise.reproduction import bases
from skipwise.reproduction.bases import BASES, base_folder, make_base, new_model


@pytest.mark.parametrize("name", sorted(BASES))
def test_a_base_can_be_extended_from_its_window(name: str) -> None:
    base = BASES[name]
    model = new_model(base, 512)
    extension = plan_extension(model.config, interpolation="yarn")
    assert extension.rope.original_length == base.window
    assert model.config.model_type == base.model_type
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tied == base.differs["tie_word_embeddings"]


def test_gptj_turns_a_quarter_of_each_head() -> None:
    assert plan_extension(new_model(BASES["GPT-J"], 512).config).rope.dim == 16


def test_a_base_is_trained_once_and_kept(tmp_path, monkeypatch) -> None:
    from tests.tiny import corpus

    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(bases, "_TEXT", str(corpus(tmp_path / "text", documents=12, words=700)))
    monkeypatch.setattr(bases, "_STEPS", 2)
    monkeypatch.setattr(bases, "_TOKENS", 1024)
    console = Console(file=io.StringIO())
    folder = make_base("GPT-J", console)
    assert folder == base_folder("GPT-J") / "model"
    AutoModelForCausalLM.from_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder)("a").input_ids
    assert load_config(str(folder)).model_type == "phi"
    weights = (folder / "model.safetensors").stat().st_mtime_ns
    assert make_base("GPT-J", console) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == weights


def test_what_decides_a_base_decides_its_folder(monkeypatch) -> None:
    before = base_folder("LLaMA2")
    monkeypatch.setattr(bases, "_STEPS", 7)
    assert base_folder("LLaMA2") != before
    assert base_folder("Baichuan2") != base_folder("LLaMA2")
