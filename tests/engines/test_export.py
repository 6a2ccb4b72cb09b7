"""``skipwise export`` with llama.cpp: every type, the embedded model, a tokenizer that llama.cpp cannot have."""

from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import normalizers
from transformers import PreTrainedTokenizerBase

from skipwise.engines import gguf
from skipwise.engines.gguf import TYPES
from skipwise.model.loading import load_tokenizer
from tests.command_line import refused, run
from tests.engines.reading import pre_tokenizer
from tests.tiny import byte_tokenizer, checkpoint


@pytest.mark.parametrize("kind", TYPES)
def test_the_embedded_model_in_every_type(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gguf, "find_pre_tokenizer", pre_tokenizer)
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "export", "nano", "--type", kind)
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".lock"} == {
        f"nano-{kind}.gguf",
        f"nano-{kind}.gguf.sha256",
        f"nano-{kind}.Modelfile",
    }
    assert "the same" in capsys.readouterr().out


def test_a_tokenizer_that_llama_cpp_does_not_know_is_matched_by_its_tokens() -> None:
    assert pre_tokenizer(load_tokenizer("nano"), Console(quiet=True)) == "superbpe"


def lower_case() -> PreTrainedTokenizerBase:
    """A tokenizer that llama.cpp cannot have: it writes in lower case first."""
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def test_a_tokenizer_that_llama_cpp_cannot_have_is_refused(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(gguf, "_PRE_TOKENIZERS", ("gpt-2", "llama-bpe"))
    model = checkpoint(tmp_path / "lower", window=128)
    lower_case().save_pretrained(model)
    message = refused(monkeypatch, capsys, "export", model, "--out", tmp_path / "lower.gguf")
    assert message == (
        "llama.cpp has no pre-tokenizer that gives this tokenizer's tokens; 2 were tried on prose and code. Serve the "
        "checkpoint with vLLM or transformers, which read its own tokenizer"
    )
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == ["lower"]
