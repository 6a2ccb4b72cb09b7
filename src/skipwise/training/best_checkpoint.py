"""The weights of the best step so far, beside the checkpoints: ``evaluation.keep: best``.

    checkpoints/best-N/   what is trained of the model, as it is after step N, with its marker (``skipwise.training.guards``)

The results say which step is best. Its weights are whole before its record is written, and those of the step before it go
only after, so that wherever a kill falls the weights of the best step on record are there, and a step without a record is
trained and measured again.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from skipwise.errors import RunError
from skipwise.training import guards

_WEIGHTS = "trained.safetensors"


def best_step(losses: dict[int, float]) -> int:
    """The step of the least loss, the earlier of equal ones."""
    return min(losses, key=lambda step: (losses[step], step))


def keep(model: torch.nn.Module, checkpoints: Path, step: int) -> None:
    """Write what is trained of ``model``; with LoRA that is the additions alone.

    Raises:
        TrainingError: the disk has not the room.
    """
    folder = _folder(checkpoints, step)
    guards.discard(folder)  # the torso of an earlier session
    checkpoints.mkdir(exist_ok=True)
    weights = {name: weight.detach().contiguous() for name, weight in _trained(model)}
    needed = sum(weight.numel() * weight.element_size() for weight in weights.values())
    with guards.disk_space(folder, needed, f"the best step so far, {step},"):
        folder.mkdir()
        save_file(weights, folder / _WEIGHTS)
    guards.seal(folder)


def drop_others(checkpoints: Path, step: int) -> None:
    """Remove what was kept of any step but this."""
    for folder in checkpoints.glob("best-*"):
        if folder != _folder(checkpoints, step):
            guards.discard(folder)


def require(checkpoints: Path, step: int) -> None:
    """Require the weights of ``step`` to be those that were kept.

    Raises:
        RunError: they are gone or were changed.
    """
    folder = _folder(checkpoints, step)
    way_out = "bring it back, or begin a run with another --out"
    if not (folder / guards.MARKER).is_file():
        raise RunError(f"{folder}, the weights of the best step so far, is gone or not whole; {way_out}")
    guards.require_sealed(folder, way_out)


@torch.no_grad()
def restore(model: torch.nn.Module, checkpoints: Path, step: int) -> None:
    """Put the weights of ``step`` into the ``model`` that they were kept of, in whatever state it is.

    Raises:
        RunError: they are gone or were changed.
    """
    require(checkpoints, step)
    with safe_open(_folder(checkpoints, step) / _WEIGHTS, "pt") as file:
        for name, weight in _trained(model):
            weight.copy_(file.get_tensor(name))


def _trained(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)


def _folder(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"best-{step}"
