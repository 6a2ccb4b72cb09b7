"""Checkpoints of a run: which are complete, and how they are sealed, verified and rotated.

A checkpoint is complete if it holds ``complete.json``, the list of its files with sizes and digests, which is written
last and names the run that it belongs to. A folder without it is an incomplete checkpoint, left by an interrupted save
or removal, and is ignored. A complete checkpoint that has lost or changed a file is refused, because a resume would
continue with other weights.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from skipwise.errors import RunError, TrainingError
from skipwise.results import files
from skipwise.results.files import sync_folder
from skipwise.training import processes

MARKER = "complete.json"
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch's, for every call

# What a resume reads, and the file names that Trainer alone, FSDP and DeepSpeed give it.
_PARTS = {
    "model.safetensors": ("model*.safetensors", "adapter_model.safetensors"),
    "optimizer.pt": ("optimizer.pt", "optimizer.bin", "optimizer_*/*", "global_step*_optim_states.pt"),
    "scheduler.pt": ("scheduler.pt", "global_step*_model_states.pt"),
    "rng_state.pth": ("rng_state*.pth",),
    "trainer_state.json": ("trainer_state.json",),
}


def mark_complete(checkpoint: Path, run: str = "") -> None:
    """Seal ``checkpoint`` of ``run`` (``RunFolder.identity``), which must have all files that a resume needs."""
    if missing := _missing_parts(_names(checkpoint)):
        raise TrainingError(
            f"{checkpoint} was written without {missing[0]}, so training cannot be resumed from it or finished; let "
            "Trainer save it (no training.save_only_model; for a sharded model: fsdp_state_dict_type FULL_STATE_DICT, "
            f"or ZeRO-3's stage3_gather_16bit_weights_on_model_save); {intact(checkpoint.parent)}"
        )
    seal(checkpoint, run)


def seal(folder: Path, run: str = "") -> None:
    """Write the marker of ``folder``, after all its files are on the disk."""
    files.write_json(folder / MARKER, {"run": run, "files": files.seal(folder, _names(folder))})
    sync_folder(folder.parent)


def verify(checkpoint: Path) -> None:
    """Require every file that the marker of ``checkpoint`` lists, with the bytes that training wrote.

    They are read as safetensors, as JSON or in ``weights_only``.
    """
    way_out = f"restore it, or delete {checkpoint} to resume from {_before(checkpoint)}"
    if missing := _missing_parts(_read_marker(checkpoint)["files"]):
        raise RunError(f"{checkpoint / MARKER} does not list {missing[0]}, which an exact resume needs; {way_out}")
    require_sealed(checkpoint, way_out)


def require_sealed(folder: Path, way_out: str) -> None:
    """Require every file that the marker of ``folder`` lists, unchanged; an error message ends in ``way_out``."""
    files.require_sealed(folder, _read_marker(folder)["files"], way_out)


@contextmanager
def weights_only(checkpoint: Path | None) -> Iterator[None]:
    """Inside this context torch builds only tensors, plain values and DeepSpeed's settings from a checkpoint's pickles.

    Transformers asks torch for that itself. DeepSpeed allows any object, and so would run code that a forger put there.

    Raises:
        RunError: ``checkpoint`` holds something else.
    """
    before, known = os.environ.get(_FORCE), []
    if find_spec("deepspeed") and processes.engine() == "zero3":
        from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
        from deepspeed.runtime.zero.config import ZeroStageEnum

        known = [DynamicLossScaler, LossScaler, ZeroStageEnum]
    os.environ[_FORCE] = "1"
    try:
        with torch.serialization.safe_globals(known):
            yield
    except UnpicklingError as error:
        if checkpoint is None:
            raise
        raise RunError(
            f"{checkpoint} holds a pickle that is damaged or of more than training writes, and is not executed; restore it, "
            f"or delete {checkpoint} to resume from {_before(checkpoint)}"
        ) from error
    finally:
        os.environ.pop(_FORCE)
        os.environ.update({_FORCE: before} if before is not None else {})


def latest_complete(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, verified, or None; a damaged one is refused, not replaced by an older."""
    newest = next(reversed(complete_checkpoints(folder)), None)
    if newest:
        verify(newest)
    return newest


def require_run(checkpoint: Path, run: str) -> None:
    """Require the checkpoint to be of ``run``; one of another recipe, text or base would be continued as if it were."""
    if _read_marker(checkpoint).get("run") != run:
        raise RunError(
            f"{checkpoint} belongs to a run of another recipe, text or base model than {checkpoint.parent.parent}; "
            f"restore the run's own, or delete {checkpoint} to resume from {_before(checkpoint)}"
        )


def require_engine(checkpoint: Path, engine: str) -> None:
    """Require the checkpoint to be written by ``engine``; for another one Trainer would start a new optimizer."""
    names = [path.name for path in checkpoint.iterdir()]
    fsdp = _any_matches(names, ("optimizer.bin", "optimizer_*", "pytorch_model_fsdp*"))
    written = "zero3" if _any_matches(names, ("global_step*",)) else "fsdp" if fsdp else "ddp"
    if written != engine:
        raise RunError(
            f"{checkpoint} was written under {written} and cannot be resumed exactly under {engine}: launch it as before"
        )


def require_processes(checkpoint: Path, processes: int) -> None:
    """Require the random state of each of ``processes``; Trainer would continue without it."""
    written = len(list(checkpoint.glob("rng_state*.pth")))
    if written != processes:
        by = "1 process" if written == 1 else f"{written} processes"
        raise RunError(f"{checkpoint} was written by {by} and cannot be resumed exactly by {processes}; launch {by}")


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints that have a marker, oldest first; their files are not read."""
    return [path for path in _checkpoints(folder) if (path / MARKER).is_file()]


def intact(folder: Path) -> str:
    """Return a phrase on the checkpoint that a user can go back to: ``checkpoint 400 is intact``."""
    checkpoints = complete_checkpoints(folder)
    return f"checkpoint {step_of(checkpoints[-1])} is intact" if checkpoints else "there is no checkpoint yet"


def discard(checkpoint: Path) -> None:
    """Remove ``checkpoint``, its marker first, so that an interrupted removal leaves an incomplete checkpoint."""
    (checkpoint / MARKER).unlink(missing_ok=True)
    if checkpoint.exists():
        sync_folder(checkpoint)
        shutil.rmtree(checkpoint)


def rotate(folder: Path, keep: int) -> None:
    """Remove incomplete checkpoints, and all complete ones but the newest ``keep``."""
    newest = complete_checkpoints(folder)[-keep:]
    for checkpoint in _checkpoints(folder):
        if checkpoint not in newest:
            discard(checkpoint)


def step_of(checkpoint: Path) -> int:
    """Return the number of steps trained at ``checkpoint-N``."""
    return int(checkpoint.name.split("-", 1)[1])


def _checkpoints(folder: Path) -> list[Path]:
    """Return every ``checkpoint-N``, complete or not, by N."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.split("-", 1)[1].isdecimal() and path.is_dir()]
    return sorted(found, key=step_of)


def _before(checkpoint: Path) -> str:
    older = [path for path in complete_checkpoints(checkpoint.parent) if step_of(path) < step_of(checkpoint)]
    return f"checkpoint {step_of(older[-1])}" if older else "the start"


def _names(folder: Path) -> list[str]:
    """Return the relative path of every file of ``folder`` but the marker."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != MARKER)
    return sorted(path.relative_to(folder).as_posix() for path in files)


def _missing_parts(names: Iterable[str]) -> list[str]:
    names = list(names)
    return [part for part, patterns in _PARTS.items() if not _any_matches(names, patterns)]


def _any_matches(names: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for name in names for pattern in patterns)


def _read_marker(checkpoint: Path) -> dict[str, Any]:
    """The marker's ``files`` and ``run``."""
    path = checkpoint / MARKER
    try:
        marker = files.read_json(path)
        if not all(isinstance(entry, dict) for entry in dict(marker["files"]).values()):
            raise ValueError("an entry is no object")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(f"{path} is not a list of files ({error}); delete {checkpoint}") from error
    return marker
