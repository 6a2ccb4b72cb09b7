"""Which precision a model computes in: the names that users write, the dtypes behind them, and what a machine is fast at."""

from typing import Literal, cast

import torch

from skipwise.errors import RecipeError, one_of

Precision = Literal["bf16", "fp16", "float32"]

# The autocast dtype of each precision; float32 needs no autocast.
AUTOCAST: dict[str, torch.dtype | None] = {"bf16": torch.bfloat16, "fp16": torch.float16, "float32": None}


def default_device() -> torch.device:
    """The device that models run on: the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_precision(requested: str, device: torch.device | str | None = None) -> Precision:
    """Return the precision to compute in on ``device``; weights stay float32 under bf16 and fp16 autocast.

    ``auto`` takes bf16 where the hardware multiplies it: a GPU that has it, or a CPU with AVX512-BF16 or
    AMX-BF16. Elsewhere bf16 is emulated, slower than float32.

    Raises:
        RecipeError: an unknown name, or fp16 on a CPU, which has no loss scaling.
    """
    one_of("precision", requested, ("auto", *AUTOCAST))
    device = default_device() if device is None else torch.device(device)
    if requested == "fp16" and device.type == "cpu":
        raise RecipeError("precision 'fp16' needs a GPU; on this CPU choose auto, bf16 or float32")
    if requested != "auto":
        return cast(Precision, requested)
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = device.type == "cpu" and bool(_cpu_flags() & {"avx512_bf16", "amx_bf16"})
    return "bf16" if fast else "float32"


def _cpu_flags() -> set[str]:
    """The first core's instruction sets as Linux names them; none known elsewhere."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((set(line.split()) for line in file if line.startswith("flags")), set())
    except OSError:
        return set()
