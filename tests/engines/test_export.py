"""``skipwise export`` with llama.cpp: every type, the embedded model, a tokenizer that llama.cpp cannot have."""

import json
from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import normalizers

from skipwise.engines import export
from skipwise.engines.export import TYPES
from skipwise.model.loading import load_tokenizer
from tests.command_line import refused, run
from tests.engines.models import base
from tests.engines.reading import pre_tokenizer
from tests.tiny import byte_tokenizer, checkpoint


@pytest.mark.parametrize("kind", TYPES)
def test_the_embedded_model_in_every_type(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "find_pre_tokenizer", pre_tokenizer)
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "export", "nano", "--type", kind)
    assert {path.name for path in tmp_path.iterdir()} == {f"nano-{kind}.gguf", f"nano-{kind}.Modelfile"}
    assert "agrees" in capsys.readouterr().out


def test_a_tokenizer_that_llama_cpp_does_not_know_is_matched_by_its_tokens() -> None:
    assert pre_tokenizer(load_tokenizer("nano"), Console(quiet=True)) == "superbpe"


def test_a_tokenizer_that_llama_cpp_cannot_have_is_refused(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(export, "_PRE_TOKENIZERS", ("gpt-2", "llama-bpe"))
    model = checkpoint(tmp_path / "lower", window=128)
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.save_pretrained(model)
    assert "none of 2" in refused(monkeypatch, capsys, "export", model, "--out", tmp_path / "lower.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["lower"]


def test_a_checkpoint_of_transformers_4_is_exported(tmp_path: Path) -> None:
    """Its config has no ``rope_parameters``."""
    model = base(tmp_path, "llama")
    config = json.loads((model / "config.json").read_text())
    del config["rope_parameters"]
    (model / "config.json").write_text(json.dumps(config | {"rope_theta": 10_000.0}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "find_pre_tokenizer", pre_tokenizer)
        run(patch, "export", model, "--out", tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").exists()
