"""Guards around training: a non-finite loss stops the run, and a checkpoint counts only when it is complete.

A checkpoint is complete once ``complete.json`` stands in it: the list of its files with sizes and SHA-256,
written last. A folder without it is the torso of a save or of a removal that was killed, and is passed over;
a folder with it that has lost or changed a file is refused, since a resume would go on with other weights.
"""

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from skipwise.errors import NonFiniteLossError, RunError, TrainingError

MARKER = "complete.json"

# What a resume reads, and the names under which Trainer alone, FSDP and DeepSpeed write it.
_PARTS = {
    "model.safetensors": ("model*.safetensors", "adapter_model.safetensors"),
    "optimizer.pt": ("optimizer.pt", "optimizer.bin", "optimizer_*/*", "global_step*_optim_states.pt"),
    "scheduler.pt": ("scheduler.pt", "global_step*_model_states.pt"),
    "rng_state.pth": ("rng_state*.pth",),
    "trainer_state.json": ("trainer_state.json",),
}


class NonFiniteGuard(TrainerCallback):
    """Stops the run before the optimizer step that would write a NaN or an infinity into the weights.

    The trainer hands in every micro-batch's loss and the gradient norm as they stand on the device; they are
    read once a step, so that accumulation costs no synchronisation of its own. Under fp16 an infinite
    gradient is the loss scaler's business, which skips the step and lowers its scale: there only the loss
    is judged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loss: torch.Tensor | None = None
        self._grad_norm: torch.Tensor | float = 0.0

    def see_loss(self, loss: torch.Tensor) -> None:
        """Take the detached loss of one micro-batch; a sum is non-finite if one of its terms is."""
        loss = loss.sum()
        self._loss = loss if self._loss is None else self._loss + loss

    def see_grad_norm(self, norm: torch.Tensor | float) -> None:
        """Take the norm of the gradients about to be applied."""
        self._grad_norm = norm

    def check(self, args: TrainingArguments, step: int) -> None:
        """Judge what was seen since the last check.

        Raises:
            NonFiniteLossError: the loss or the gradient norm of ``step`` is NaN or infinite.
        """
        loss, norm = self._loss, 0.0 if args.fp16 else self._grad_norm
        self._loss, self._grad_norm = None, 0.0
        assert loss is not None, "no loss was handed to the guard since the last optimizer step"
        if math.isfinite(float(loss + norm)):
            return
        what = "the gradient norm" if math.isfinite(float(loss)) else "loss"
        other = "bf16" if args.fp16 else "float32" if args.bf16 else None
        way_out = f"try training.precision={other} or" if other else "try"
        raise NonFiniteLossError(
            f"step {step}: {what} is not finite; weights untouched; {way_out} "
            f"a lower training.learning_rate (now {args.learning_rate:g}); {intact(self._folder)}"
        )

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check between the backward passes and the update."""
        self.check(args, state.global_step + 1)


def mark_complete(checkpoint: Path) -> None:
    """Declare ``checkpoint`` complete: write ``{file: {bytes, sha256}}`` of all its files, durably and last.

    Raises:
        TrainingError: a part that a resume needs was not written.
    """
    if missing := _missing_parts(_names(checkpoint)):
        raise TrainingError(
            f"{checkpoint} was written without {missing[0]}, so training could not be resumed from it or ended; "
            "let Trainer save it (no training.save_only_model; of a model in shares: fsdp_state_dict_type "
            "FULL_STATE_DICT, or ZeRO-3's stage3_gather_16bit_weights_on_model_save); "
            f"{intact(checkpoint.parent)}"
        )
    seal(checkpoint)


def seal(folder: Path) -> None:
    """Write the marker of ``folder``, whatever files it has, durably and last."""
    names = _names(folder)
    with ThreadPoolExecutor() as pool:
        entries = dict(zip(names, pool.map(_seal, (folder / name for name in names)), strict=True))
    temporary = folder / f"{MARKER}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(entries, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / MARKER)
    _sync_folder(folder)
    _sync_folder(folder.parent)


def verify(checkpoint: Path) -> None:
    """Require every file that the marker of ``checkpoint`` lists, with the bytes it had when written.

    Transformers then reads them as safetensors, as JSON, or by ``torch.load(weights_only=True)``, none of
    which runs code from the file.

    Raises:
        RunError: a file is missing or changed, or the marker is not one of ours.
    """
    way_out = f"restore it, or delete {checkpoint} to resume from {_before(checkpoint)}"
    if missing := _missing_parts(_read_marker(checkpoint)):
        raise RunError(
            f"{checkpoint / MARKER} does not list {missing[0]}, without which no resume is exact; {way_out}"
        )
    require_sealed(checkpoint, way_out)


def require_sealed(folder: Path, way_out: str) -> None:
    """Require every file that the marker of ``folder`` lists, with the bytes it had when written.

    Raises:
        RunError: a file is missing or changed; ``way_out`` is what the user may do then.
    """
    entries = _read_marker(folder)
    for name in entries:
        if not (folder / name).is_file():
            raise RunError(f"{folder} has lost {name}, without which no resume is exact; {way_out}")
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda name: _fingerprint(folder / name), entries)
        for (name, entry), actual in zip(entries.items(), found, strict=True):
            if actual != entry:
                raise RunError(f"{folder / name} is not the file that training wrote (SHA-256); {way_out}")


def latest_complete(folder: Path) -> Path | None:
    """Return the newest complete checkpoint of ``folder``, verified, or None if there is none.

    Raises:
        RunError: it was complete once and has lost or changed a file; an older one is not taken silently.
    """
    checkpoints = complete_checkpoints(folder)
    if not checkpoints:
        return None
    verify(checkpoints[-1])
    return checkpoints[-1]


def require_engine(checkpoint: Path, engine: str) -> None:
    """Require the checkpoint to be of the engine that is to go on, whose optimizer Trainer would begin anew.

    Raises:
        RunError: another engine wrote it.
    """
    names = [path.name for path in checkpoint.iterdir()]
    if any(fnmatch(name, "global_step*") for name in names):
        written = "zero3"
    elif any(
        fnmatch(name, pattern)
        for name in names
        for pattern in ("optimizer.bin", "optimizer_*", "pytorch_model_fsdp*")
    ):
        written = "fsdp"
    else:
        written = "ddp"
    if written != engine:
        raise RunError(
            f"{checkpoint} was written under {written} and cannot be resumed exactly under {engine}: launch it as before"
        )


def require_processes(checkpoint: Path, processes: int) -> None:
    """Require the random state of each of ``processes``, which Trainer would pass over in silence.

    Raises:
        RunError: the checkpoint was written by another number of processes.
    """
    written = len(list(checkpoint.glob("rng_state*.pth")))
    if written != processes:
        raise RunError(
            f"{checkpoint} was written by {written} processes and cannot be resumed exactly by {processes}; "
            f"launch {written} processes"
        )


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints that bear a marker, oldest first; their files are not read."""
    return [path for path in _checkpoints(folder) if (path / MARKER).is_file()]


def intact(folder: Path) -> str:
    """Say which checkpoint a user can go back to: ``checkpoint 400 is intact``."""
    checkpoints = complete_checkpoints(folder)
    return f"checkpoint {step_of(checkpoints[-1])} is intact" if checkpoints else "there is no checkpoint yet"


def discard(checkpoint: Path) -> None:
    """Remove ``checkpoint``, its marker first: killed half-way, what remains does not count."""
    (checkpoint / MARKER).unlink(missing_ok=True)
    if checkpoint.exists():
        _sync_folder(checkpoint)
        shutil.rmtree(checkpoint)


def rotate(folder: Path, keep: int) -> None:
    """Remove torsos, and of the complete checkpoints all but the newest ``keep``."""
    kept = complete_checkpoints(folder)[-keep:]
    for checkpoint in _checkpoints(folder):
        if checkpoint not in kept:
            discard(checkpoint)


def checkpoint_bytes(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> int:
    """Estimate the size of a checkpoint in bytes: the saved parameters and the optimizer's state, if any."""
    adapter_only = hasattr(model, "peft_config")
    saved: list[torch.Tensor] = [p for p in model.parameters() if p.requires_grad or not adapter_only]
    for state in optimizer.state.values() if optimizer else ():
        saved += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in saved)


@contextmanager
def disk_space(
    folder: Path, needed: int, what: str = "the checkpoint", checkpoints: Path | None = None
) -> Iterator[None]:
    """Write ``folder``, of about ``needed`` bytes, inside this context.

    Args:
        folder: what is written.
        needed: bytes, about.
        what: its name in a message.
        checkpoints: where the complete checkpoints lie; default: beside ``folder``.

    Raises:
        TrainingError: the disk has not the room, or runs full while writing; the torso is then removed.
    """
    free = shutil.disk_usage(folder.parent).free
    way_out = f"free some space, then --resume; {intact(checkpoints or folder.parent)}"
    if free < needed:
        raise TrainingError(f"{what} needs {_size(needed)}, {_size(free)} free; {way_out}")
    try:
        yield
    except Exception as error:
        # torch.save and safetensors wrap the system's error in types of their own.
        full = shutil.disk_usage(folder.parent).free < 2**20 or os.strerror(errno.ENOSPC) in str(error)
        if not full:
            raise
        shutil.rmtree(folder, ignore_errors=True)
        raise TrainingError(f"the disk ran full at {what} of {_size(needed)}; {way_out}") from error


def _names(folder: Path) -> list[str]:
    """Every file of ``folder`` but the marker, by its path inside."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != MARKER)
    return sorted(path.relative_to(folder).as_posix() for path in files)


def _missing_parts(names: Iterable[str]) -> list[str]:
    names = list(names)
    return [
        part
        for part, patterns in _PARTS.items()
        if not any(fnmatch(name, pattern) for name in names for pattern in patterns)
    ]


def _read_marker(checkpoint: Path) -> dict[str, dict[str, Any]]:
    path = checkpoint / MARKER
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        inside = all(
            isinstance(entry, dict)
            and not PurePosixPath(name).is_absolute()
            and ".." not in PurePosixPath(name).parts
            for name, entry in entries.items()
        )
    except (OSError, ValueError, AttributeError) as error:
        raise RunError(f"{path} is not a list of files ({error}); delete {checkpoint}") from error
    if not inside:
        raise RunError(f"{path} names files outside the checkpoint; delete {checkpoint}")
    return entries


def _seal(path: Path) -> dict[str, Any]:
    """Bring a file onto the disk, so that the marker cannot survive a power cut that the file does not."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
    return _fingerprint(path)


def _fingerprint(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        return {
            "bytes": os.fstat(file.fileno()).st_size,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }


def _sync_folder(folder: Path) -> None:
    """Bring renames and removals in ``folder`` onto the disk, where the system can (not on Windows)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _checkpoints(folder: Path) -> list[Path]:
    """Every ``checkpoint-N``, complete or not, by N."""
    found = [
        path
        for path in folder.glob("checkpoint-*")
        if path.name.split("-", 1)[1].isdecimal() and path.is_dir()
    ]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """The number of steps trained at ``checkpoint-N``."""
    return int(checkpoint.name.split("-", 1)[1])


def _before(checkpoint: Path) -> str:
    older = [path for path in complete_checkpoints(checkpoint.parent) if step_of(path) < step_of(checkpoint)]
    return f"checkpoint {step_of(older[-1])}" if older else "the start"


def _size(count: int) -> str:
    """Write bytes in the largest decimal unit: ``13.5 GB``."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"
