"""Seal, choose, verify and remove the checkpoints of a run.

A complete checkpoint has ``complete.json``, written last: its manifest, and the engine and number of processes that wrote
it. A folder without it is a torn checkpoint and is ignored. A lost or changed file is refused.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from accelerate.utils import patch_environment

from skipwise.errors import RunError, TrainingError, out_of_room
from skipwise.results import files
from skipwise.training import processes

MARKER = "complete.json"


def mark_complete(checkpoint: Path, engine: str = "ddp", processes: int = 1) -> None:
    """Write the marker of ``checkpoint``."""
    if not [*checkpoint.glob("model*.safetensors"), *checkpoint.glob("adapter_model.safetensors")]:
        raise TrainingError(
            f"{checkpoint} has no model.safetensors. Set FSDP's state_dict_type to FULL_STATE_DICT, or ZeRO-3's "
            f"stage3_gather_16bit_weights_on_model_save to true; {intact(checkpoint.parent)}"
        )
    paths = (path for path in checkpoint.rglob("*") if path.is_file() and path.name != MARKER)
    names = sorted(path.relative_to(checkpoint).as_posix() for path in paths)
    written_by = {"engine": engine, "processes": processes}
    files.write_json(checkpoint / MARKER, written_by | {"files": files.seal(checkpoint, names)})
    files.sync_folder(checkpoint.parent)


def latest_complete(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, verified, or None."""
    newest = next(reversed(_complete(folder)), None)
    if newest:
        verify(newest)
    return newest


def verify(checkpoint: Path) -> None:
    """Require every file of the marker, unchanged."""
    files.require_sealed(checkpoint, _read_marker(checkpoint)["files"], _ways_on(checkpoint))


def require_same_setup(checkpoint: Path, engine: str, processes: int) -> None:
    """Require the engine and number of processes that wrote ``checkpoint``: others would draw other dropout."""
    marker = _read_marker(checkpoint)
    if (written := (marker["engine"], marker["processes"])) != (engine, processes):
        raise RunError(
            f"{checkpoint} was written by {written[0]} in {written[1]} process(es), and this is {engine} in {processes}; "
            "launch it as before for an exact resume"
        )


@contextmanager
def weights_only(checkpoint: Path | None) -> Iterator[None]:
    """Restrict pickles to tensors, plain values and DeepSpeed's settings; DeepSpeed would run a forged one's code."""
    known = []
    if find_spec("deepspeed") and processes.engine() == "zero3":
        from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
        from deepspeed.runtime.zero.config import ZeroStageEnum

        known = [DynamicLossScaler, LossScaler, ZeroStageEnum]
    try:
        with patch_environment(torch_force_weights_only_load="1"), torch.serialization.safe_globals(known):
            yield
    except UnpicklingError as error:
        raise RunError(f"{checkpoint} holds a foreign pickle, which is not executed; {_ways_on(checkpoint)}") from error


@contextmanager
def disk_errors(what: str, folder: Path) -> Iterator[None]:
    """Explain a full disk while ``what`` is written, with the newest checkpoint in ``folder``."""
    try:
        yield
    except Exception as error:  # torch.save and safetensors have types of their own
        if not out_of_room(error):
            raise
        raise TrainingError(
            f"the disk is full: {what} was not written. Make room, and continue with --resume; {intact(folder)}"
        ) from error


def intact(folder: Path) -> str:
    """Return a phrase on the newest complete checkpoint: ``checkpoint 400 is intact``."""
    checkpoints = _complete(folder)
    return f"checkpoint {step_of(checkpoints[-1])} is intact" if checkpoints else "there is no checkpoint yet"


def discard(checkpoint: Path) -> None:
    """Remove ``checkpoint``, its marker first, so that an interrupted removal leaves a torn checkpoint."""
    (checkpoint / MARKER).unlink(missing_ok=True)
    if checkpoint.exists():
        files.sync_folder(checkpoint)
        shutil.rmtree(checkpoint)


def rotate(folder: Path, keep: int, best: int | None = None) -> None:
    """Remove all checkpoints but the newest ``keep`` complete ones and that of step ``best``."""
    newest = _complete(folder)[-keep:]
    for checkpoint in _checkpoints(folder):
        if checkpoint not in newest and step_of(checkpoint) != best:
            discard(checkpoint)


def step_of(checkpoint: Path) -> int:
    """Return the number of steps trained at ``checkpoint-N``."""
    return int(checkpoint.name.split("-", 1)[1])


def _checkpoints(folder: Path) -> list[Path]:
    """Return every ``checkpoint-N``, complete or torn, by N."""
    return sorted((path for path in folder.glob("checkpoint-*") if path.name[11:].isdecimal()), key=step_of)


def _complete(folder: Path) -> list[Path]:
    """Return the checkpoints with a marker, oldest first; their files are not read."""
    return [path for path in _checkpoints(folder) if (path / MARKER).is_file()]


def _ways_on(checkpoint: Path | None) -> str:
    return f"restore it, or delete {checkpoint} to resume from the checkpoint before it"


def _read_marker(checkpoint: Path) -> dict[str, Any]:
    try:
        marker = files.read_json(checkpoint / MARKER)
        return {name: marker[name] for name in ("engine", "processes", "files")}
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{checkpoint / MARKER} is damaged ({error}); {_ways_on(checkpoint)}") from error
