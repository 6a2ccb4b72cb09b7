"""Save the extended checkpoint as stock files that load anywhere, and check them by loading them."""

import json
import os
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import GENERATION_CONFIG_NAME

from skipwise.errors import ModelError, RunError
from skipwise.model import lora
from skipwise.model.config import load_config, write_legacy_keys
from skipwise.model.extension import Extension
from skipwise.model.loading import UNSAVED, load_model
from skipwise.model.origin import FILE, Origin, require_unchanged
from skipwise.model.precision import autocast, dtype_of, in_mode, trial_ids, weights_precision
from skipwise.results.files import fresh_folder

_TOLERANCE = 1e-5  # of logits, saved against reloaded


def save_extended(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    extension: Extension,
    folder: Path,
    *,
    origin: Origin | None = None,
    adapter_of: str | None = None,
) -> None:
    """Write model and tokenizer, check them by a stock reload, then rename them to ``folder``.

    ``origin`` is written too. If ``adapter_of`` names a base, only the adapter is written.

    Raises:
        ModelError: the reloaded model has other logits.
    """
    temporary = folder.with_name(folder.name + ".partial")
    fresh_folder(temporary)
    tokenizer.model_max_length = extension.target_length
    generation = model.generation_config
    if generation is not None and generation.max_length:  # tokens of prompt and answer together
        generation.max_length = max(generation.max_length, extension.target_length)
    if adapter_of:
        lora.save_adapter(model, temporary, adapter_of, load_config(adapter_of).dtype)
    else:
        model.save_pretrained(temporary)
        if sampling := getattr(model, UNSAVED, None):
            written = temporary / GENERATION_CONFIG_NAME
            settings = json.loads(written.read_text(encoding="utf-8")) | sampling
            written.write_text(f"{json.dumps(settings, indent=2)}\n", encoding="utf-8")
    tokenizer.save_pretrained(temporary)
    write_legacy_keys(temporary)
    if origin:
        origin.write(temporary)
    difference = _reload_difference(model, temporary, extension)
    if not difference <= _TOLERANCE:  # also for NaN
        raise ModelError(
            f"the saved checkpoint has logits {difference:g} away from the model's at positions beyond "
            f"{extension.rope.original_length:,}. Do not use it; it stays in {temporary}"
        )
    os.replace(temporary, folder)


@torch.no_grad()
def _reload_difference(model: PreTrainedModel, folder: Path, extension: Extension) -> float:
    """Return the largest difference of logits, model against reload, at the last positions of the target."""
    precision = weights_precision(model)
    four_bits = getattr(model, "is_loaded_in_4bit", False)
    reloaded = load_model(folder, dtype=dtype_of(precision), device=model.device, four_bits=four_bits, merge=False)
    target, tokens = extension.target_length, min(64, extension.target_length)
    ids = trial_ids(model, tokens)
    positions = torch.arange(target - tokens, target, device=model.device)[None]
    batch = {"input_ids": ids, "position_ids": positions, "attention_mask": torch.ones_like(ids)}
    with in_mode(model, training=False), autocast(model.device, precision):
        saved = model(**batch, use_cache=False).logits
        loaded = reloaded.eval()(**batch, use_cache=False).logits
    return (saved - loaded).abs().max().item()


def round_weights(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Round the weights to ``dtype`` in place; buffers, as the rotary frequencies, stay."""
    for weight in model.parameters():
        if weight.is_floating_point():
            weight.data = weight.data.to(dtype)


def require_saved(folder: Path) -> None:
    """Require the saved model of a finished run to be complete and unchanged."""
    fix = "delete the folder, and --resume saves the model again from the last checkpoint"
    if not (folder / FILE).exists():
        raise RunError(f"{folder} has lost {FILE}; {fix}")
    require_unchanged(folder, fix)
