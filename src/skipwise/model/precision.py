"""The precision and the mode of a forward pass: the names that users write, their dtypes, what the hardware is fast at."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, cast

import torch

from skipwise.errors import RecipeError, one_of

Precision = Literal["bf16", "fp16", "float32"]

# The autocast dtype of each precision; float32 needs no autocast.
AUTOCAST: dict[str, torch.dtype | None] = {"bf16": torch.bfloat16, "fp16": torch.float16, "float32": None}


def default_device() -> torch.device:
    """Return the device that models run on: the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_precision(requested: str, device: torch.device | str | None = None) -> Precision:
    """Return the precision to compute in on ``device``; weights stay float32 under bf16 and fp16 autocast.

    ``auto`` chooses bf16 if the hardware multiplies it faster than float32: a GPU with bf16, a CPU with AMX-BF16, or one
    with AVX512-BF16 that is not Intel's: on a Xeon with AVX512-BF16 and no AMX, matrix products take 1.5 times as long in
    bf16 as in float32. On other NVIDIA GPUs (V100, T4) it chooses fp16, as PoSE's authors did. fp16 needs a GPU: a CPU has no
    loss scaling.
    """
    one_of("precision", requested, ("auto", *AUTOCAST))
    device = default_device() if device is None else torch.device(device)
    if requested == "fp16" and device.type == "cpu":
        raise RecipeError("precision 'fp16' needs a GPU; on this CPU choose auto, bf16 or float32")
    if requested != "auto":
        return cast(Precision, requested)
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    found = cpu_features()
    without_tiles = "avx512_bf16" in found and "GenuineIntel" not in found
    fast = device.type == "cpu" and ("amx_bf16" in found or without_tiles)
    return "bf16" if fast else "float32"


def precision_of(args: Any) -> Precision:
    """Return the precision that ``transformers.TrainingArguments`` ask for."""
    return "bf16" if args.bf16 else "fp16" if args.fp16 else "float32"


def dtype_of(precision: str) -> torch.dtype:
    """Return the dtype in which a forward pass computes."""
    return AUTOCAST[precision] or torch.float32


def autocast(device: torch.device | str, precision: str) -> AbstractContextManager[object]:
    """Return the context in which a forward pass computes in ``precision``, whatever the context around it says."""
    dtype = AUTOCAST[one_of("precision", precision, AUTOCAST)]
    return torch.autocast(torch.device(device).type, dtype, enabled=dtype is not None)


def random_state_kept(device: torch.device) -> AbstractContextManager[object]:
    """Return the context after which the CPU and ``device`` draw as before; torch's own would look at every GPU, and say so."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def trial_ids(model: Any, tokens: int) -> torch.Tensor:
    """Return ids to try a model with, int64 [1, tokens]; neighbours differ."""
    return (torch.arange(tokens, device=model.device)[None] * 7 + 3) % model.config.get_text_config().vocab_size


@contextmanager
def in_mode(model: torch.nn.Module, *, training: bool) -> Iterator[None]:
    """In this context a model is in training or in evaluation mode; afterwards in that in which it was."""
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)


def weights_precision(model: torch.nn.Module) -> Precision:
    """Return the precision of the weights as they are held; with LoRA, of the frozen ones."""
    weights = [weight for weight in model.parameters() if weight.is_floating_point()]
    dtype = min(weights, key=lambda weight: weight.requires_grad).dtype  # of a frozen one, if there is any
    return cast(Precision, next((name for name, low in AUTOCAST.items() if low == dtype), "float32"))


def cpu_features() -> set[str]:
    """Return the first core's maker and instruction sets as Linux names them; on other systems none are known."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            described = file.read().split("\n\n")[0].splitlines()
    except OSError:
        return set()
    return {word for line in described if line.startswith(("vendor_id", "flags")) for word in line.split()}
