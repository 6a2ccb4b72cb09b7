"""Precision and mode of a forward pass."""

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

    ``auto`` is bf16 where the hardware multiplies it faster than float32: a GPU with bf16, a CPU with AMX-BF16, or one with
    AVX512-BF16 that is not Intel's (a Xeon without AMX takes 1.5 times as long). On other NVIDIA GPUs (V100, T4) it is fp16,
    as in the paper. fp16 needs a GPU: a CPU has no loss scaling.

    Raises:
        RecipeError: the precision is unknown, or fp16 on a CPU.
    """
    one_of("precision", requested, ("auto", *AUTOCAST))
    device = default_device() if device is None else torch.device(device)
    if requested == "fp16" and device.type == "cpu":
        raise RecipeError("precision 'fp16' needs a GPU. On this CPU choose auto, bf16 or float32")
    if requested != "auto":
        return cast(Precision, requested)
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    features = cpu_features()
    fast = "amx_bf16" in features or ("avx512_bf16" in features and "GenuineIntel" not in features)
    return "bf16" if device.type == "cpu" and fast else "float32"


def precision_of(args: Any) -> Precision:
    """Return the precision of ``transformers.TrainingArguments``."""
    return "bf16" if args.bf16 else "fp16" if args.fp16 else "float32"


def dtype_of(precision: str) -> torch.dtype:
    """Return the dtype in which a forward pass computes."""
    return AUTOCAST[precision] or torch.float32


def autocast(device: torch.device | str, precision: str) -> AbstractContextManager[object]:
    """Return the context that computes in ``precision``, also inside another autocast."""
    dtype = AUTOCAST[one_of("precision", precision, AUTOCAST)]
    return torch.autocast(torch.device(device).type, dtype, enabled=dtype is not None)


def random_state_kept(device: torch.device) -> AbstractContextManager[object]:
    """Return a context that restores the random state of the CPU and ``device``."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def trial_ids(model: Any, tokens: int) -> torch.Tensor:
    """Return test ids, int64 [1, tokens]; neighbours differ."""
    return (torch.arange(tokens, device=model.device)[None] * 7 + 3) % model.config.get_text_config().vocab_size


@contextmanager
def in_mode(model: torch.nn.Module, *, training: bool) -> Iterator[None]:
    """Set training or evaluation mode in this context, and restore it."""
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)


def weights_precision(model: torch.nn.Module) -> Precision:
    """Return the precision of the weights; with LoRA, of the frozen ones."""
    weights = [weight for weight in model.parameters() if weight.is_floating_point()]
    dtype = min(weights, key=lambda weight: weight.requires_grad).dtype  # a frozen one first
    return cast(Precision, next((name for name, low in AUTOCAST.items() if low == dtype), "float32"))


def cpu_features() -> set[str]:
    """Return maker and instruction sets of the first core as Linux names them; empty on other systems."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            core = file.read().split("\n\n")[0].splitlines()
    except OSError:
        return set()
    return {word for line in core if line.startswith(("vendor_id", "flags")) for word in line.split()}
