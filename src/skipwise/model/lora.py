"""LoRA: train low-rank additions to a frozen model, then merge them or keep them as an adapter; bases in 4 bits.

W' = W + (alpha / r) B A, with B [out, r] and A [r, in] trained (Hu et al., 2022); peft implements it. peft's adapters store
no RoPE settings, and stock loaders put them on the unscaled base. So the adapter's folder has the extended ``config.json``,
names a base that does not load by itself, and lists ``rope_parameters``, which makes peft warn. Bases in 4 bits are nf4 of
bitsandbytes (Dettmers et al., 2023).
"""

import copy
import logging
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PretrainedConfig, PreTrainedModel

from skipwise.errors import ModelError, RecipeError, library_errors, pip_install
from skipwise.model.forward import random_state_kept, stock_model
from skipwise.recipes.schema import Lora
from skipwise.results.files import read_json, write_json

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel

_CONFIG = "adapter_config.json"


def require_installed(rules: Lora) -> None:
    """Require peft, and bitsandbytes for a base in 4 bits."""
    if find_spec("peft") is None:
        raise RecipeError(f"lora needs the package peft: {pip_install('lora')}. Or leave lora out")
    if rules.load_in_4bit and find_spec("bitsandbytes") is None:
        raise RecipeError(f"lora.load_in_4bit needs the package bitsandbytes: {pip_install('qlora')}. Or leave it out")


def adapt(model: PreTrainedModel, rules: Lora, seed: int = 0, *, state: Path | None = None) -> "PeftModel":
    """Freeze ``model`` and add float32 weights: A drawn with ``seed`` and B zero, or those of ``state`` (safetensors)."""
    require_installed(rules)
    from peft import LoraConfig

    embedding = model.get_input_embeddings()
    kinds = {
        "embeddings": _names(model, lambda part: part is embedding),
        "norms": _names(model, lambda part: type(part).__name__.endswith("Norm")),
    }
    whole = [name for kind in rules.modules_to_save for name in kinds.get(kind, [kind])]
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=rules.r,
        lora_alpha=cast(int, rules.lora_alpha) if rules.lora_alpha is not None else 2 * rules.r,
        lora_dropout=rules.lora_dropout,
        target_modules=rules.target_modules,
        modules_to_save=whole or None,
        ensure_weight_tying=bool(model.config.get_text_config().tie_word_embeddings)
        and "embeddings" in rules.modules_to_save,
    )
    # peft adapts the other targets if one matches no layer. Its rule: the end of a layer's name after a dot.
    names = [f".{name}" for name, _ in model.named_modules()]
    listed = [*whole, *([] if isinstance(rules.target_modules, str) else rules.target_modules)]
    if unknown := [target for target in listed if not any(name.endswith(f".{target}") for name in names)]:
        linear = ", ".join(_names(model, lambda part: isinstance(part, torch.nn.Linear)))
        raise RecipeError(f"lora: the model has no layers {', '.join(unknown)}. The linear layers are {linear}")
    with random_state_kept(model.device):
        torch.manual_seed(seed)
        return _with_additions(model, config, load_file(state) if state else None)


def _names(model: PreTrainedModel, is_wanted: Callable[[Any], bool]) -> list[str]:
    """Return the last parts of the names of the wanted layers."""
    return sorted({name.split(".")[-1] for name, part in model.named_modules() if is_wanted(part)})


def trained_share(config: PretrainedConfig, rules: Lora) -> tuple[int, int]:
    """Return the numbers of trained and of all parameters; no weights are allocated."""
    with torch.device("meta"):
        return adapt(AutoModelForCausalLM.from_config(config), rules).get_nb_trainable_parameters()


def merged(trained: Any, base: PreTrainedModel) -> PreTrainedModel:
    """Merge additions into ``base``, which may have a higher precision than in training; return the stock model."""
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(trained, save_embedding_layers=False)
    state = {name: weight.to(base.device) for name, weight in state.items()}
    return _with_additions(base, trained.peft_config["default"], state).merge_and_unload(safe_merge=True)


def save_adapter(trained: Any, folder: Path, base: str, dtype: torch.dtype | str | None) -> None:
    """Write the adapter and the extended config; ``dtype`` is that of the base's config."""
    trained.save_pretrained(folder, save_embedding_layers=False)
    config = copy.deepcopy(stock_model(trained).config)
    vars(config).pop("quantization_config", None)
    config.dtype = dtype
    config.save_pretrained(folder)
    name_base(folder, str(Path(base).resolve()) if Path(base).is_dir() else base, config.rope_parameters)


def name_base(folder: Path, base: str, rope_parameters: dict[str, Any] | None = None) -> None:
    """Set the base of an adapter; stock loaders do not find it, because it needs the adapter's config."""
    path = folder / _CONFIG
    described = read_json(path) | ({"rope_parameters": rope_parameters} if rope_parameters else {})
    described["base_model_name_or_path"] = f"{base} with the config.json of this adapter, as its README.md shows"
    write_json(path, described | {"skipwise_base": base})


def base_of(folder: str) -> str | None:
    """Return the base of the adapter in ``folder``; None without an adapter."""
    path = Path(folder) / _CONFIG
    if not path.is_file():
        return None
    with library_errors(ModelError, f"{path} cannot be read", "Fetch the adapter again"):
        described = read_json(path)
    if "skipwise_base" not in described:
        raise ModelError(
            f"{folder} is an adapter of {described.get('base_model_name_or_path')!r}. Merge it into that model first (peft: "
            "merge_and_unload, save_pretrained)"
        )
    return str(described["skipwise_base"])


def load_adapter(base: PreTrainedModel, folder: str, *, merge: bool) -> PreTrainedModel:
    """Put the adapter in ``folder`` on its base; ``merge`` adds it to the base's weights."""
    require_installed(Lora())
    from peft import LoraConfig

    fix = "Fetch the adapter again, or extend again"
    with library_errors(ModelError, f"adapter {folder} cannot be put on its base", fix):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Unexpected keyword arguments")  # rope_parameters
            config = LoraConfig.from_pretrained(folder)
        config.inference_mode = False
        config.megatron_config = None  # older releases import Megatron by a name in the file
        adapted = _with_additions(base, config, load_file(Path(folder) / "adapter_model.safetensors"))
        return adapted.merge_and_unload(safe_merge=True).requires_grad_(True) if merge else adapted


def _with_additions(base: PreTrainedModel, config: "LoraConfig", state: dict[str, torch.Tensor] | None) -> Any:
    """Return ``base`` with new additions, or with those of ``state``; in bf16 small updates would round to 0."""
    from peft import get_peft_model, set_peft_model_state_dict

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The PEFT config's")  # the base's name
        warnings.filterwarnings("ignore", category=FutureWarning)
        adapted = get_peft_model(base, config)
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.data = weight.data.float()
        if state is not None:
            set_peft_model_state_dict(adapted, state)
    return adapted


def four_bit_settings(dtype: torch.dtype, device: torch.device | str) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` that load linear layers in 4 bits and compute in ``dtype``."""
    logging.getLogger("bitsandbytes").setLevel(logging.NOTSET)  # raised in ``skipwise.model``
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:  # accelerate compares it with the index of a process's GPU
        device = torch.device("cuda", torch.cuda.current_device())
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    return {"quantization_config": config, "device_map": {"": device}}
