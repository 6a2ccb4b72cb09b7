"""The weights of the best step so far, beside the checkpoints: ``evaluation.keep: best``.

    checkpoints/best-N/   the trained weights after step N, sealed by a marker (``skipwise.training.checkpoints``)

The results say which step is best. Its weights are complete before its record is written, and those of the previous
best are removed after that. So after a kill, the weights of the best step on record exist; a step without a record is
trained and measured again.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from skipwise.errors import RunError
from skipwise.training.checkpoints import MARKER, discard, require_sealed, seal
from skipwise.training.disk import disk_space

_WEIGHTS = "trained.safetensors"


def best_step(losses: dict[int, float]) -> int:
    """Return the step with the lowest loss; of equal losses, the earlier step."""
    return min(losses, key=lambda step: (losses[step], step))


def save(model: torch.nn.Module, checkpoints: Path, step: int) -> None:
    """Write the trained weights of ``model``; with LoRA those are the additions alone."""
    folder = _folder(checkpoints, step)
    discard(folder)  # an incomplete checkpoint left by an interrupted save
    checkpoints.mkdir(exist_ok=True)
    weights = {name: weight.detach().contiguous() for name, weight in _trained(model)}
    needed = sum(weight.numel() * weight.element_size() for weight in weights.values())
    with disk_space(folder, needed, f"the best checkpoint so far (step {step})"):
        folder.mkdir()
        save_file(weights, folder / _WEIGHTS)
    seal(folder)


def drop_others(checkpoints: Path, step: int) -> None:
    """Remove the best checkpoints of all steps but this."""
    for folder in checkpoints.glob("best-*"):
        if folder != _folder(checkpoints, step):
            discard(folder)


def require(checkpoints: Path, step: int) -> None:
    """Require the best checkpoint of ``step`` to exist with the bytes that were written."""
    folder = _folder(checkpoints, step)
    way_out = "restore it, or begin a run with another --out"
    if not (folder / MARKER).is_file():
        others = [path.name for path in checkpoints.glob("best-*") if path != folder]
        lost = f", or results.jsonl has lost the records by which {others[0]} was the best" if others else ""
        raise RunError(f"{folder}, the best checkpoint by the records, is missing or incomplete{lost}; {way_out}")
    require_sealed(folder, way_out)


@torch.no_grad()
def restore(model: torch.nn.Module, checkpoints: Path, step: int) -> None:
    """Load the best checkpoint of ``step`` into ``model`` in place."""
    require(checkpoints, step)
    with safe_open(_folder(checkpoints, step) / _WEIGHTS, "pt") as file:
        for name, weight in _trained(model):
            weight.copy_(file.get_tensor(name))


def _trained(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)


def _folder(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"best-{step}"
