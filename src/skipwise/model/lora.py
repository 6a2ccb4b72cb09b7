"""LoRA: train small additions to a frozen model, then merge them into it or keep them as an adapter.

W' = W + (alpha / r) B A with B [out, r] and A [r, in] trained (Hu et al., 2022); peft does it. An adapter stores no
RoPE settings of its own, and stock loaders put it on the base as that is: so its folder has the extended
``config.json``, names no base that loads by itself, and lists ``rope_parameters``, which peft warns about.
"""

import copy
import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from skipwise.errors import ModelError, RecipeError
from skipwise.recipes.schema import Lora

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel

_CONFIG = "adapter_config.json"


def require_installed(rules: Lora) -> None:
    """Require the packages that the recipe's LoRA section needs.

    Raises:
        RecipeError: peft, or for a base in 4 bits bitsandbytes, is not installed.
    """
    if find_spec("peft") is None:
        raise RecipeError("lora needs the peft package: pip install 'skipwise[lora]', or leave lora out")
    if rules.base == "4bit" and find_spec("bitsandbytes") is None:
        raise RecipeError(
            "lora.base = '4bit' needs the bitsandbytes package: pip install 'skipwise[qlora]', or set lora.base=auto"
        )


def adapt(model: PreTrainedModel, rules: Lora, seed: int = 0, *, state: Path | None = None) -> "PeftModel":
    """Freeze ``model`` and put the additions that ``rules`` ask for into it; what is trained is float32.

    A is drawn with ``seed`` and B begins at zero, unless a ``state`` (safetensors) is given that they are to have.

    Raises:
        RecipeError: the targets match no layer; the names that there are.
    """
    require_installed(rules)
    _check_targets(model, rules)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return _with_additions(model, _peft_config(model, rules), load_file(state) if state else None)
    except ValueError as error:
        raise RecipeError(
            f"lora.targets = {rules.targets!r} cannot be adapted ({error}); name linear layers, or take all-linear"
        ) from error


def _check_targets(model: PreTrainedModel, rules: Lora) -> None:
    """Refuse names of no layer, and additions that merging would put where they were not trained."""
    if isinstance(rules.targets, str):
        return
    names = {name for name, _ in model.named_modules()}

    def found(target: str) -> set[str]:  # as peft matches them
        return {name for name in names if name == target or name.endswith(f".{target}")}

    linear = {
        name.split(".")[-1] for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)
    }
    if unknown := [target for target in rules.targets if not found(target)]:
        raise RecipeError(
            f"lora.targets: {', '.join(map(repr, unknown))} {'is' if len(unknown) == 1 else 'are'} no layer of this model; "
            f"its linear layers are called {', '.join(sorted(linear))}"
        )
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    matched = set().union(*(found(target) for target in rules.targets))
    shared = [name for name in sorted(matched) if any(model.get_submodule(name) is end for end in ends)]
    if shared and model.config.get_text_config().tie_word_embeddings:
        raise RecipeError(
            f"lora.targets: {shared[0]} shares its weight with the other end of the model, so that an addition to one of "
            "them cannot be merged; leave it out, or train both whole by lora.also=[embeddings]"
        )
    if "embeddings" in rules.also and any(model.get_submodule(name) is ends[0] for name in shared):
        raise RecipeError(
            f"lora.targets: {shared[0]} is trained whole by lora.also=[embeddings]; leave it out of one of the two"
        )


def trained_share(config: PretrainedConfig, rules: Lora) -> tuple[int, int]:
    """How many parameters are trained, and how many there are; no weights are made.

    Raises:
        RecipeError: the targets match no layer.
    """
    with torch.device("meta"):
        adapted = adapt(AutoModelForCausalLM.from_config(config), rules)
    return adapted.get_nb_trainable_parameters()


def merged(trained: Any, base: PreTrainedModel) -> PreTrainedModel:
    """The stock model that ``base`` becomes when the additions of ``trained`` are merged into its weights.

    ``base`` is changed in place. It may be of higher precision than the base that was trained on, which is right:
    rounding to 4 bits and back would be saved otherwise.
    """
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(trained, save_embedding_layers=False)
    state = {name: weight.to(base.device) for name, weight in state.items()}
    return _stock(_with_additions(base, trained.peft_config["default"], state))


def save_adapter(trained: Any, folder: Path, base: str) -> None:
    """Write the adapter with the extended config beside it, so that it is not put on an unscaled base unnoticed.

    Args:
        trained: the adapted model.
        folder: where to.
        base: the model that was adapted: a name on the hub, or a folder.
    """
    base = str(Path(base).resolve()) if Path(base).is_dir() else base
    trained.save_pretrained(folder, save_embedding_layers=False)
    config = copy.deepcopy(trained.get_base_model().config)
    # How the base was held in training says nothing about the adapter.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.save_pretrained(folder)
    path = folder / _CONFIG
    described = json.loads(path.read_text(encoding="utf-8"))
    described["base_model_name_or_path"] = (
        f"{base} with the config.json of this adapter, as its README.md shows"
    )
    described["rope_parameters"] = config.rope_parameters
    described["skipwise_base"] = base
    path.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def base_of(folder: str) -> str | None:
    """The base of the adapter in ``folder``; None where there is no adapter of ours.

    Raises:
        ModelError: an adapter that another program wrote, whose base may need another config.
    """
    path = Path(folder) / _CONFIG
    if not path.is_file():
        return None
    described = json.loads(path.read_text(encoding="utf-8"))
    if "skipwise_base" not in described:
        raise ModelError(
            f"{folder} is an adapter of {described.get('base_model_name_or_path')!r}; merge it into that model first "
            "(peft: merge_and_unload, save_pretrained)"
        )
    return described["skipwise_base"]


def load_adapter(base: PreTrainedModel, folder: str, *, merge: bool) -> PreTrainedModel:
    """Put the adapter in ``folder`` on its base, and merge it into its weights if asked to.

    Raises:
        RecipeError: peft is not installed.
    """
    require_installed(Lora())
    from peft import LoraConfig

    with _quiet():
        config = LoraConfig.from_pretrained(folder)
    config.inference_mode = False
    adapted = _with_additions(base, config, load_file(Path(folder) / "adapter_model.safetensors"))
    return _stock(adapted) if merge else cast(PreTrainedModel, adapted)


def _with_additions(
    base: PreTrainedModel, config: "LoraConfig", state: dict[str, torch.Tensor] | None = None
) -> "PeftModel":
    """``base`` with new additions, or those of ``state``; in bf16 small updates of them would be rounded away."""
    from peft import get_peft_model, set_peft_model_state_dict

    with _quiet():
        adapted = get_peft_model(base, config)
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.data = weight.data.float()
        if state is not None:
            set_peft_model_state_dict(adapted, state)
    return adapted


def _stock(adapted: Any) -> PreTrainedModel:
    return adapted.merge_and_unload(safe_merge=True)


def _peft_config(model: PreTrainedModel, rules: Lora) -> "LoraConfig":
    from peft import LoraConfig

    whole = [name for kind in rules.also for name in _layer_names(model, kind)]
    tied = bool(model.config.get_text_config().tie_word_embeddings)
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=rules.rank,
        lora_alpha=cast(int, rules.alpha) if rules.alpha is not None else 2 * rules.rank,
        lora_dropout=rules.dropout,
        target_modules=rules.targets,
        modules_to_save=whole or None,
        ensure_weight_tying=tied and "embeddings" in rules.also,
    )


def _layer_names(model: PreTrainedModel, kind: str) -> list[str]:
    """The last parts of the names of the input embedding, or of every layer norm."""
    embedding = model.get_input_embeddings()
    if kind == "embeddings":
        parts = [name for name, part in model.named_modules() if part is embedding]
    else:
        parts = [name for name, part in model.named_modules() if type(part).__name__.endswith("Norm")]
    return sorted({name.split(".")[-1] for name in parts})


class _quiet(warnings.catch_warnings):  # noqa: N801 (a context manager, named as one)
    """Without peft's warnings of what is meant: our ``rope_parameters`` and base, and what transformers renamed."""

    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.filterwarnings("ignore", message="Unexpected keyword arguments|The PEFT config's")
        warnings.filterwarnings("ignore", category=FutureWarning)
        return entered
