"""Room on the disk for what a run writes: asked for before training, and before each checkpoint and the model."""

import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.filesize import decimal

from skipwise.errors import RunError, TrainingError, counted, out_of_room
from skipwise.model.config import load_config
from skipwise.model.memory import optimizer_bytes, parameters_of
from skipwise.recipes.schema import Recipe
from skipwise.training.checkpoints import intact


def require_room(recipe: Recipe, folder: Path) -> None:
    """Refuse a new run whose checkpoints and model are certain not to fit the disk of its ``folder``, which need not exist yet.

    A checkpoint holds the trained weights in float32 and what the optimizer keeps. A new one is complete before the
    oldest is removed. Adapters are small and not counted.

    Raises:
        RunError: says what it takes and what there is.
    """
    parameters, training = parameters_of(load_config(recipe.model)), recipe.training
    if parameters is None:
        return
    checkpoint = 0 if recipe.lora else (4 + (optimizer_bytes(training.optim) or (0,))[0]) * parameters
    adapter = recipe.lora is not None and recipe.lora.saved == "adapter"
    model = 0 if adapter else getattr(torch, training.save_dtype).itemsize * parameters
    saved, kept = math.ceil(training.max_steps / training.save_steps), training.save_total_limit
    at_once, left = min(saved, kept + 1), min(saved, kept)  # while a checkpoint is written, and beside the model
    needed = max(at_once * checkpoint, left * checkpoint + model)
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if (free := shutil.disk_usage(there).free) >= needed:
        return
    during = at_once * checkpoint == needed
    held = [f"{counted(at_once if during else left, 'checkpoint')} of {decimal(int(checkpoint))}"] * bool(checkpoint)
    held += [f"a model of {decimal(model)}"] * (not during)
    fewer = ", or set training.save_total_limit=1" if checkpoint and left > 1 else ""
    raise RunError(
        f"{folder}: the run takes {decimal(int(needed))} of the disk, for {' and '.join(held)}, and {decimal(free)} are free; "
        f"make room, or give --out on a larger disk{fewer}"
    )


def checkpoint_bytes(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> int:
    """Estimate the size of a checkpoint in bytes: the saved parameters, and the optimizer's state if given."""
    adapter_only = hasattr(model, "peft_config")
    saved: list[torch.Tensor] = [p for p in model.parameters() if p.requires_grad or not adapter_only]
    for state in optimizer.state.values() if optimizer else ():
        saved += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in saved)


@contextmanager
def disk_space(
    folder: Path, needed: int, what: str = "the checkpoint", checkpoints: Path | None = None
) -> Iterator[None]:
    """Check that the disk has room for ``folder``, of about ``needed`` bytes, which is written inside this context.

    If the disk runs full all the same, ``folder`` is removed. A message calls it ``what``, and names the newest of the
    ``checkpoints`` (default: in the parent of ``folder``).
    """
    free = shutil.disk_usage(folder.parent).free
    way_out = f"free some space, then --resume; {intact(checkpoints or folder.parent)}"
    if free < needed:
        raise TrainingError(f"{what} needs {decimal(needed)}, {decimal(free)} free; {way_out}")
    try:
        yield
    except Exception as error:
        code = out_of_room(error)
        if shutil.disk_usage(folder.parent).free >= 2**20 and code is None:
            raise
        shutil.rmtree(folder, ignore_errors=True)
        cause = f" ({os.strerror(code)})" if code else ""
        raise TrainingError(f"the disk ran full while writing {what} of {decimal(needed)}{cause}; {way_out}") from error
