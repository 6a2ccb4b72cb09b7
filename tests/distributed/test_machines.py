"""Two machines, stood in for by two agents of torchrun, each with a home, a cache, a working folder and copies of its own."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.test_engines import SETTINGS, extend, losses, needs_deepspeed
from tests.tiny import checkpoint, corpus


@pytest.fixture
def machines(tmp_path: Path) -> list[Path]:
    """Two working folders with the same model and text."""
    folders = [tmp_path / f"machine-{number}" for number in (0, 1)]
    for folder in folders:
        (folder / "home").mkdir(parents=True)
        checkpoint(folder / "base", window=64)
        corpus(folder / "text", documents=24, words=200)
    return folders


def extended(machines: list[Path], out: Path, *words: str) -> list[tuple[int, str]]:
    """Run extend on all machines at once; return how each agent ended, and what it and its process printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = ["--nnodes", str(len(machines)), "--nproc-per-node", "1"]
    meeting += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    command = ["-m", "skipwise", "extend", "base", "--data", "text", "--out", str(out), *words]
    command += [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    agents = []
    for rank, folder in enumerate(machines):
        environment = os.environ | {"HOME": str(folder / "home"), "SKIPWISE_CACHE": str(folder / "cache")}
        environment |= {
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
        }
        agents.append(
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *meeting, "--node-rank", str(rank), *command],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    printed = [agent.communicate(timeout=300)[0] for agent in agents]
    return [(agent.returncode, text) for agent, text in zip(agents, printed, strict=True)]


@pytest.mark.parametrize("words", [[], pytest.param(["--launch", "zero3"], marks=needs_deepspeed)])
def test_two_machines_train_as_one_process_does(machines, tmp_path, words: list[str]) -> None:
    ended = extended(machines, tmp_path / "shared" / "run", *words)
    assert [code for code, _ in ended] == [0, 0], ended
    alone = extend((machines[0] / "base", machines[0] / "text"), tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr
    assert losses(tmp_path / "shared" / "run") == pytest.approx(losses(tmp_path / "alone"), rel=1e-5)
    assert (machines[1] / "cache" / "tokens").is_dir()


@pytest.mark.parametrize(("part", "name"), [("text", "training text"), ("base", "base model")])
def test_a_machine_with_another_text_or_model_is_refused_before_training(
    machines, tmp_path, part: str, name: str
) -> None:
    shutil.rmtree(machines[1] / part)
    if part == "text":
        corpus(machines[1] / part, documents=24, words=201)
    else:
        checkpoint(machines[1] / part, window=64, rms_norm_eps=1e-4)
    ended = extended(machines, tmp_path / "shared" / "run")
    assert all(code for code, _ in ended), ended
    assert f"{name} differ from rank 0's" in " ".join(" ".join(text.split()) for _, text in ended)
    assert not (tmp_path / "shared" / "run" / "checkpoints").exists()
