"""Load a checkpoint as a stock transformers class, unchanged or with an interpolation."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from skipwise.errors import ModelError, out_of_memory, reason
from skipwise.model import lora
from skipwise.model.config import load_config, resolve, unreadable
from skipwise.model.extension import Extension, check_frequencies, plan_extension, set_interpolation
from skipwise.model.origin import FILE, read_seal, require_unchanged, weights_fingerprint
from skipwise.model.sliding import mask_by_position

UNSAVED = "unsaved_sampling"
_SAMPLING = ("temperature", "top_p", "min_p", "typical_p", "top_k", "top_h", "epsilon_cutoff", "eta_cutoff")


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model.

    Raises:
        ModelError: transformers cannot load one.
    """
    folder = resolve(str(name))
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises Exception itself
        raise ModelError(
            f"model {str(name)!r} has no tokenizer that transformers can load ({type(error).__name__}: {reason(error)}). Fetch "
            "its files again, or save one with tokenizer.save_pretrained"
        ) from error


def load_model(
    name: str | Path,
    extension: Extension | None = None,
    *,
    target_length: int | str | None = None,
    interpolation: str | None = None,
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str = "cpu",
    four_bits: bool = False,
    merge: bool = True,
) -> PreTrainedModel:
    """Load a causal model, unchanged or with an interpolation in its config.

    Rotary frequencies are float32 for every ``dtype`` and checked against the float64 formula to 1e-6. Sliding layers count
    their window in positions while the model trains (``skipwise.model.sliding``).

    Args:
        name: ``nano``, a folder (also an adapter's, which is merged into its base), or a name on the hub.
        extension: the extension to set; default: none.
        target_length: L_t in tokens, as 32768 or "32k": sets ``plan_extension(config, target_length=target_length,
            interpolation=interpolation)``.
        interpolation: a name of ``skipwise.method.interpolation.NAMES``; default with ``target_length``: ``yarn``.
        dtype: dtype of the weights, or its name, as "bfloat16".
        device: device to load to.
        four_bits: hold the weights of linear layers in 4 bits and compute in ``dtype``.
        merge: merge an adapter into its base; if false, keep its layers apart, as in training.

    Raises:
        ModelError: transformers cannot load the model, its frequencies are not those of ``extension``, it cannot be extended,
            or an adapter's base has changed.
        RunError: a file of the manifest is missing or changed.
        RecipeError: the interpolation is unknown, or peft is not installed.
    """
    name = str(name)
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    folder = resolve(name)
    require_unchanged(Path(folder))
    config = load_config(name)
    if target_length is not None or interpolation is not None:
        extension = plan_extension(config, target_length=target_length, interpolation=interpolation or "yarn")
    if extension is not None:
        set_interpolation(config, extension)
    base = lora.base_of(folder)
    if base:
        require_unchanged(Path(resolve(base)))
        wanted = (read_seal(Path(folder)) or {}).get("base_fingerprint")
        if wanted is not None and wanted != weights_fingerprint(base):
            raise ModelError(
                f"the base {base} of adapter {folder} has changed since training. Restore it, or copy the adapter without "
                f"{FILE} to use it on this base"
            )
    settings = lora.four_bit_settings(dtype, device) if four_bits else {}
    model = _load_whole(resolve(base) if base else folder, name, config=config, dtype=dtype, **settings)
    if base:
        model = lora.load_adapter(model, folder, merge=merge)
    if not four_bits:
        torch.nn.Module.to(model, device)
    if extension is not None:
        check_frequencies(model, extension)
    mask_by_position(model)
    return model


def _load_whole(folder: str, name: str, **settings: Any) -> PreTrainedModel:
    """Load a model, and refuse missing weights, which transformers would draw at random."""
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=False, output_loading_info=True, **settings
        )
    except Exception as error:  # transformers raises errors of many types
        if out_of_memory(error):
            raise
        raise ModelError(unreadable(name, error)) from error
    model, missing = loaded[0], sorted(loaded[1]["missing_keys"])
    if missing:
        raise ModelError(
            f"model {name!r} lacks {len(missing)} of its weights ({', '.join(missing[:3])}, ...). Fetch the checkpoint again, or "
            "choose a causal language model"
        )
    for layer in model.modules():
        # On some CPUs bitsandbytes packs weights at the first pass without gradients; a packed layer has no gradients later.
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
    _set_sampling_aside(model)
    return model


def _set_sampling_aside(model: PreTrainedModel) -> None:
    """Move sampling settings that greedy decoding ignores to ``UNSAVED``.

    transformers reads such a generation config and refuses to write it. ``save_extended`` writes them back.
    """
    generation, dropped = model.generation_config, dict[str, Any]()
    if generation is not None and not generation.do_sample:
        for name in _SAMPLING:
            if (value := getattr(generation, name, None)) is not None:
                dropped[name] = value
                setattr(generation, name, None)
    setattr(model, UNSAVED, dropped)
