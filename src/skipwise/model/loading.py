"""Load a checkpoint as a stock transformers class, unchanged or with an interpolation; save it, checked by loading it again."""

import copy
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import GENERATION_CONFIG_NAME

from skipwise.errors import ModelError, library_errors, out_of_memory
from skipwise.model import lora
from skipwise.model.attention import mask_by_position
from skipwise.model.config import (
    MANIFEST,
    Origin,
    load_config,
    read_seal,
    require_unchanged,
    resolve,
    unreadable,
    weights_fingerprint,
    write_legacy_keys,
)
from skipwise.model.extension import KEPT, Extension, check_frequencies, plan_extension, set_interpolation
from skipwise.model.forward import autocast, dtype_of, in_mode, random_state_kept, trial_ids, weights_precision
from skipwise.results.files import fresh_folder, read_json, write_json

UNSAVED = "unsaved_sampling"
_SAMPLING = ("temperature", "top_p", "min_p", "typical_p", "top_k", "top_h", "epsilon_cutoff", "eta_cutoff")
_TOLERANCE = 1e-5  # of logits, saved against reloaded


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model.

    Raises:
        ModelError: transformers cannot load one.
    """
    folder = resolve(str(name))
    problem = f"model {str(name)!r} has no tokenizer that transformers can load"
    with library_errors(ModelError, problem, "Fetch its files again"):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


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
    empty: bool = False,
    attn_implementation: str | None = None,
) -> PreTrainedModel:
    """Load a causal model, unchanged or with an interpolation in its config.

    Rotary frequencies are float32 for every ``dtype`` and checked against the float64 formula to 1e-6. Sliding layers count
    their window in positions while the model trains (``skipwise.model.attention``).

    Args:
        name: ``nano``, a folder (also an adapter's, which is merged into its base), or a name on the hub.
        extension: the extension to set; default: none.
        target_length: L_t in tokens, as 32768 or "32k", instead of ``extension``.
        interpolation: a name of ``skipwise.method.interpolation.INTERPOLATIONS``; default with ``target_length``: ``yarn``.
        dtype: dtype of the weights, or its name, as "bfloat16".
        device: device to load to.
        four_bits: hold the weights of linear layers in 4 bits and compute in ``dtype``.
        merge: merge an adapter into its base; if false, keep its layers apart, as in training.
        empty: read no weights; under FSDP another process sends them.
        attn_implementation: attention of transformers, as "flash_attention_2"; default: its choice.

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
        extension = plan_extension(config, target_length=target_length, interpolation=interpolation)
        if not interpolation and extension.interpolation != KEPT:
            extension = replace(extension, interpolation="yarn")
    if extension is not None:
        set_interpolation(config, extension)
    base = lora.base_of(folder)
    if base:
        require_unchanged(Path(resolve(base)))
        wanted = read_seal(Path(folder)).get("base_fingerprint")
        if wanted and wanted != weights_fingerprint(base):
            raise ModelError(
                f"the base {base} of adapter {folder} has changed since training. Restore it, or copy the adapter without "
                f"{MANIFEST} to use it on this base"
            )
    settings = lora.four_bit_settings(dtype, device) if four_bits else {}
    if empty:
        settings["device_map"] = "meta"
    if attn_implementation:
        settings["attn_implementation"] = attn_implementation
    model = _load_whole(resolve(base) if base else folder, name, config=config, dtype=dtype, **settings)
    if base:
        model = lora.load_adapter(model, folder, merge=merge)
    if empty:  # memory that nothing has written to takes no room, and accelerate knows weights by their address
        model._apply(lambda tensor: torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor)
        model.tie_weights()
    elif not four_bits:
        torch.nn.Module.to(model, device)
    if extension is not None:
        check_frequencies(model, extension)
    mask_by_position(model)
    return model


def two_layers(
    config: PretrainedConfig, extension: Extension, device: torch.device, attn_implementation: str | None = None
) -> PreTrainedModel:
    """Return a stock model with two layers of a config and drawn weights, for a small vocabulary."""
    config = copy.deepcopy(config)
    set_interpolation(config, extension)
    text = config.get_text_config()
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = 2, 64, None
    if kinds := getattr(text, "layer_types", None):
        text.layer_types = kinds[:1] + kinds[-1:]
    with random_state_kept(device), torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation=attn_implementation)
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
    # transformers reads sampling settings that greedy decoding ignores, and refuses to write them; ``save_extended`` does.
    generation, ignored = model.generation_config, dict[str, Any]()
    if generation is not None and not generation.do_sample:
        ignored = {name: value for name in _SAMPLING if (value := getattr(generation, name, None)) is not None}
    for name in ignored:
        setattr(generation, name, None)
    setattr(model, UNSAVED, ignored)
    return model


def save_extended(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    extension: Extension,
    folder: Path,
    *,
    origin: Origin | None = None,
    adapter_of: str | None = None,
) -> None:
    """Write model (of ``adapter_of``, a base, the adapter alone) and tokenizer; rename them to ``folder`` after a stock reload."""
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
            write_json(written, read_json(written) | sampling)
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
