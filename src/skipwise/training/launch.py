"""Start a command in several processes on this machine, under DDP, FSDP or ZeRO-3."""

import logging
import os
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from skipwise.errors import RecipeError, TrainingError, one_of, pip_install
from skipwise.results.run_folder import LAUNCHED_BY, command_line
from skipwise.training.processes import ENGINE

ENGINES = ("ddp", "fsdp", "zero3", "zero3-offload")
_OPERATORS = ("deepspeed_shm_comm", "cpu_adam", "fused_adam", "utils")  # that DeepSpeed builds for ZeRO-3
_LONGEST_BUILD = 30 * 60  # seconds, far more than any of them takes


def processes_of(engine: str, processes: int | None) -> int:
    """Return how many processes to start: ``processes``, or one for each GPU."""
    one_of("--launch", engine, ENGINES)
    gpus = torch.cuda.device_count()
    processes = max(gpus, 1) if processes is None else processes
    if processes < 2:
        raise RecipeError(
            f"--launch {engine} starts several processes, not {processes}: give --processes, or leave --launch out"
        )
    if gpus and processes > gpus:
        raise RecipeError(
            f"--processes {processes} needs as many GPUs, and this machine has {gpus}: lower it, or leave it out to start one "
            "for each GPU"
        )
    if engine == "fsdp" and not gpus:
        raise RecipeError(
            "--launch fsdp needs GPUs, and this machine has none: choose ddp, or zero3 with the deepspeed package"
        )
    if engine.startswith("zero3"):
        if find_spec("deepspeed") is None:
            raise RecipeError(f"{engine} needs the deepspeed package: {pip_install('deepspeed')}")
        _refuse_abandoned_builds()
    return processes


def launch(engine: str, processes: int, words: Sequence[str]) -> None:
    """Run ``skipwise`` with ``words`` in each process, by torch's own launcher (torchrun)."""
    before = dict(os.environ)
    for name in ("torch.distributed.elastic", "torch.distributed.run"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the failed process prints its error itself
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id="skipwise",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.5,
    )
    try:
        os.environ[ENGINE], os.environ[LAUNCHED_BY] = engine, command_line()
        os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")  # engines call functions that torch renamed
        # -P: else -m would import what lies in the user's working folder under a module's name
        elastic_launch(config, sys.executable)("-P", "-m", "skipwise", *words)
    except SignalException as stop:
        raise SystemExit(128 + stop.sigval) from None
    except ChildFailedError as failure:
        codes = [error.exitcode for error in failure.failures.values() if error.exitcode > 0]
        raise SystemExit(min(codes, default=1)) from None
    finally:  # what this process does next, no launcher began
        for name in (ENGINE, LAUNCHED_BY, "PYTHONWARNINGS"):
            os.environ.pop(name, None)
            os.environ.update({name: before[name]} if name in before else {})


def _refuse_abandoned_builds() -> None:
    """Refuse the lock of a build of DeepSpeed's operators that was killed: torch waits for its end without a limit."""
    from torch.utils.cpp_extension import get_default_build_root  # it imports setuptools

    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    locks = (lock for name in _OPERATORS for folder in (name, f"*/{name}") for lock in root.glob(f"{folder}/lock"))
    for lock in locks:
        try:
            age = time.time() - lock.stat().st_mtime
        except FileNotFoundError:  # its build has just ended
            continue
        if age > _LONGEST_BUILD:
            raise TrainingError(
                f"DeepSpeed would wait for a build of its operators that was stopped {age / 3600:.1f} hours ago and "
                f"left its lock; if no process builds there, delete the lock and repeat the command: rm '{lock}'"
            )
