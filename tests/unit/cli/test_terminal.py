"""What a command does with its process: messages, signals, rights of files."""

import errno
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from skipwise.cli.extension import _recipe
from skipwise.cli.terminal import explained, prepare_process
from skipwise.errors import ModelError, RecipeError
from skipwise.recipes.loading import load_recipe
from tests.command_line import refused, run

SLOW = """
import os, signal, sys, time
import skipwise.cli.terminal as place
from pathlib import Path
def wait(*args, **options):
    try:
        Path("waiting").touch()
        time.sleep(60)
    finally:
        Path("saved").touch()
place.prepare_process = wait  # before torch is imported, which takes seconds
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored by what runs in the background
from skipwise.cli import main
sys.argv = ["skipwise", "plan", "nano"]
main()
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_without_a_traceback_and_leaves_what_ctrl_c_leaves(
    tmp_path: Path, number: int, status: int
) -> None:
    process = subprocess.Popen([sys.executable, "-c", SLOW], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "waiting").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == status
    assert "Traceback" not in printed
    assert (tmp_path / "saved").exists()


def test_the_handler_before_is_restored_and_a_process_of_a_launcher_keeps_it(monkeypatch, capsys) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end, explained("extend"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert end.value.code == 143
    assert "--resume" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before
    monkeypatch.setenv("RANK", "0")
    with explained("extend"):
        assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC])
def test_a_path_that_cannot_be_used_or_written_is_named(capsys, number: int) -> None:
    with pytest.raises(SystemExit) as end, explained("report"):
        raise OSError(number, os.strerror(number), "some/path")
    assert end.value.code == 1
    assert "some/path" in capsys.readouterr().err


def test_an_unexpected_error_is_one_line_or_a_traceback_if_wanted(monkeypatch, capsys) -> None:
    error = KeyError("lost")
    with pytest.raises(SystemExit) as end, explained("extend"):
        raise error
    assert end.value.code == 1
    assert re.fullmatch("skipwise: KeyError: 'lost'; .*\n", capsys.readouterr().err)
    monkeypatch.setenv("SKIPWISE_DEBUG", "1")
    with pytest.raises(KeyError), explained("extend"):
        raise error


@pytest.fixture
def _umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_umask")
@pytest.mark.parametrize(
    ("settings", "shared", "mode"), [({}, "", 0o600), ({"private": False}, "", 0o644), ({}, "1", 0o644)]
)
def test_files_are_the_users_alone_unless_they_are_handed_on(tmp_path, monkeypatch, settings, shared, mode) -> None:
    monkeypatch.setenv("SKIPWISE_SHARED", shared)
    prepare_process(**settings)
    (tmp_path / "file").touch()
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_a_command_line_is_recorded_without_secrets(monkeypatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr("skipwise.extend.extend", lambda *_, **__: seen.extend(sys.argv))
    run(monkeypatch, "extend", "--out", "https://me:mine@host/run", "--set", f"data.text_field=hf_{34 * 'x'}")
    assert seen[1:] == ["extend", "--out", "https://me:***@host/run", "--set", "data.text_field=***"]


def test_options_that_are_paths_know_the_home_folder(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").mkdir()
    (tmp_path / "t").mkdir()
    seen = []
    monkeypatch.setattr("skipwise.extend.extend", lambda recipe, **settings: seen.append((recipe, settings["out"])))
    run(monkeypatch, "extend", "~/m", "--data=~/t", "--out=~/r")
    [(recipe, out)] = seen
    assert (recipe.model, recipe.data.source, out) == (f"{tmp_path}/m", f"{tmp_path}/t", tmp_path / "r")


def test_of_several_processes_one_says_a_mistake_and_each_its_full_disk(monkeypatch, capsys) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for error, said in ((ModelError("known to all"), ""), (OSError(errno.ENOSPC, "No space left"), "No space left")):
        with pytest.raises(SystemExit), explained("extend"):
            raise error
        printed = capsys.readouterr().err
        assert said in printed
        assert bool(said) == bool(printed)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), OSError(12, "no memory")])
def test_a_full_memory_is_explained(capsys, error) -> None:
    with pytest.raises(SystemExit) as end, explained("convert"):
        raise error
    assert end.value.code == 1
    assert "memory" in capsys.readouterr().err.partition(";")[2]


def test_a_password_in_an_address_is_not_shown(monkeypatch, capsys) -> None:
    message = refused(monkeypatch, capsys, "extend", "--data", "https://me:mine@host/text")
    assert "https://me:***@host/text" in message


def test_a_model_has_its_own_recipe_or_the_defaults_however_it_is_named() -> None:
    for name, recipe in (("nano", "nano"), ("some/model", None)):
        wanted = load_recipe(recipe, {"model": name})
        assert _recipe(None, {"model": name}, None, False) == wanted
        assert _recipe(None, {"model": None}, [f"model={name}"], False) == wanted
    assert _recipe(None, {"model": None}, None, False) == load_recipe("nano")
    with pytest.raises(RecipeError):
        _recipe(None, {"model": None}, ["model=[1]"], False)
