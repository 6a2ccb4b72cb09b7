"""Frozen weights in 4 bits by bitsandbytes (nf4; Dettmers et al., 2023), and the warnings of that package.

transformers' Trainer and peft import bitsandbytes wherever it is installed. On import it warns about kernels that only
4-bit weights use, so its warnings are held back until a run asks for 4 bits.
"""

import logging
from typing import Any

_NAMES = ("backends.cpu.ops", "backends.xpu.ops", "cextension")
_LOGGERS = [logging.getLogger(f"bitsandbytes.{name}") for name in _NAMES]

_held: list[logging.LogRecord] = []


def _hold(record: logging.LogRecord) -> bool:
    """Keep a record instead of showing it: a filter of ``logging``."""
    _held.append(record)
    return False


def hold_warnings() -> None:
    """Hold back what bitsandbytes logs when it is imported."""
    for logger in _LOGGERS:
        logger.addFilter(_hold)


def show_warnings() -> None:
    """Show the warnings held back so far, and all later ones at once."""
    for logger in _LOGGERS:
        logger.removeFilter(_hold)
    for record in _held:
        logging.getLogger(record.name).handle(record)
    _held.clear()


def keep_differentiable(model: Any) -> None:
    """Keep layers from packing their weights anew at their first pass without gradients, as they do on some CPUs.

    What they compute with packed weights has no gradients, in silence: a teacher's pass, or measuring during training,
    would end the training of everything before the last layer.
    """
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False


def quantization_settings(dtype: Any, device: Any) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` that load linear layers in 4 bits and compute in ``dtype``."""
    import torch
    from transformers import BitsAndBytesConfig

    show_warnings()
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:  # accelerate compares it with a process's own GPU, by its number
        device = torch.device("cuda", torch.cuda.current_device())
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    return {"quantization_config": config, "device_map": {"": device}}
