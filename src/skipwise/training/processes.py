"""Train in several processes: torchrun or ``accelerate launch`` starts them, accelerate connects them.

All processes load the model and train. Rank 0 alone fills caches, writes the run folder, prints and measures.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from importlib import resources
from importlib.util import find_spec
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from skipwise.errors import RecipeError, SkipwiseError, TrainingError, one_of, pip_install
from skipwise.model.forward import default_device

ENGINE = "SKIPWISE_ENGINE"  # environment variable of ``--launch``
_ENGINES = ("ddp", "fsdp", "zero3", "zero3-offload")
_ACCELERATE = {"ACCELERATE_USE_DEEPSPEED": "zero3", "ACCELERATE_USE_FSDP": "fsdp"}
_LONGEST_WAIT = timedelta(days=7)  # rank 0 may tokenise for hours while the others wait


def choose_engine(engine: str) -> None:
    """Set the engine of this run, also where another launcher started this process; refuse one that cannot run here."""
    one_of("--launch", engine, _ENGINES)
    if engine.startswith("zero3") and find_spec("deepspeed") is None:
        raise RecipeError(f"{engine} needs the deepspeed package: {pip_install('deepspeed')}")
    if engine == "fsdp" and default_device().type == "cpu":  # accelerate would replace it by DDP
        raise RecipeError("--launch fsdp needs GPUs; choose ddp or zero3")
    os.environ[ENGINE] = engine


def processes_of(engine: str, processes: int | None) -> int:
    """Return the number of processes to start: ``processes``, or one for each GPU."""
    processes = max(torch.cuda.device_count(), 1) if processes is None else processes
    if processes < 2:
        raise RecipeError(f"--launch {engine} needs 2 or more processes, not {processes}; give --processes")
    return processes


def launch(processes: int, words: Sequence[str]) -> None:
    """Run ``skipwise`` with ``words`` in each process by torchrun, which ends all if one dies."""
    os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")  # engines call functions that torch renamed
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the process prints its own error
    meeting: dict[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "skipwise"}
    config = LaunchConfig(1, 1, processes, **meeting, max_restarts=0, monitor_interval=0.5)
    try:
        # Without -P, -m imports skipwise from the user's working folder.
        elastic_launch(config, sys.executable)("-P", "-m", "skipwise", *words)
    except SignalException as stop:
        raise SystemExit(128 + stop.sigval) from None
    except ChildFailedError:
        raise SystemExit(1) from None


def launched() -> int:
    """Return the number of processes of this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def engine() -> str:
    """Return the engine of this run: ddp, also of a single process, fsdp or zero3."""
    if launched() == 1:
        return "ddp"
    by_accelerate = (name for key, name in _ACCELERATE.items() if os.environ.get(key, "").lower() in ("true", "1"))
    return os.environ.get(ENGINE, "").removesuffix("-offload") or next(by_accelerate, "ddp")


def sharding(planned: str | None = None) -> str | None:
    """Return the engine that shards the model, None if each process holds it; ``planned`` is that of a dry run."""
    name = planned.removesuffix("-offload") if planned else engine()
    return None if name == "ddp" else name


def engine_settings() -> dict[str, Any]:
    """Return the ``TrainingArguments`` fields of ``--launch``; none without it, or in the one process of a dry run."""
    if launched() == 1:
        return {}
    file = resources.files("skipwise").joinpath("training", "launchers", f"{os.environ.get(ENGINE)}.json")
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _state() -> PartialState:
    return PartialState(cpu=default_device().type == "cpu", timeout=_LONGEST_WAIT)


def is_first() -> bool:
    """Return whether this process is rank 0."""
    return launched() == 1 or _state().is_main_process


def broadcast(value: Any) -> Any:
    """Return the value of rank 0 in every process."""
    return broadcast_object_list([value])[0] if launched() > 1 else value


@contextmanager
def together(*, rank_0_first: bool = False) -> Iterator[None]:
    """End every process if one has an error in this context; others raise a TrainingError.

    With ``rank_0_first`` rank 0 runs it before the others, which then use its caches.
    """
    error = None
    with _state().main_process_first() if rank_0_first and launched() > 1 else nullcontext():
        try:
            yield
        except SkipwiseError as raised:  # inside accelerate's context it would leave the others waiting
            error = raised
    messages = gather_object([str(error or "")]) if launched() > 1 else []
    if error is not None:
        raise error
    if failed := [f"process {rank}: {message}" for rank, message in enumerate(messages) if message]:
        raise TrainingError(failed[0])


def load_in_shards() -> bool:
    """Let one process of a machine read weights, for its engine to divide; return False in the others under FSDP."""
    if engine() == "fsdp":
        os.environ["ACCELERATE_USE_FSDP"] = "true"  # transformers then computes the buffers of empty models
        return _state().is_local_main_process
    import deepspeed

    deepspeed.init_distributed(verbose=False)
    return True


def finish() -> None:
    """End distributed training; rank 0 continues alone and loads whole models."""
    if launched() == 1:
        return
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    PartialState._reset_state()
    unset_hf_deepspeed_config()
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", ENGINE, *_ACCELERATE):
        os.environ.pop(name, None)
