"""``skipwise convert FILE.gguf``, with llama.cpp and its converter."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

pytest.importorskip("conversion")
pytest.importorskip("xllamacpp")

from skipwise.engines import export
from skipwise.engines.check import TEXTS, Request, engine_here, tokens_of
from skipwise.engines.export import convert_gguf
from skipwise.errors import EngineError, ModelError
from skipwise.model.config import load_config, original_length
from skipwise.model.convert import GGUFFile, write_checkpoint
from skipwise.model.loading import load_tokenizer
from tests.command_line import run
from tests.engines.models import base, extended

CONSOLE = Console(quiet=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf-in")


def written(folder: Path, model: Path, kind: str = "f32") -> Path:
    """The checkpoint as a GGUF file; nano's tokens under GPT-2's expression, which all readers know."""
    out = folder / f"{model.name}-{kind}.gguf"
    if not out.exists():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(export, "find_pre_tokenizer", lambda tokenizer, console: "gpt-2")
            export.write_gguf(model, out, kind, CONSOLE)
    return out


def changed(source: Path, out: Path, **settings: object) -> Path:
    """The file with other settings, short for ``tokenizer.ggml.KEY`` and ``split.KEY``."""
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
    ("family", "interpolation"), [("llama", "linear"), ("llama", "yarn"), ("qwen3", "yarn"), ("gemma3", "linear")]
)
def test_there_and_back(family: str, interpolation: str, folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    model = extended(folder, family, interpolation)
    out = tmp_path / "out"
    run(monkeypatch, "convert", written(folder, model), out)
    assert "agrees" in capsys.readouterr().out
    before, after = load_file(model / "model.safetensors"), load_file(out / "model.safetensors")
    assert before.keys() == after.keys()
    # Gemma's norms are stored with 1 added, which float32 rounds.
    assert all(torch.allclose(before[name], after[name], rtol=0, atol=1e-7 * (family == "gemma3")) for name in before)
    ours, theirs = (json.loads((at / "config.json").read_text()) for at in (model, out))
    assert theirs["rope_scaling"].keys() == ours["rope_scaling"].keys()  # older keys
    assert original_length(load_config(str(out))) == 256  # so that it can be extended again


def test_quantised_weights_become_bfloat16(folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    file = written(folder, base(folder, "llama"), "q8_0")
    run(monkeypatch, "convert", file, tmp_path / "out")
    assert load_config(str(tmp_path / "out")).dtype == torch.bfloat16
    assert "agrees" in capsys.readouterr().out


@pytest.mark.parametrize("step", ["_set_rope", "_set_attention"])
def test_another_prediction_is_refused(step: str, folder: Path, tmp_path: Path, monkeypatch) -> None:
    family = {"_set_rope": "llama", "_set_attention": "gemma3"}[step]
    monkeypatch.setattr("skipwise.model.convert." + step, lambda config, source: None)
    with pytest.raises(EngineError, match="linear-f32"):
        convert_gguf(written(folder, extended(folder, family, "linear")), tmp_path / "out", CONSOLE)
    assert not list(tmp_path.iterdir())


def test_other_tokens_on_prose_and_code_are_refused(folder: Path, tmp_path: Path) -> None:
    """transformers splits by GPT-2's expression under names that it does not know."""
    file = changed(written(folder, base(folder, "llama")), tmp_path / "changed.gguf", pre="superbpe")
    with pytest.raises(EngineError, match="tokens differ"):
        convert_gguf(file, tmp_path / "out", CONSOLE)


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "gpt-4o", "tekken"])
def test_every_pre_tokenizer_splits_as_in_llama_cpp(pre: str, folder: Path, tmp_path: Path) -> None:
    file = changed(written(folder, base(folder, "llama")), tmp_path / "changed.gguf", pre=pre)
    theirs = engine_here("llama.cpp").answer(Request(str(file), [], [], 64, TEXTS))["tokens"]
    write_checkpoint(GGUFFile(file), tmp_path / "out")
    assert tokens_of(load_tokenizer(str(tmp_path / "out"))) == theirs


@pytest.mark.parametrize(
    ("settings", "match"),
    [({"count": 3}, "parts"), ({"architecture": "phi2"}, "phi2"), ({"without": "blk.1.ffn_up.weight"}, "3,868,416")],
)
def test_a_file_of_another_kind_is_refused(settings: dict, match: str, folder: Path, tmp_path: Path) -> None:
    file = changed(written(folder, base(folder, "llama")), tmp_path / "changed.gguf", **settings)
    with pytest.raises(ModelError, match=match):
        convert_gguf(file, tmp_path / "out", CONSOLE)
    assert [path.name for path in tmp_path.iterdir()] == ["changed.gguf"]


@pytest.mark.parametrize("size", [None, 0, 5_000_000])
def test_a_missing_or_cut_off_file_is_named(size: int | None, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    if size is not None:
        file.write_bytes(written(folder, base(folder, "llama")).read_bytes()[:size])
    with pytest.raises(ModelError, match=r"m\.gguf"):
        convert_gguf(file, tmp_path / "out", CONSOLE)
