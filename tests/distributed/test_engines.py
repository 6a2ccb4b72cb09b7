"""Two processes against one by the real command: the same global batch, the same losses, a stock checkpoint.

DDP runs anywhere, FSDP2 by ``fsdp_on_cpu.py``. ZeRO-3 over gloo needs the deepspeed package and a C++ compiler, which builds
its operators once: ``make test-distributed``.
"""

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from skipwise.model.loading import load_model
from skipwise.results.records import TrainingRecord, read_records
from tests.tiny import checkpoint, corpus

STEPS = 20
ON_CPU = Path(__file__).with_name("fsdp_on_cpu.py")
SETTINGS = {
    "target": 512,
    "data.held_out": 0.3,
    "training.max_steps": STEPS,
    "training.global_batch_size": 4,
    "training.learning_rate": 1e-3,
    "training.logging_steps": 1,
    "training.precision": "float32",
    "training.save_steps": 10,
    "evaluation.documents": 1,
    "evaluation.windows": "[128]",
    "evaluation.num_prompts": 0,
    "evaluation.models": "[trained]",
}
needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs deepspeed: make test-distributed")
zero3 = pytest.param(["--launch", "zero3", "--processes", "2"], marks=needs_deepspeed, id="zero3")
ddp = pytest.param(["--launch", "ddp", "--processes", "2"], id="ddp")
fsdp = pytest.param(["--launch", "fsdp"], id="fsdp")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("files")
    os.environ["SKIPWISE_CACHE"] = str(folder / "cache")
    # DeepSpeed's operators are built here: in the user's folder a build that was killed leaves a lock, and all wait.
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder / "extensions")
    # A vocabulary whose loss is computed in slices.
    return checkpoint(folder / "base", window=64, vocab_size=70_000), corpus(folder / "text", documents=24, words=200)


def start(files: tuple[Path, Path], out: Path, *words: str, **changes: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "skipwise"]
    if "fsdp" in words:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(ON_CPU)]
    command += ["extend", str(files[0]), "--data", str(files[1])]
    for key, value in {**SETTINGS, **changes}.items():
        command += ["--set", f"{key}={value}"]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONFAULTHANDLER"] = "1"  # a process that C++ aborts says where
    command += ["--out", str(out), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def extend(files: tuple[Path, Path], out: Path, *words: str, **options: object) -> subprocess.CompletedProcess:
    process = start(files, out, *words, **options)
    printed = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, *printed)


def losses(run: Path) -> list[float]:
    return [record.loss for record in read_records(run / "results.jsonl") if isinstance(record, TrainingRecord)]


@pytest.fixture(scope="module")
def alone(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "alone"
    done = extend(files, out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def train_as_alone(files, alone: Path, out: Path, words: list[str]) -> None:
    """Train in two processes, and require the losses and weights of one."""
    done = extend(files, out, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("run folder:") == 1  # one of them prints
    assert len(losses(out)) == STEPS
    assert losses(out) == pytest.approx(losses(alone), rel=1e-6)
    ours, theirs = (AutoModelForCausalLM.from_pretrained(run / "model").state_dict() for run in (out, alone))
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-6)


@needs_deepspeed
def test_two_processes_that_offload_train_as_one_does(files, alone, tmp_path) -> None:
    train_as_alone(files, alone, tmp_path / "two", ["--launch", "zero3-offload", "--processes", "2"])


@pytest.mark.parametrize("words", [ddp, fsdp, zero3])
def test_lora_trains_in_two_processes_as_in_one(files, tmp_path, words) -> None:
    saved = {"lora.modules_to_save": "[embeddings, norms, lm_head]"}
    for name, more in (("one", []), ("two", words)):
        done = extend(files, tmp_path / name, "--lora", *more, **saved, **{"training.max_steps": 4})
        assert done.returncode == 0, done.stdout + done.stderr
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-6)
    ours, theirs = (load_model(str(tmp_path / name / "model")).state_dict() for name in ("two", "one"))
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("words", [ddp, fsdp, zero3])
def test_two_processes_train_as_one_does_and_go_on_after_a_stop(files, alone, tmp_path, words) -> None:
    out = tmp_path / "two"
    train_as_alone(files, alone, out, words)
    wanted = load_model(str(out / "model")).state_dict()
    other = ["--launch", "zero3" if "ddp" in words else "ddp", "--processes", "2"]
    for lost in ("model", "checkpoints/checkpoint-20"):
        subprocess.run(["rm", "-r", out / lost], check=True)
    done = extend(files, out, *words, "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    for name, weight in load_model(str(out / "model")).state_dict().items():
        torch.testing.assert_close(weight, wanted[name], rtol=0, atol=1e-6)
    (out / "model").rename(out / "elsewhere")
    if find_spec("deepspeed") is not None:
        done = extend(files, out, *other, "--resume")
        assert done.returncode == 1
        assert f"{words[1]} in 2" in done.stderr
    (out / "checkpoints" / "checkpoint-20" / "complete.json").unlink()
    done = extend(files, out, "--resume")
    assert done.returncode == 1
    assert f"{words[1]} in 2" in done.stderr


def test_a_process_that_dies_ends_the_other_and_the_run_is_resumed(files, tmp_path) -> None:
    out, words = tmp_path / "run", ["--launch", "ddp", "--processes", "2"]
    short = {"training.max_steps": 6, "training.save_steps": 2}
    launcher = start(files, out, *words, **short)
    while not list(out.glob("checkpoints/*/complete.json")):
        assert launcher.poll() is None, launcher.communicate()
        time.sleep(0.05)
    killed, other = map(int, Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()[:2])
    os.kill(killed, signal.SIGKILL)
    launcher.communicate(timeout=120)
    assert launcher.returncode == 1
    assert not Path(f"/proc/{other}").exists()
    done = extend(files, out, *words, "--resume", **short)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(losses(out)) == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--launch", "zero", "--processes", "2"], "--launch 'zero' is unknown (did you mean zero3?)"),
        (["--launch", "ddp", "--processes", "3"], "training.global_batch_size = 4 must be a multiple of 3"),
        (["--launch", "ddp", "--processes", "2", "--set", "target=16"], "target 16 must exceed the 64"),
    ],
)
def test_bad_input_is_said_once_and_without_a_traceback(files, tmp_path, words, message) -> None:
    done = extend(files, tmp_path / "run", *words)
    assert done.returncode == 1
    told = " ".join(done.stderr.split())
    assert told.count(message) == 1, told
    assert "Traceback" not in told
