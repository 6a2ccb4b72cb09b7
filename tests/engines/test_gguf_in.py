"""``skipwise convert FILE.gguf``, with llama.cpp and its converter."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

pytest.importorskip("conversion")
pytest.importorskip("xllamacpp")

from skipwise.engines import gguf
from skipwise.engines.compare import TEXTS, tokens_of
from skipwise.engines.gguf_in import convert_gguf
from skipwise.engines.request import Request, find_engines
from skipwise.errors import EngineError, ModelError
from skipwise.model.config import load_config
from skipwise.model.gguf import GGUFFile
from skipwise.model.gguf_tokenizer import read_tokenizer
from skipwise.model.loading import load_tokenizer
from skipwise.model.rope import original_length
from skipwise.results.files import write_checksum
from tests.command_line import refused, run
from tests.engines.models import base, extended

CONSOLE = Console(quiet=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf-in")


def written(folder: Path, model: Path, kind: str = "f32") -> Path:
    """The checkpoint as a GGUF file with nano's known pre-tokenizer."""
    out = folder / f"{model.name}-{kind}.gguf"
    if not out.exists():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gguf, "find_pre_tokenizer", lambda tokenizer, console: "superbpe")
            gguf.write_gguf(model, out, kind, CONSOLE)
    return out


def changed(source: Path, out: Path, **settings: object) -> Path:
    """The file with other settings, short for ``tokenizer.ggml.KEY`` and ``split.KEY``; None leaves one out."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    read = GGUFReader(source)
    writer = GGUFWriter(out, str(settings.pop("architecture", "llama")))
    for field in read.fields.values():
        short = field.name.split(".")[-1]
        if not field.name.startswith("GGUF.") and field.name != "general.architecture" and short not in settings:
            kind = field.types[0]
            of = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, of)
    if "pre" in settings:
        writer.add_tokenizer_pre(str(settings["pre"]))
    if "count" in settings:
        writer.add_uint16("split.count", settings["count"])
    for tensor in read.tensors:
        if tensor.name != settings.get("without"):
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.mark.parametrize(
    ("family", "interpolation"),
    [("llama", "linear"), ("llama", "yarn"), ("llama", "yarn-revised"), ("qwen3", "yarn"), ("gemma3", "linear")],
)
def test_there_and_back(family: str, interpolation: str, folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    model = extended(folder, family, interpolation)
    out = tmp_path / "out"
    run(monkeypatch, "convert", written(folder, model), out)
    assert "checked: " in capsys.readouterr().out
    before, after = load_file(model / "model.safetensors"), load_file(out / "model.safetensors")
    assert before.keys() == after.keys()
    # Gemma's norms are stored with 1 added, which float32 rounds.
    assert all(torch.allclose(before[name], after[name], rtol=0, atol=1e-7 * (family == "gemma3")) for name in before)
    ours, theirs = (json.loads((at / "config.json").read_text()) for at in (model, out))
    assert theirs["rope_scaling"].keys() == ours["rope_scaling"].keys()  # older keys
    text = "The captain's log, year 1984: def read(self, path='data.txt'):\n    return 12345678\n"
    assert load_tokenizer(str(out))(text).input_ids == load_tokenizer(str(model))(text).input_ids
    assert original_length(load_config(str(out))) == 256  # so that it can be extended again


def test_quantised_weights_become_bfloat16(folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    file = written(folder, base(folder, "llama"), "q8_0")
    run(monkeypatch, "convert", file, tmp_path / "out")
    assert load_config(str(tmp_path / "out")).dtype == torch.bfloat16
    printed = " ".join(capsys.readouterr().out.split())
    assert "llama with weights of type Q8_0 -> bfloat16 checked: " in printed
    assert "The weights come from Q8_0. What quantisation cost cannot be won back." in printed


@pytest.mark.parametrize("step", ["_set_rope", "_set_attention"])
def test_another_prediction_is_refused(
    step: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = {"_set_rope": "llama", "_set_attention": "gemma3"}[step]
    monkeypatch.setattr("skipwise.model.gguf." + step, lambda config, source: None)
    with pytest.raises(
        EngineError, match=r"does not predict what llama.cpp does .* nats apart .*out.unchecked; do not"
    ):
        convert_gguf(written(folder, extended(folder, family, "linear")), tmp_path / "out", CONSOLE)
    assert [path.name for path in tmp_path.iterdir()] == ["out.unchecked"]


def test_other_tokens_on_prose_and_code_are_refused(folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("skipwise.model.gguf_tokenizer.SPLITS", {})
    message = refused(monkeypatch, capsys, "convert", written(folder, base(folder, "llama")), tmp_path / "out")
    assert "its tokenizer gives other tokens: " in message
    assert message.endswith("out.unchecked; do not use it")


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "gpt-4o", "tekken", "superbpe"])
def test_every_pre_tokenizer_splits_as_in_llama_cpp(pre: str, folder: Path, tmp_path: Path) -> None:
    file = changed(written(folder, base(folder, "llama")), tmp_path / "changed.gguf", pre=pre)
    [engine, *_] = find_engines(["llama.cpp"], [])
    theirs = engine.answer(Request(str(file), [], [], 0, 64, texts=TEXTS))["tokens"]
    tokenizer = read_tokenizer(GGUFFile(file).get, lambda: pytest.fail("not byte-level"), 64)
    assert tokens_of(tokenizer) == theirs


def test_what_cannot_be_read_is_refused(folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    whole = written(folder, base(folder, "llama"))
    cases = {
        "missing": (None, "missing.gguf is not a file"),
        "empty": (b"", "empty.gguf is not a whole GGUF file"),
        "text": (b"plain text, no model at all" * 9, "text.gguf is not a whole GGUF file"),
        "cut": (whole.read_bytes()[:5_000_000], "cut.gguf is not a whole GGUF file"),
        "header": (whole.read_bytes()[:3_000], "header.gguf is not a whole GGUF file"),
    }
    for name, (content, message) in cases.items():
        file = tmp_path / f"{name}.gguf"
        if content is not None:
            file.write_bytes(content)
        assert message in refused(monkeypatch, capsys, "convert", file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": None, "tokens": None}, "holds no tokenizer; give a GGUF file that has one"),
        ({"count": 3}, "is a part of a split GGUF; put the parts together with llama-gguf-split --merge"),
        ({"architecture": "phi2"}, "of architecture phi2 .* give the model's own checkpoint"),
        ({"without": "blk.1.ffn_up.weight"}, r"holds [\d,]+ weights, LlamaForCausalLM has [\d,]+"),
    ],
)
def test_files_of_another_kind_are_refused(settings: dict, message: str, folder: Path, tmp_path: Path) -> None:
    file = changed(written(folder, base(folder, "llama")), tmp_path / "changed.gguf", **settings)
    with pytest.raises(ModelError, match=message):
        convert_gguf(file, tmp_path / "out", CONSOLE)
    assert [path.name for path in tmp_path.iterdir()] == ["changed.gguf"]


def test_a_bit_that_flipped_in_an_exported_file_is_refused(folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(written(folder, base(folder, "llama")).read_bytes())
    write_checksum(file, file.name)
    damaged = bytearray(file.read_bytes())
    damaged[-5] ^= 1
    file.write_bytes(damaged)
    message = refused(monkeypatch, capsys, "convert", file, tmp_path / "out")
    assert "m.gguf is not the file that m.gguf.sha256 names" in message
    assert not (tmp_path / "out").exists()
