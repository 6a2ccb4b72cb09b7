"""Files of ours: whole or absent, unchanged or refused, and hashed once."""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipwise.errors import RunError
from skipwise.results import files, privacy
from skipwise.results.files import (
    default_cache,
    file_digest,
    read_json,
    replacing,
    require_sealed,
    seal,
    write_json,
    write_text,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, and a process that remembers nothing."""
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "_known", {})
    return tmp_path / "cache" / "digests.json"


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as unchanged for long enough to be remembered."""
    monkeypatch.setattr(files, "_SETTLED", -3600.0)


def large(path: Path) -> Path:
    """A file of more than one block."""
    path.write_bytes(bytes(2**23) + b"end")
    return path


def flip(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_file_is_replaced_at_the_end_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.write("a text where bytes are written")
    assert path.read_text() == "old"
    write_text(path, "new")
    assert [left.name for left in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "new"


def test_a_link_where_the_new_file_is_written_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / f".file.{os.getpid()}.partial").symlink_to(tmp_path / "precious")
    write_text(tmp_path / "file", "new")
    assert (tmp_path / "precious").read_text() == "kept"
    assert not (tmp_path / "file").is_symlink()


def test_what_a_killed_process_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    old, new = tmp_path / ".file.1.partial", tmp_path / ".file.2.partial"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    write_text(tmp_path / "file", "text")
    assert not old.exists()
    assert new.exists()  # perhaps of a process that is writing


@given(st.dictionaries(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5)))
def test_json_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, values: dict[str, object]) -> None:
    path = tmp_path_factory.mktemp("json") / "file.json"
    values.pop("check", None)
    write_json(path, values)
    assert read_json(path) == values


def test_json_with_another_value_or_without_an_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"steps": 400})
    path.write_text(path.read_text().replace("400", "500"))
    with pytest.raises(ValueError, match="the hash differs"):
        read_json(path)
    for text in ('{"steps": ', "[1]", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"."):
            read_json(path)


def test_json_without_a_hash_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text('{"steps": 400}')
    assert read_json(tmp_path / "file.json") == {"steps": 400}


def sealed(folder: Path) -> files.Seal:
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"abc")
    (folder / "b.bin").write_bytes(b"def")
    return seal(folder, ["a.bin", "b.bin"])


def test_a_sealed_folder_has_its_files_unchanged(tmp_path: Path) -> None:
    entries = sealed(tmp_path / "folder")
    require_sealed(tmp_path / "folder", entries, "restore it")
    flip(tmp_path / "folder" / "b.bin")
    with pytest.raises(RunError, match=r"b\.bin is not the file that was written .*; restore it"):
        require_sealed(tmp_path / "folder", entries, "restore it")
    (tmp_path / "folder" / "b.bin").write_bytes(b"defg")
    with pytest.raises(RunError, match=r"b\.bin is not the file that was written"):
        require_sealed(tmp_path / "folder", entries, "restore it")
    (tmp_path / "folder" / "b.bin").unlink()
    with pytest.raises(RunError, match=r"folder has lost b\.bin; restore it"):
        require_sealed(tmp_path / "folder", entries, "restore it")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd"])
def test_a_seal_that_names_files_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match="names a file outside of it"):
        require_sealed(tmp_path, {name: {"bytes": 1, "digest": ""}}, "delete it")


def test_every_byte_counts_in_a_digest(tmp_path: Path) -> None:
    path = large(tmp_path / "file")
    known = file_digest(path)
    for at in (0, 2**23 - 1, 2**23, -1):
        flip(path, at)
        assert file_digest(path) != known
        flip(path, at)
    assert file_digest(path) == known


def test_a_small_file_is_not_looked_up_among_the_remembered(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(files, "_read_cache", lambda: pytest.fail("looked up"))
    monkeypatch.setattr(files, "ThreadPoolExecutor", lambda: pytest.fail("a thread for one block"))
    (tmp_path / "small").write_bytes(b"small")
    assert file_digest(tmp_path / "small") == sha256(sha256(b"small").digest()).hexdigest()


@pytest.mark.usefixtures("settled")
def test_a_remembered_file_is_read_again_only_after_a_change(tmp_path, cache, monkeypatch) -> None:
    path = large(tmp_path / "file")
    before = file_digest(path)
    assert str(path) in cache.read_text()

    def read(path: Path, start: int) -> bytes:
        raise AssertionError("read again")

    monkeypatch.setattr(files, "_known", {})  # another process
    with monkeypatch.context() as patch:
        patch.setattr(files, "_block_digest", read)
        assert file_digest(path) == before
    stat = path.stat()
    flip(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # size and mtime as before: ctime gives it away
    assert file_digest(path) != before


def test_a_file_that_has_just_changed_is_not_remembered(tmp_path: Path, cache: Path) -> None:
    """Two changes within one tick of the clock have one time stamp."""
    file_digest(large(tmp_path / "file"))
    assert not files._known
    assert not cache.exists()


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("content", ["{bad", "[1]", "{}", '{"file": "0", "check": "1"}'])
def test_a_damaged_cache_is_ignored_and_one_that_cannot_be_written_too(tmp_path, cache, monkeypatch, content) -> None:
    expected = file_digest(large(tmp_path / "file"))
    cache.write_text(content)
    files._known.clear()
    assert file_digest(tmp_path / "file") == expected
    monkeypatch.setenv("SKIPWISE_CACHE", str(cache))  # a file, in which no folder can be made
    files._known.clear()
    assert file_digest(tmp_path / "file") == expected


def test_folders_are_the_owners_alone_unless_they_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o022)  # commands that ran in this process have set another
    privacy.private_folder(tmp_path / "mine")
    monkeypatch.setenv("SKIPWISE_SHARED", "1")
    privacy.private_folder(tmp_path / "ours")
    os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("mine", "ours")]
    assert modes[0] == 0o700
    assert modes[1] != 0o700


def test_a_file_is_kept_for_one_process(tmp_path: Path) -> None:
    files.keep_for_this_process(tmp_path / "file")
    files.keep_for_this_process(tmp_path / "file")  # it may ask twice
    ask = (
        "import sys; from pathlib import Path; from skipwise.results.files import keep_for_this_process;"
        "keep_for_this_process(Path(sys.argv[1]))"
    )
    for name, refused in (("file", True), ("other", False)):
        words = [sys.executable, "-c", ask, tmp_path / name]
        asked = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (f"another process is writing {tmp_path / name}" in asked.stderr) == refused
        assert bool(asked.returncode) == refused


def test_a_link_and_its_file_have_one_owner(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    files.keep_for_this_process(tmp_path / "file")
    program = f"from skipwise.results.files import *; keep_for_this_process(Path({str(tmp_path / 'link')!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "another process is writing" in done.stderr


def test_a_file_that_is_written_anew_keeps_its_rights(tmp_path: Path) -> None:
    for mode in (0o600, 0o640):
        (tmp_path / "a").touch()
        (tmp_path / "a").chmod(mode)
        write_text(tmp_path / "a", "new")
        assert (tmp_path / "a").stat().st_mode & 0o777 == mode


class TestChecksum:
    def test_a_file_that_was_changed_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "m.gguf"
        file.write_bytes(b"weights")
        files.require_checksum(file)  # without one any file is taken
        assert files.write_checksum(file, file.name).name == "m.gguf.sha256"
        files.require_checksum(file)
        done = subprocess.run(["sha256sum", "-c", "m.gguf.sha256"], cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0
        file.write_bytes(b"weighty")
        with pytest.raises(
            RunError, match=r"m.gguf is not the file that m.gguf.sha256 names: .* or delete m.gguf.sha256"
        ):
            files.require_checksum(file)


class TestNewFolder:
    def test_takes_its_name_whole(self, tmp_path: Path) -> None:
        with files.new_folder(tmp_path / "out") as partial:
            (partial / "a").write_text("1")
            assert not (tmp_path / "out").exists()
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]

    def test_one_that_exists_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="exists and is not overwritten"), files.new_folder(tmp_path):
            pytest.fail("it was written")

    def test_another_process_that_writes_it_is_refused(self, tmp_path: Path) -> None:
        with files.new_folder(tmp_path / "out") as partial:
            (partial / "a").write_text("1")
            with pytest.raises(RunError, match="another process is writing"), files.new_folder(tmp_path / "out"):
                pytest.fail("it was written")
        assert (tmp_path / "out" / "a").read_text() == "1"

    def test_it_is_kept_from_other_processes_until_it_has_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rename = Path.rename

        def raced(self: Path, target: Path) -> Path:
            with pytest.raises(RunError, match="another process is writing"), files.new_folder(target):
                pytest.fail("it was written")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", raced)
        with files.new_folder(tmp_path / "out") as partial:
            (partial / "a").write_text("1")
        assert (tmp_path / "out" / "a").read_text() == "1"

    def test_one_that_was_written_meanwhile_stays(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="exists and is not overwritten"), files.new_folder(tmp_path / "out"):
            write_text(tmp_path / "out", "theirs")
        assert [path.read_text() for path in tmp_path.iterdir()] == ["theirs"]

    def test_what_a_killed_process_left_is_removed(self, tmp_path: Path) -> None:
        (torso := tmp_path / ".out.partial").mkdir()
        for name in (".lock", "half"):
            (torso / name).touch()
        with files.new_folder(tmp_path / "out"):
            pass
        assert not list((tmp_path / "out").iterdir())

    def test_an_error_leaves_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(KeyError), files.new_folder(tmp_path / "out"):
            raise KeyError
        assert not list(tmp_path.iterdir())


def test_a_cache_in_the_home_of_nobody_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SKIPWISE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv("SKIPWISE_CACHE")
        monkeypatch.setenv(variable, "~nobody-of-this-name/cache")
        with pytest.raises(
            RunError, match=r"the cache ~nobody-of-this-name/cache\S* lies in a home folder .* a whole path"
        ):
            default_cache()
        monkeypatch.setenv("SKIPWISE_CACHE", "")
