import json
import os
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GPTJConfig, GPTJForCausalLM

from skipwise.errors import ModelError
from skipwise.model import convert as module
from skipwise.model.config import require_unchanged
from skipwise.model.convert import convert
from tests.parity.test_conversion import baichuan
from tests.tiny import byte_tokenizer, sentencepiece_model

REMOTE = {"auto_map": {"AutoTokenizer": ["tokenization_baichuan.BaichuanTokenizer", None]}, "add_bos_token": False}


@pytest.fixture
def gptj(tmp_path: Path) -> Path:
    folder = tmp_path / "gptj"
    config = GPTJConfig(vocab_size=97, n_positions=32, n_embd=32, n_layer=1, n_head=2, rotary_dim=8)
    GPTJForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def refused(source: Path, out: Path, match: str) -> None:
    with pytest.raises(ModelError, match=match):
        convert(str(source), out)
    assert not out.exists()


def test_the_first_baichuan_is_refused(tmp_path: Path) -> None:
    baichuan(tmp_path / "source", vocab_size=64_000)
    refused(tmp_path / "source", tmp_path / "out", "Baichuan2-7B")


def test_the_tokenizer_is_copied(gptj: Path, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(gptj)  # in a separate file
    out = convert(str(gptj), tmp_path / "out")
    written = AutoTokenizer.from_pretrained(out)
    assert written("abc").input_ids == byte_tokenizer()("abc").input_ids
    assert written.chat_template == tokenizer.chat_template
    require_unchanged(out)


def test_a_missing_file_is_named(gptj: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused(tmp_path / "nowhere", out, "nowhere")
    weights = gptj / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    refused(gptj, out, "model.safetensors")
    weights.unlink()
    refused(gptj, out, "model.safetensors")
    (gptj / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    refused(gptj, out, r"model-1\.safetensors")


class Evil:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_nothing_of_a_checkpoint_is_executed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    baichuan(tmp_path / "source")
    (tmp_path / "source" / "modeling_baichuan.py").write_text("import os; os.mkdir('executed')")
    torch.save({"model.embed_tokens.weight": Evil()}, tmp_path / "source" / "pytorch_model.bin")
    refused(tmp_path / "source", tmp_path / "out", r"pytorch_model\.bin")
    assert not (tmp_path / "executed").exists()
    (tmp_path / "source" / "tokenizer_config.json").write_text(json.dumps(REMOTE))
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    refused(tmp_path / "source", tmp_path / "out", "sentencepiece")  # before the work


def test_remote_code_is_not_named_in_the_result(tmp_path: Path) -> None:
    baichuan(tmp_path / "source")
    (tmp_path / "source" / "tokenizer_config.json").write_text(json.dumps(REMOTE))
    sentencepiece_model(tmp_path / "source" / "tokenizer.model", ["the sky is blue"] * 9)
    out = convert(str(tmp_path / "source"), tmp_path / "out")
    written = json.loads((out / "tokenizer_config.json").read_text())
    assert written == {"add_bos_token": False, "tokenizer_class": "PreTrainedTokenizerFast"}
    assert "auto_map" not in (out / "config.json").read_text()
