"""Files are whole or absent; a damaged file of a manifest is refused by name; a folder has one writer."""

import os
from hashlib import sha256
from pathlib import Path

import pytest

from skipwise.errors import RunError
from skipwise.results import files
from skipwise.results.files import new_folder, read_json, replacing, require_sealed, seal, write_json, write_text


def test_a_file_is_replaced_at_the_end_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.write("text instead of bytes")
    assert path.read_text() == "old"
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [left.name for left in tmp_path.iterdir()] == ["file"]


def test_a_file_is_flushed_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    for name in ("fsync", "replace"):
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *words, name=name, call=call: (done.append(name), call(*words)))
    write_text(tmp_path / "file", "text")
    assert done == ["fsync", "replace", "fsync"]


def test_json_is_an_object(tmp_path: Path) -> None:
    write_json(tmp_path / "file.json", {"steps": 400, "name": "é\n"})
    assert read_json(tmp_path / "file.json") == {"steps": 400, "name": "é\n"}
    for text in ('{"steps": ', "[1]", ""):
        (tmp_path / "file.json").write_text(text)
        with pytest.raises((ValueError, TypeError)):
            read_json(tmp_path / "file.json")


def test_a_manifest_has_sizes_and_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert seal(tmp_path, ["a"]) == {"a": {"bytes": 3, "digest": sha256(b"abc").hexdigest()}}


@pytest.mark.parametrize("damage", [b"dee", b"de", b"defg", None])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, damage: bytes | None) -> None:
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(b"def")
    entries = seal(tmp_path, ["a.bin", "b.bin"])
    require_sealed(tmp_path, entries, "restore it")
    (tmp_path / "b.bin").unlink()
    if damage is not None:
        (tmp_path / "b.bin").write_bytes(damage)
    with pytest.raises(RunError, match=r"b\.bin.*restore it"):
        require_sealed(tmp_path, entries, "restore it")


class TestNewFolder:
    def test_takes_its_name_whole(self, tmp_path: Path) -> None:
        (tmp_path / ".out.partial").mkdir()
        (tmp_path / ".out.partial" / "half").touch()  # left by a killed process
        with new_folder(tmp_path / "out") as partial:
            (partial / "a").write_text("1")
            assert not (tmp_path / "out").exists()
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]

    def test_one_that_exists_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match=tmp_path.name), new_folder(tmp_path):
            pytest.fail("it was written")

    def test_the_second_writer_is_refused(self, tmp_path: Path) -> None:
        with new_folder(tmp_path / "out") as partial:
            (partial / "a").write_text("1")
            with pytest.raises(RunError, match="out"), new_folder(tmp_path / "out"):
                pytest.fail("it was written")
        assert (tmp_path / "out" / "a").read_text() == "1"

    def test_one_that_another_process_finished_meanwhile_stays(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr(files, "acquire", lambda lock, path: write_text(path, "theirs"))
        with pytest.raises(RunError, match="out"), new_folder(tmp_path / "out"):
            pytest.fail("it was written")
        assert [path.read_text() for path in tmp_path.iterdir()] == ["theirs"]

    def test_an_error_leaves_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(KeyError), new_folder(tmp_path / "out"):
            raise KeyError
        assert not list(tmp_path.iterdir())
