"""What a command does with its process: messages, signals, rights of files."""

import errno
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.main import get_command

from skipwise.cli import app
from skipwise.cli.terminal import explained, new_console, prepare_process, readable
from skipwise.errors import ModelError
from tests.command_line import refused, run

SLOW = """
import os, signal, sys, time
import skipwise.method.coverage as place
from pathlib import Path
def wait(*args, **options):
    try:
        Path("waiting").touch()
        time.sleep(60)
    finally:
        Path("saved").touch()
place.coverage = wait
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored by what runs in the background
from skipwise.cli import main
sys.argv = ["skipwise", "plan", "nano", "--coverage"]
main()
"""

TORCH_BEGINS = """
import os, sys
class Watch:
    def find_spec(name, *args):
        if name == "torch":
            print("spins:", os.environ.get("GOMP_SPINCOUNT"))
sys.meta_path.insert(0, Watch)
from skipwise.cli import main
sys.argv = ["skipwise", "evaluate", "nowhere", "--data", "nothing"]
main()
"""
THREADS_COMPUTE = """
import os, runpy, sys, threading, torch
def compute():
    while True:
        torch.zeros(100) + 1
for _ in range(2):
    threading.Thread(target=compute, daemon=True).start()
sys.argv = ["skipwise", *sys.argv[1:]]
import skipwise.cli
begun = skipwise.cli.main
def main():
    os.environ.pop("RANK", None)  # as a run does once it is trained
    begun()
skipwise.cli.main = main
runpy.run_module("skipwise", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("given", "spins"),
    [
        ({}, "1000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, "None"),
        ({"OMP_WAIT_POLICY": ""}, "1000"),
    ],
)
def test_threads_that_wait_stop_spinning_soon_unless_the_user_says_otherwise(given: dict[str, str], spins: str) -> None:
    left = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", TORCH_BEGINS], capture_output=True, text=True, env={**left, **given})
    assert done.stdout.split("\n")[0] == f"spins: {spins}"  # when torch, and with it OpenMP, is loaded


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_in_one_sentence_and_leaves_what_ctrl_c_leaves(tmp_path: Path, number: int, status: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", SLOW], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "waiting").exists():
        assert process.poll() is None
    process.send_signal(number)
    _, printed = process.communicate(timeout=60)
    assert (process.returncode, printed.strip()) == (status, "skipwise: stopped")
    assert (tmp_path / "saved").exists()


def test_sigterm_is_told_what_goes_on_and_the_handler_before_is_restored(monkeypatch, capsys) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end, explained("extend"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert end.value.code == 143
    assert "the same command with --resume goes on" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_forked_worker_ends_at_once_and_says_nothing(capfd) -> None:
    with explained("extend"):
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(7)
        _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert "stopped" not in capfd.readouterr().err


def test_a_process_of_a_launcher_keeps_the_default(monkeypatch) -> None:
    monkeypatch.setenv("RANK", "0")
    before = signal.getsignal(signal.SIGTERM)
    with explained("extend"):
        assert signal.getsignal(signal.SIGTERM) is before


def test_a_process_of_a_launcher_ends_well_while_threads_compute() -> None:
    """As the process group's do; Python's own end would abort the process."""
    environment = {**os.environ, "RANK": "0", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-c", THREADS_COMPUTE, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("skipwise ")  # what was printed is not lost


def test_a_process_of_a_launcher_keeps_the_status_of_an_error() -> None:
    command = [sys.executable, "-m", "skipwise", "evaluate", "nowhere", "--data", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "RANK": "0"})
    assert (done.returncode, done.stderr.startswith("skipwise: model 'nowhere'")) == (1, True)


def test_the_launcher_of_several_processes_says_that_it_was_stopped(capsys) -> None:
    with pytest.raises(SystemExit) as end, explained("extend"):
        raise SystemExit(143)  # as training.launch ends
    assert end.value.code == 143
    assert "--resume goes on" in capsys.readouterr().err


def test_a_message_is_a_paragraph_without_unsafe_advice() -> None:
    advice = "The file is old. Set weights_only=False to load it. Pass trust_remote_code=True; fetch it again."
    assert readable(advice) == "The file is old. fetch it again."
    assert readable("word " * 1000).endswith(" characters more)")
    assert len(readable("word " * 1000)) < 1300
    assert readable("x" * 1200) == "x" * 1200


def test_what_a_command_refuses_is_made_readable(capsys) -> None:
    with pytest.raises(SystemExit), explained("plan"):
        raise ModelError("Broken. Use trust_remote_code=True. " + "x" * 5000)
    printed = capsys.readouterr().err
    assert "trust_remote_code" not in printed
    assert len(printed) < 1400


@pytest.mark.parametrize("number", [errno.EISDIR, errno.ENAMETOOLONG, errno.EACCES, errno.ENOTDIR, errno.ENOENT])
def test_a_path_that_cannot_be_used_is_named(capsys, number: int) -> None:
    with pytest.raises(SystemExit) as end, explained("report"):
        raise OSError(number, os.strerror(number), "some/path")
    assert end.value.code == 1
    assert f"skipwise: some/path cannot be used: {os.strerror(number)}; correct the path" in capsys.readouterr().err


@pytest.mark.parametrize("said", ["[gloo] Connection closed by peer [127.0.0.1]:1", "NCCL communicator was aborted"])
def test_a_process_whose_peer_is_gone_says_so_whatever_its_rank(monkeypatch, capsys, said: str) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as end, explained():
        raise RuntimeError(said)
    assert end.value.code == 1
    assert "another process of this run has ended" in capsys.readouterr().err
    monkeypatch.delenv("RANK")
    with pytest.raises(RuntimeError), explained():
        raise RuntimeError(said)


def test_other_errors_of_the_system_are_ours() -> None:
    with pytest.raises(OSError, match="bad descriptor"), explained("report"):
        raise OSError(errno.EBADF, "bad descriptor")


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


@pytest.mark.usefixtures("_umask")
@pytest.mark.parametrize("words", [["export", "nano"], ["convert", "nano", "out"]])
def test_what_is_handed_on_keeps_the_users_rights(monkeypatch, capsys, words: list[str]) -> None:
    def stop(*args, **kwargs) -> None:
        raise ModelError("stopped here")

    monkeypatch.setattr("skipwise.engines.export.export", stop)
    monkeypatch.setattr("skipwise.model.convert.convert", stop)
    assert "stopped here" in refused(monkeypatch, capsys, *words)
    assert os.umask(0o022) == 0o022


def test_a_command_line_is_recorded_without_secrets(monkeypatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr("skipwise.extend.extend", lambda *_, **__: seen.extend(sys.argv))
    run(monkeypatch, "extend", "--data", "https://me:mine@host/text", "--set", f"data.text_field=hf_{34 * 'x'}")
    assert seen[1:] == ["extend", "--data", "https://me:***@host/text", "--set", "data.text_field=***"]


def test_the_processes_that_are_launched_get_the_words_as_they_are(monkeypatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("skipwise.training.processes.launch", lambda *_: started.append(_[2]))
    run(monkeypatch, "extend", "--launch", "ddp", "--processes", "2", "--data", f"hf_{34 * 'x'}/")
    assert started == [["extend", "--data", f"hf_{34 * 'x'}/"]]
    assert sys.argv[-1] == "***/"  # of which records are made


def test_options_that_are_paths_know_the_home_folder(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").mkdir()
    seen = []
    monkeypatch.setattr("skipwise.extend.extend", lambda recipe, **settings: seen.append((recipe, settings["out"])))
    run(monkeypatch, "extend", "~/m", "--data=~/t", "--out=~/r")
    [(recipe, out)] = seen
    assert (recipe.model, recipe.data.source, out) == (f"{tmp_path}/m", f"{tmp_path}/t", tmp_path / "r")
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, "report", "")
    assert end.value.code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "nano", "--seed", "-1"],
        ["evaluate", "nano", "--seed", str(2**70)],
        ["evaluate", "nano", "--trials", str(10**18)],
    ],
)
def test_numbers_that_nobody_waits_for_are_refused(monkeypatch, capsys, words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, *words)
    assert end.value.code == 2
    assert "Invalid value for" in capsys.readouterr().err


def test_a_rank_that_another_job_left_silences_nothing(monkeypatch, capsys) -> None:
    monkeypatch.setenv("RANK", "abc")
    assert not new_console().quiet
    with pytest.raises(SystemExit), explained("extend"):
        raise ModelError("it has no weights")
    assert "it has no weights" in capsys.readouterr().err


def test_of_several_processes_one_says_a_mistake_and_each_its_full_disk(monkeypatch, capsys) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for error, said in ((ModelError("known to all"), ""), (OSError(errno.ENOSPC, "No space left"), "No space left")):
        with pytest.raises(SystemExit), explained("extend"):
            raise error
        printed = capsys.readouterr().err
        assert said in printed
        assert bool(said) == bool(printed)


def test_a_full_gpu_is_explained(capsys) -> None:
    """As while a model is loaded beside another program's, where no stage knows what to lower."""
    said = "CUDA out of memory. GPU 0 has 79 GiB of which 5 MiB is free. Of the allocated memory 3 GiB is reserved."
    with pytest.raises(SystemExit) as end, explained("extend"):
        raise torch.OutOfMemoryError(said)
    assert end.value.code == 1
    printed = capsys.readouterr().err
    assert "of which 5 MiB is free); what was written is kept. End other programs" in printed
    assert "reserved" not in printed


@pytest.mark.parametrize(
    "error", [RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryError(), OSError(12, "no memory")]
)
@pytest.mark.parametrize("command", ["extend", "evaluate", "convert"])
def test_a_full_memory_is_explained_by_options_that_the_command_has(capsys, error, command) -> None:
    with pytest.raises(SystemExit) as end, explained(command):
        raise error
    assert end.value.code == 1
    printed = capsys.readouterr().err
    assert "what was written is kept. End other programs" in printed
    has = {option for each in get_command(app).commands[command].params for option in each.opts}
    assert set(re.findall(r"--[a-z-]+", printed)) <= has
    assert ("--" in printed) is (command != "convert")


def test_a_password_in_an_address_is_not_shown(monkeypatch, capsys) -> None:
    message = refused(monkeypatch, capsys, "extend", "--data", "https://me:mine@host/text")
    assert "https://me:***@host/text" in message
