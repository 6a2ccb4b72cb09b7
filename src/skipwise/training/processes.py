"""Several processes of one run, as torchrun or ``accelerate launch`` starts them; what only the first of them does.

All load the model and train. The first alone prepares what is cached, writes the run folder, prints and measures.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import resources
from importlib.util import find_spec
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from skipwise.errors import RecipeError, TrainingError

ENGINE = "SKIPWISE_ENGINE"  # set by ``skipwise extend --launch``
_ACCELERATE = {"ACCELERATE_USE_DEEPSPEED": "zero3", "ACCELERATE_USE_FSDP": "fsdp"}
_WRAPPERS = {
    "ddp": {"DistributedDataParallel"},
    "fsdp": {"FSDPModule", "FullyShardedDataParallel"},
    "zero3": {"DeepSpeedEngine"},
}


def launched() -> int:
    """How many processes the launcher says it started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def engine() -> str:
    """What holds the model in several processes: ddp, or fsdp or zero3 in shares, as the launcher says it."""
    if ENGINE in os.environ:
        return os.environ[ENGINE].removesuffix("-offload")
    asked = [
        name for key, name in _ACCELERATE.items() if os.environ.get(key, "").lower() in ("true", "1", "yes")
    ]
    return asked[0] if asked else "ddp"


def engine_settings() -> dict[str, Any]:
    """The fields of ``TrainingArguments`` that the shipped configuration of the engine sets; none without --launch."""
    file = resources.files("skipwise").joinpath("engines", f"{os.environ.get(ENGINE)}.json")
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def require_engine_installed(name: str) -> None:
    """Refuse ZeRO-3 without DeepSpeed.

    Raises:
        RecipeError: the extra to install.
    """
    if name.startswith("zero3") and find_spec("deepspeed") is None:
        raise RecipeError(f"{name} needs the deepspeed package: pip install 'skipwise[deepspeed]'")


def is_first() -> bool:
    """Whether this process prints, writes and measures."""
    return launched() == 1 or _state().is_main_process


@contextmanager
def first_ahead() -> Iterator[None]:
    """The others wait until the first is through, and find what it cached, or make the mistake that it made."""
    if launched() == 1:
        yield
        return
    if not is_first():
        _state().wait_for_everyone()
        yield
        return
    try:
        yield
    finally:
        _state().wait_for_everyone()


def told_by_first(value: Any) -> Any:
    """What the first process passes here, in every process; an end of the first ends the others without a word."""
    if launched() == 1:
        return value
    _state()
    told = [value]
    try:
        broadcast_object_list(told)
    except RuntimeError:  # its message is the run's
        raise SystemExit(1) from None
    return told[0]


def require_engine(wrapped: torch.nn.Module) -> None:
    """Require what trains to be what was asked for.

    Raises:
        TrainingError: it is not; on a CPU accelerate takes plain data parallelism for FSDP without a word.
    """
    if launched() == 1:
        return
    kinds = {kind.__name__ for kind in type(wrapped).__mro__}
    if not kinds & _WRAPPERS[engine()]:
        raise TrainingError(
            f"{engine()} was asked for, and what trains is a {type(wrapped).__name__}, in which nothing is shared out: "
            "FSDP needs GPUs; take ddp, or zero3 with the deepspeed package"
        )


def finish() -> None:
    """Training is over: the first goes on as a process of its own, and loads models whole."""
    if launched() == 1:
        return
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    PartialState._reset_state()
    unset_hf_deepspeed_config()
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", ENGINE, *_ACCELERATE):
        os.environ.pop(name, None)


def _state() -> PartialState:
    # The first may tokenise for hours before the others hear of it.
    return PartialState(cpu=not torch.accelerator.is_available(), timeout=timedelta(days=7))
