"""Several processes of one run, as torchrun or ``accelerate launch`` starts them.

All processes load the model and train. Only the first one fills caches, writes the run folder, prints and measures.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import resources
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from skipwise.errors import PeerError, SkipwiseError, TrainingError, reason
from skipwise.model.precision import default_device

MEETING = timedelta(minutes=10)  # in which all processes of a run must begin; on a cluster one imports for minutes
ENGINE = "SKIPWISE_ENGINE"  # set by ``skipwise extend --launch``
_AGAIN = "start all of them again, with --resume where a run folder was begun"
_ACCELERATE = {"ACCELERATE_USE_DEEPSPEED": "zero3", "ACCELERATE_USE_FSDP": "fsdp"}
_WRAPPERS = {
    "ddp": {"DistributedDataParallel"},
    "fsdp": {"FSDPModule", "FullyShardedDataParallel"},
    "zero3": {"DeepSpeedEngine"},
}


def launched() -> int:
    """Return how many processes the launcher started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def engine() -> str:
    """Return the engine of a run in several processes: ddp, or fsdp or zero3, which shard the model."""
    if ENGINE in os.environ:
        return os.environ[ENGINE].removesuffix("-offload")
    asked = [name for key, name in _ACCELERATE.items() if os.environ.get(key, "").lower() in ("true", "1", "yes")]
    return asked[0] if asked else "ddp"


def sharding(launch: str | None = None) -> str | None:
    """Return the engine that shards the model in this run, or in one that ``--launch`` begins; None if each process holds it."""
    name = launch.removesuffix("-offload") if launch else engine() if launched() > 1 else "ddp"
    return None if name == "ddp" else name


def engine_settings() -> dict[str, Any]:
    """Return the ``TrainingArguments`` fields of the engine's shipped configuration; none without --launch."""
    file = resources.files("skipwise").joinpath("training", "launchers", f"{os.environ.get(ENGINE)}.json")
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def is_first() -> bool:
    """Return whether this process prints, writes and measures."""
    return launched() == 1 or _state().is_main_process


@contextmanager
def first_ahead() -> Iterator[None]:
    """Let the first process run this context before the others, which then use its caches or meet the same error."""
    if launched() == 1:
        yield
        return
    first = is_first()
    if not first:
        _state().wait_for_everyone()
    try:
        yield
    finally:
        if first:
            _state().wait_for_everyone()


def told_by_first(value: Any) -> Any:
    """Return in every process the value that the first one passes.

    Raises:
        PeerError: the first has ended.
    """
    if launched() == 1:
        return value
    _state()
    values = [value]
    try:
        broadcast_object_list(values)
    except RuntimeError as error:
        if is_first():
            raise
        raise PeerError(f"process 0 has stopped: its own message says why, unless it was killed; {_AGAIN}") from error
    return values[0]


def end_together(error: SkipwiseError | None) -> None:
    """End every process if one has met an error, each with its own or with that of the other.

    Raises:
        SkipwiseError: this process's own.
        TrainingError: another's.
    """
    if launched() > 1:
        _state()
        told = gather_object([str(error or "")])
        number = next((number for number, text in enumerate(told) if text), None)
        if number is not None and error is None:
            raise TrainingError(f"process {number}: {told[number]}")
    if error is not None:
        raise error


def require_engine(wrapped: torch.nn.Module) -> None:
    """Require the wrapped model to be of the requested engine; on a CPU, accelerate silently replaces FSDP by DDP."""
    if launched() == 1:
        return
    wrapped = getattr(wrapped, "_orig_mod", wrapped)  # of a compiled one
    kinds = {kind.__name__ for kind in type(wrapped).__mro__}
    if not kinds & _WRAPPERS[engine()]:
        raise TrainingError(
            f"{engine()} was asked for, and what trains is a {type(wrapped).__name__}, which does not shard the model: "
            "FSDP needs GPUs; choose ddp, or zero3 with the deepspeed package"
        )


def finish() -> None:
    """End distributed training; the first process continues alone and loads whole models."""
    if launched() == 1:
        return
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    PartialState._reset_state()
    unset_hf_deepspeed_config()
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", ENGINE, *_ACCELERATE):
        os.environ.pop(name, None)


def _state() -> PartialState:
    met = None if PartialState._shared_state else _meet()
    try:  # the first process may tokenise for hours while the others wait
        state = PartialState(cpu=default_device().type == "cpu", timeout=timedelta(days=7))
    except RuntimeError as error:  # as when another process is killed right after it has begun
        raise PeerError(
            f"the {launched()} processes have begun, but cannot join ({reason(error)}); look at what the others printed. "
            f"{_AGAIN.capitalize()}"
        ) from error
    del met  # until here, so that the first process serves one store for both
    return state


def _meet() -> torch.distributed.Store:
    """Wait until every process has begun.

    If a process dies after this meeting, the others notice at once. If it dies before, they notice only after ``MEETING``, and
    there may be no launcher that ends them earlier.
    """
    try:
        store, rank, processes = next(torch.distributed.rendezvous("env://", timeout=MEETING))
        store.set(f"skipwise/{rank}", "begun")
        store.wait([f"skipwise/{number}" for number in range(processes)], MEETING)
    except ValueError as error:  # of a variable that is not there
        raise TrainingError(
            f"WORLD_SIZE says that this is one of {launched()} processes, but not how to find the others ({error}); start "
            "them with --launch, torchrun or accelerate launch"
        ) from error
    except RuntimeError as error:  # torch's errors of a store
        raise PeerError(
            f"of {launched()} processes not all have begun within {MEETING.total_seconds():.0f} s; look at what the others "
            f"printed. {_AGAIN.capitalize()}"
        ) from error
    return store
