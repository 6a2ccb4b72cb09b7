"""Load a checkpoint as a stock transformers class, as it is or with an interpolation set."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from skipwise.errors import ModelError, out_of_memory, reason
from skipwise.model import lora
from skipwise.model.config import load_config, resolve, unreadable
from skipwise.model.extension import Extension, check_frequencies, plan_extension, set_interpolation
from skipwise.model.fingerprint import weights_fingerprint
from skipwise.model.four_bit import keep_differentiable, quantization_settings
from skipwise.model.sealed import FILE, read_seal, require_unchanged
from skipwise.model.sliding import mask_by_position

UNSAVED = "unsaved_sampling"
_SAMPLING = ("temperature", "top_p", "min_p", "typical_p", "top_k", "top_h", "epsilon_cutoff", "eta_cutoff")


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, and try it.

    Raises:
        ModelError: there is none, or it cannot read text.
        RecipeError: ``name`` is no path that a system could have.
        RunError: ``smollm2`` cannot be written to the cache.
    """
    name = str(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve(name), trust_remote_code=False)
        read = tokenizer("a text, 12345").input_ids
    except ModelError:
        raise
    except Exception as error:  # the tokenizers library raises Exception itself
        raise ModelError(
            f"model {name!r} has no tokenizer that transformers can load ({type(error).__name__}: {reason(error)}); fetch "
            "its files again, or save one beside it with tokenizer.save_pretrained"
        ) from error
    if len(set(read)) < 2:
        raise ModelError(
            f"the tokenizer of model {name!r} reads 'a text, 12345' as {read}: it has {len(tokenizer):,} tokens, and not "
            "those of text; fetch the tokenizer's files again"
        )
    return tokenizer


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
    """Load a causal model, as it is or with the interpolation of an extension in its config.

    Rotary frequencies are float32 for every ``dtype``; they are checked against the float64 formula to 1e-6. Sliding
    layers count their window in positions while the model trains (``skipwise.model.sliding``).

    Args:
        name: ``nano``, a folder (also an adapter's, which is merged into its base), or a name on the hub.
        extension: the interpolation to set; default: what the config has.
        target_length: L_t in tokens, as 32768 or "32k": the extension is ``plan_extension(config, target_length=target_length,
            interpolation=interpolation)``.
        interpolation: a name of ``skipwise.method.interpolation.NAMES`` for ``target_length``; default: ``yarn``.
        dtype: dtype of the weights, or its name, as "bfloat16".
        device: device to load to.
        four_bits: hold the weights of linear layers in 4 bits and compute in ``dtype``.
        merge: merge an adapter into its base; if false, keep its layers apart, as in training.

    Raises:
        ModelError: there is an interpolation and no target, ``dtype`` is not one of floating point, transformers cannot load the
            model, its frequencies are not those of ``extension``, or the base of an adapter is not the one that it was trained
            on; or it cannot be extended so.
        RunError: Skipwise saved it, and a file was lost or changed since; or ``smollm2`` cannot be written to the cache.
        RecipeError: the interpolation is unknown, ``name`` is no path that a system could have, or an adapter needs peft,
            which is not installed.
    """
    name = str(name)
    dtype = getattr(torch, dtype, dtype) if isinstance(dtype, str) else dtype
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ModelError(f"dtype {dtype!r} is not one of weights; give torch.float32, torch.bfloat16 or torch.float16")
    folder = resolve(name)
    require_unchanged(Path(folder))
    config = load_config(name)
    if extension is not None and (target_length, interpolation) != (None, None):
        raise ModelError("give an extension, or a target_length with an interpolation, not both")
    if interpolation is not None and target_length is None:
        raise ModelError(
            f"interpolation {interpolation!r} without a target_length would leave the model as it is; give a target_length too"
        )
    if target_length is not None:
        extension = plan_extension(config, target_length=target_length, interpolation=interpolation or "yarn")
    if extension is not None:
        set_interpolation(config, extension)
    base = lora.base_of(folder)
    if base:
        _require_base(folder, base)
    settings = quantization_settings(dtype, device) if four_bits else {}
    model = _load_whole(resolve(base) if base else folder, name, config=config, dtype=dtype, **settings)
    if base:
        model = lora.load_adapter(model, folder, merge=merge)
    if four_bits:
        keep_differentiable(model)
    else:
        torch.nn.Module.to(model, device)
    if extension is not None:
        check_frequencies(model, extension)
    mask_by_position(model)
    return model


def _require_base(folder: str, base: str) -> None:
    """Require the base of an adapter to be the one that it was trained on, if ``skipwise.json`` has its fingerprint."""
    require_unchanged(Path(resolve(base)))
    wanted = (read_seal(Path(folder)) or {}).get("base_fingerprint")
    if wanted is not None and wanted != weights_fingerprint(base):
        raise ModelError(
            f"the base {base} of adapter {folder} is not the one that it was trained on (its files changed); restore it, or "
            f"extend again; to put the adapter on this base on purpose, copy it elsewhere, without {FILE}"
        )


def _load_whole(folder: str, name: str, **settings: Any) -> PreTrainedModel:
    """Load a model by transformers; refuse a checkpoint that lacks weights, which transformers would draw at random."""
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True, **settings
        )
    except Exception as error:  # of damaged files, a quantizer that is not installed
        if out_of_memory(error):  # the files are not to blame
            raise
        raise ModelError(unreadable(name, error)) from error
    model, missing, others = loaded[0], sorted(loaded[1]["missing_keys"]), sorted(loaded[1]["mismatched_keys"])
    if others:
        key, stored, wanted = others[0]
        raise ModelError(
            f"model {name!r} has weights of other shapes than its config says: {key} is {list(stored)} in the file, and "
            f"{list(wanted)} by config.json; correct config.json, or fetch the checkpoint again"
        )
    if missing:
        raise ModelError(
            f"model {name!r} lacks {len(missing)} of its weights ({', '.join(missing[:3])}, ...), which would be drawn "
            "at random; the checkpoint is incomplete, or is not a causal language model"
        )
    _drop_unused_sampling(model)
    return model


def _drop_unused_sampling(model: PreTrainedModel) -> None:
    """Drop settings of sampling beside greedy decoding, which ignores them: transformers reads them, and refuses to write them.

    ``UNSAVED`` of the model keeps them for the saved file, for other programs do not ignore them.
    """
    generation, dropped = model.generation_config, dict[str, Any]()
    if generation is not None and not generation.do_sample:
        for name in _SAMPLING:
            if (value := getattr(generation, name, None)) is not None:
                dropped[name] = value
                setattr(generation, name, None)
    setattr(model, UNSAVED, dropped)
