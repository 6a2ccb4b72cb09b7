"""What cannot be converted is refused before anything is written, and nothing of a checkpoint is executed."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, GPTJConfig, GPTJForCausalLM

from skipwise.errors import ModelError, RunError
from skipwise.model import stock_tokenizer
from skipwise.model.convert import convert
from skipwise.model.sealed import require_unchanged
from tests.parity.test_conversion import BAICHUAN, baichuan
from tests.tiny import byte_tokenizer, checkpoint, sentencepiece_model


@pytest.fixture
def gptj(tmp_path: Path) -> Path:
    folder = tmp_path / "gptj"
    config = GPTJConfig(vocab_size=97, n_positions=32, n_embd=32, n_layer=1, n_head=2, rotary_dim=8)
    GPTJForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def changed(folder: Path, **changes) -> str:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return str(folder)


def refused(source: str, out: Path) -> str:
    with pytest.raises(ModelError) as told:
        convert(source, out)
    assert not out.exists()
    return str(told.value)


def test_the_tokenizer_goes_along(gptj: Path, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(gptj)  # in a file of its own
    out = convert(str(gptj), tmp_path / "out")
    written = AutoTokenizer.from_pretrained(out)
    assert written("abc").input_ids == byte_tokenizer()("abc").input_ids
    assert written.chat_template == tokenizer.chat_template
    assert not (tmp_path / ".out.partial").exists()


def test_what_stands_there_is_kept(gptj: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").touch()
    with pytest.raises(RunError, match="exists and is not overwritten; give another folder"):
        convert(str(gptj), out)
    assert (out / "precious").exists()


def test_what_is_stock_needs_no_conversion(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "llama")
    assert "llama needs no conversion: give it to skipwise extend" in refused(str(model), tmp_path / "out")
    scaled = {"rope_scaling": {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}}
    assert "needs no conversion" in refused(changed(model, **scaled), tmp_path / "out")


@pytest.mark.parametrize(
    "scaling", [{"type": "ntk", "factor": 4.0}, {"type": "linear"}, {"type": "foo", "factor": 2.0}, "linear"]
)
def test_a_scaling_that_nobody_knows_is_not_said_to_be_taken(tmp_path: Path, scaling) -> None:
    model = checkpoint(tmp_path / "llama")
    told = refused(changed(model, rope_scaling=scaling, rope_parameters=None), tmp_path / "out")
    if isinstance(scaling, dict) and scaling["type"] == "linear":
        assert "give it to skipwise extend with --existing-rope replace" in told
    else:
        assert "a type of neither transformers nor PoSE's authors" in told


def test_an_original_length_that_means_nothing_is_refused(gptj: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--original 64 is for a checkpoint of PoSE's authors"):
        convert(str(gptj), tmp_path / "out", original_length=64)


def test_weights_that_cannot_be_are_named(gptj: Path, tmp_path: Path) -> None:
    whole = load_file(gptj / "model.safetensors")
    name = "transformer.h.0.attn.q_proj.weight"
    for weight, message in (
        (whole[name][:16], f"{name} has shape (16, 32), which does not fit the config"),
        (torch.full_like(whole[name], torch.nan), f"{name} holds NaN or infinity"),
    ):
        save_file(whole | {name: weight.contiguous()}, gptj / "model.safetensors", metadata={"format": "pt"})
        assert message in refused(str(gptj), tmp_path / "out")
    assert not (tmp_path / ".out.partial").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not converted. Conversions exist for gptj, baichuan"),
        ({"rotary_dim": None}, "rotary_dim None, which must be from 2 to the 16 dims of a head"),
        ({"rotary_dim": 64}, "rotary_dim 64, which must be from 2 to the 16 dims of a head"),
        ({"n_layer": 2}, "has shape None in the converted checkpoint and"),
        ({"n_inner": 48}, "has shape (128,) in the converted checkpoint and (48,) in its class"),
    ],
)
def test_a_config_that_cannot_be_is_refused(gptj: Path, tmp_path: Path, changes, message: str) -> None:
    assert message in refused(changed(gptj, **changes), tmp_path / "out")


def test_alibi_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "baichuan"
    folder.mkdir()
    config = {key: value for key, value in BAICHUAN.items() if key != "max_position_embeddings"}
    (folder / "config.json").write_text(json.dumps(config))
    assert "ALiBi positions, as the 13B models do" in refused(str(folder), tmp_path / "out")


def test_files_that_are_lost_or_broken_are_named(gptj: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "neither a folder here nor reachable" in refused(str(tmp_path / "nowhere"), out)
    weights = gptj / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    assert "model.safetensors cannot be read as weights" in refused(str(gptj), out)
    weights.unlink()
    assert "has neither model.safetensors nor pytorch_model.bin" in refused(str(gptj), out)
    index = gptj / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    assert "lacks 2 of its 2 weight files: model-1.safetensors" in refused(str(gptj), out)
    index.write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
    assert "names a file outside its folder, '../model.safetensors'; fetch it again" in refused(str(gptj), out)
    for damaged in (None, [], {"a": 1}):
        index.write_text(json.dumps({"weight_map": damaged}))
        assert "does not say which file holds which weights; fetch it again" in refused(str(gptj), out)
    index.write_text("{")
    assert "is not JSON" in refused(str(gptj), out)
    (gptj / "config.json").write_text("[]")
    assert "config.json does not hold a JSON object" in refused(str(gptj), out)
    (gptj / "config.json").unlink()
    assert "has no config.json" in refused(str(gptj), out)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_nothing_of_a_checkpoint_is_executed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    baichuan(tmp_path / "source")
    (tmp_path / "source" / "modeling_baichuan.py").write_text("import os; os.mkdir('executed')")
    torch.save({"model.embed_tokens.weight": Evil()}, tmp_path / "source" / "pytorch_model.bin")
    assert "is a pickle of more than weights" in refused(str(tmp_path / "source"), tmp_path / "out")
    assert not (tmp_path / "executed").exists()


def test_remote_code_is_not_named_in_the_result(tmp_path: Path) -> None:
    baichuan(tmp_path / "source")
    settings = {"auto_map": {"AutoTokenizer": ["tokenization_baichuan.BaichuanTokenizer", None]}}
    settings |= {"tokenizer_class": "BaichuanTokenizer", "add_bos_token": False}
    (tmp_path / "source" / "tokenizer_config.json").write_text(json.dumps(settings))
    sentencepiece_model(tmp_path / "source" / "tokenizer.model", ["the sky is blue"] * 9)
    out = convert(str(tmp_path / "source"), tmp_path / "out")
    written = json.loads((out / "tokenizer_config.json").read_text())
    assert written == {"add_bos_token": False, "tokenizer_class": "PreTrainedTokenizerFast"}
    assert "auto_map" not in (out / "config.json").read_text()


def test_a_conversion_that_was_killed_begins_anew(gptj: Path, tmp_path: Path) -> None:
    torso = tmp_path / ".out.partial"
    torso.mkdir()
    save_file({"x": torch.zeros(1)}, torso / "model-00007.safetensors")
    out = convert(str(gptj), tmp_path / "out")
    assert [path.name for path in out.glob("*.safetensors")] == ["model.safetensors"]
    require_unchanged(out)  # the lock of the writing is not among what was sealed


def test_a_full_disk_is_an_error_of_the_system_and_leaves_nothing(gptj: Path, tmp_path: Path, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: No space left on device (os error 28)")

    monkeypatch.setattr("skipwise.model.convert.save_file", full)
    with pytest.raises(OSError, match="No space left on device") as told:
        convert(str(gptj), tmp_path / "out")
    assert (told.value.errno, told.value.filename) == (errno.ENOSPC, str(tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["gptj"]


def test_the_type_of_the_weights_is_kept(gptj: Path, tmp_path: Path) -> None:
    weights = {name: value.to(torch.bfloat16) for name, value in load_file(gptj / "model.safetensors").items()}
    save_file(weights, gptj / "model.safetensors", metadata={"format": "pt"})
    out = convert(str(gptj), tmp_path / "out")
    assert {value.dtype for value in load_file(out / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    shutil.rmtree(out)


def test_a_config_that_lacks_a_key_or_has_a_wrong_value_is_named(gptj: Path, tmp_path: Path) -> None:
    changed(gptj, n_embd="wide")
    assert "config.json has an impossible value (" in refused(str(gptj), tmp_path / "out")
    config = json.loads((gptj / "config.json").read_text())
    del config["n_head"]
    (gptj / "config.json").write_text(json.dumps(config))
    assert "config.json lacks 'n_head'; fetch it again" in refused(str(gptj), tmp_path / "out")


def test_a_tokenizer_that_is_remote_code_alone_is_refused(tmp_path: Path) -> None:
    baichuan(tmp_path / "source")
    settings = {"auto_map": {"AutoTokenizer": ["tokenization_baichuan.BaichuanTokenizer", None]}}
    (tmp_path / "source" / "tokenizer_config.json").write_text(json.dumps(settings))
    assert "neither tokenizer.model nor tokenizer.json" in refused(str(tmp_path / "source"), tmp_path / "out")
    (tmp_path / "source" / "tokenizer.model").write_bytes(b"no model of anything")
    assert "cannot be read as a SentencePiece model" in refused(str(tmp_path / "source"), tmp_path / "out")


def test_the_packages_are_required_before_a_weight_is_read(tmp_path: Path, monkeypatch) -> None:
    baichuan(tmp_path / "source")
    (tmp_path / "source" / "tokenizer_config.json").write_text('{"auto_map": {}}')
    (tmp_path / "source" / "tokenizer.model").touch()
    (tmp_path / "source" / "pytorch_model.bin").unlink()
    monkeypatch.setattr(stock_tokenizer, "find_spec", lambda name: None)
    told = refused(str(tmp_path / "source"), tmp_path / "out")
    assert "pip install 'protobuf>=4.25' 'sentencepiece>=0.2'" in told
