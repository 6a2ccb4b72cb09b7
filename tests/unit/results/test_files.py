"""Files are whole or absent; a damaged file of a manifest is refused by name; a folder has one writer."""

import subprocess
import sys
from pathlib import Path

import pytest

from skipwise.errors import RunError
from skipwise.results.files import new_folder, replacing, require_sealed, seal, write_text
from skipwise.results.run_folder import BASE_MODEL, TRAINING_TEXT, RunFolder


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


@pytest.mark.parametrize("damage", [b"dee", b"de", None])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, damage: bytes | None) -> None:
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(b"def")
    entries = seal(tmp_path, ["a.bin", "b.bin"])
    require_sealed(tmp_path, entries, "restore it")
    (tmp_path / "b.bin").unlink()
    if damage is not None:
        (tmp_path / "b.bin").write_bytes(damage)
    with pytest.raises(RunError, match=r"b\.bin"):
        require_sealed(tmp_path, entries, "restore it")


def test_a_new_folder_takes_its_name_whole_has_one_writer_and_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "half").touch()  # left by a killed process
    with new_folder(tmp_path / "out") as partial:
        (partial / "a").write_text("1")
        assert not (tmp_path / "out").exists()
        with pytest.raises(RunError), new_folder(tmp_path / "out"):
            pytest.fail("it was written")
    with pytest.raises(RunError), new_folder(tmp_path / "out"):
        pytest.fail("it was written")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "a"]
    with pytest.raises(KeyError), new_folder(tmp_path / "other"):
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_second_command_in_a_folder_is_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")  # its lock lasts as long as the object
    run.lock()
    program = "import sys; from skipwise.results.run_folder import *; RunFolder(Path(sys.argv[1])).lock()"
    words = [sys.executable, "-c", program, tmp_path / "run"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "RunError" in done.stderr


def test_a_run_is_known_by_settings_text_and_base(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    found = set()
    for settings, text, base in (({}, "a", "b"), ({"seed": 1}, "a", "b"), ({}, "c", "b"), ({}, "a", "d")):
        run.record(settings=settings, fingerprints={TRAINING_TEXT: text, BASE_MODEL: base, "evaluation text": "x"})
        found.add(run.identity)
    assert len(found) == 4
    run.require_same({TRAINING_TEXT: "a", "a new text": "y"})
    with pytest.raises(RunError):
        run.require_same({BASE_MODEL: "other"})
