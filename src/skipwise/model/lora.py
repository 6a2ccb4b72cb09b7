"""LoRA: train low-rank additions to a frozen model, then merge them into it or keep them as an adapter.

W' = W + (alpha / r) B A, with B [out, r] and A [r, in] trained (Hu et al., 2022); peft implements it. An adapter stores
no RoPE settings, and stock loaders put it on the base as that is. So the adapter's folder has the extended
``config.json``, names a base that does not load by itself, and lists ``rope_parameters``, which makes peft warn.
"""

import copy
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from skipwise.errors import ModelError, RecipeError, pip_install, reason
from skipwise.model.precision import random_state_kept
from skipwise.recipes.names import PACKAGED, expanded
from skipwise.recipes.schema import Lora
from skipwise.results.files import read_json

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel

_CONFIG = "adapter_config.json"


def require_installed(rules: Lora) -> None:
    """Require peft, and bitsandbytes for a base in 4 bits."""
    if find_spec("peft") is None:
        raise RecipeError(f"lora needs the peft package: {pip_install('lora')}, or leave lora out")
    if rules.base == "4bit" and find_spec("bitsandbytes") is None:
        raise RecipeError(
            f"lora.base = '4bit' needs the bitsandbytes package: {pip_install('qlora')}, or set lora.base=auto"
        )


def stock_model(model: Any) -> PreTrainedModel:
    """Return the transformers model inside a peft model; any other model is returned as it is."""
    return getattr(model, "get_base_model", lambda: model)()


def adapt(model: PreTrainedModel, rules: Lora, seed: int = 0, *, state: Path | None = None) -> "PeftModel":
    """Freeze ``model`` and add the trainable float32 weights that ``rules`` ask for.

    A is drawn with ``seed`` and B begins at zero, unless ``state`` (safetensors) gives the values of both.
    """
    require_installed(rules)
    _check_targets(model, rules)
    try:
        with random_state_kept(model.device):
            torch.manual_seed(seed)
            return _with_additions(model, _peft_config(model, rules), load_file(state) if state else None)
    except ValueError as error:
        raise RecipeError(
            f"lora.targets = {rules.targets!r} cannot be adapted ({error}); name linear layers, or choose all-linear"
        ) from error


def _check_targets(model: PreTrainedModel, rules: Lora) -> None:
    """Refuse names that match no layer, and additions that cannot be merged into the weights they were trained on."""
    if isinstance(rules.targets, str):
        return
    parts = dict(model.named_modules())
    # By peft's rule, a target is a layer's whole name or the end of it after a dot.
    matches = {target: [name for name in parts if f".{name}".endswith(f".{target}")] for target in rules.targets}
    if unknown := [target for target, found in matches.items() if not found]:
        raise RecipeError(
            f"lora.targets: {', '.join(map(repr, unknown))} {'is' if len(unknown) == 1 else 'are'} no layer of this model; "
            f"its linear layers are called {', '.join(_names(model, lambda part: isinstance(part, torch.nn.Linear)))}"
        )
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    ends = sorted(name for found in matches.values() for name in found if parts[name] in (embedding, head))
    if ends and model.config.get_text_config().tie_word_embeddings:
        raise RecipeError(
            f"lora.targets: {ends[0]} shares its weight with the other embedding of the model, so its addition cannot be "
            "merged; leave it out, or train both embeddings by lora.also=[embeddings]"
        )
    if "embeddings" in rules.also and any(parts[name] is embedding for name in ends):
        raise RecipeError(
            f"lora.targets: all weights of {ends[0]} are trained by lora.also=[embeddings]; leave it out of one of the two"
        )


def trained_share(config: PretrainedConfig, rules: Lora) -> tuple[int, int]:
    """Return how many parameters are trained and how many the model has; no weights are allocated."""
    with torch.device("meta"):
        return adapt(AutoModelForCausalLM.from_config(config), rules).get_nb_trainable_parameters()


def merged(trained: Any, base: PreTrainedModel) -> PreTrainedModel:
    """Return the stock model that ``base`` becomes when the additions of ``trained`` are merged into its weights.

    ``base`` is changed in place. It may have a higher precision than the base that was trained on: then the merged
    weights are not rounded to 4 bits.
    """
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(trained, save_embedding_layers=False)
    state = {name: weight.to(base.device) for name, weight in state.items()}
    return _with_additions(base, trained.peft_config["default"], state).merge_and_unload(safe_merge=True)


def save_adapter(trained: Any, folder: Path, base: str, dtype: torch.dtype | str | None) -> None:
    """Write the adapter and the extended config, so that nobody puts it on an unscaled ``base`` unnoticed.

    ``dtype`` is that of the base's own config, which loaders take; what the base had in training does not concern them.
    """
    trained.save_pretrained(folder, save_embedding_layers=False)
    config = copy.deepcopy(stock_model(trained).config)
    vars(config).pop("quantization_config", None)
    config.dtype = dtype
    config.save_pretrained(folder)
    _describe(folder, rope_parameters=config.rope_parameters)
    name_base(folder, str(Path(base).resolve()) if Path(base).is_dir() else base)


def name_base(folder: Path, base: str) -> None:
    """Let the adapter in ``folder`` name its base, and stock loaders fail to find it: the base needs the adapter's config."""
    said = f"{base} with the config.json of this adapter, as its README.md shows"
    _describe(folder, base_model_name_or_path=said, skipwise_base=base)


def _describe(folder: Path, **fields: Any) -> None:
    path = folder / _CONFIG
    described = json.loads(path.read_text(encoding="utf-8")) | fields
    path.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def base_of(folder: str) -> str | None:
    """Return the base of the adapter in ``folder``, or None if the folder holds no adapter.

    An adapter that another program wrote is refused, since its base may need another config.

    Raises:
        ModelError: the adapter is another program's, its file is damaged, or its base is an adapter.
    """
    path = Path(folder) / _CONFIG
    if not path.is_file():
        return None
    try:
        described = read_json(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({reason(error)}); fetch the adapter again") from error
    if "skipwise_base" not in described:
        raise ModelError(
            f"{folder} is an adapter of {described.get('base_model_name_or_path')!r}; merge it into that model first "
            "(peft: merge_and_unload, save_pretrained)"
        )
    base = described["skipwise_base"]
    if not isinstance(base, str) or not base.strip():
        raise ModelError(
            f"{path} has skipwise_base {repr(base)[:60]}, which names no model; fetch the adapter again, or name its base there"
        )
    if base not in PACKAGED and (Path(expanded(base)) / _CONFIG).is_file():  # perhaps this one itself
        raise ModelError(
            f"{path} has skipwise_base {base!r}, which is an adapter, and an adapter's base is a whole model; name that there"
        )
    return base


def load_adapter(base: PreTrainedModel, folder: str, *, merge: bool) -> PreTrainedModel:
    """Put the adapter in ``folder`` on its base, and merge it into the base's weights if ``merge`` is true.

    Raises:
        ModelError: its settings or weights cannot be read, or do not fit together or the base.
    """
    require_installed(Lora())
    from peft import LoraConfig

    try:
        with _quiet():
            config = LoraConfig.from_pretrained(folder)
    except Exception as error:  # peft raises what it happens to meet in the file
        raise ModelError(
            f"{folder}/{_CONFIG} has no settings that peft can read ({type(error).__name__}: {reason(error)}); fetch the "
            "adapter again"
        ) from error
    if type(config) is not LoraConfig or config.megatron_config:  # older releases of peft would import what it names
        raise ModelError(
            f"{folder} is no adapter that skipwise wrote: its adapter_config.json asks peft for more than LoRA; extend again"
        )
    config.inference_mode = False
    try:
        state = load_file(Path(folder) / "adapter_model.safetensors")
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{folder}/adapter_model.safetensors cannot be read ({reason(error)}); fetch the adapter again"
        ) from error
    try:
        adapted = _with_additions(base, config, state)
        return adapted.merge_and_unload(safe_merge=True).requires_grad_(True) if merge else adapted
    except Exception as error:  # of settings of a wrong type, weights of another shape, layers that are not there
        said = str(error) if isinstance(error, ModelError) else f"{type(error).__name__}: {reason(error)}"
        raise ModelError(
            f"adapter {folder} cannot be put on its base: {said}; fetch the adapter again, or extend again"
        ) from error


def _with_additions(base: PreTrainedModel, config: "LoraConfig", state: dict[str, torch.Tensor] | None) -> Any:
    """Return ``base`` with new additions, or with those of ``state``; in bf16 their small updates would round to 0.

    Raises:
        ModelError: ``state`` lacks weights, which would be new ones, or has weights that belong nowhere.
    """
    from peft import get_peft_model, set_peft_model_state_dict

    with _quiet():
        adapted = get_peft_model(base, config)
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.data = weight.data.float()
        if state is not None:
            found: Any = set_peft_model_state_dict(adapted, state)
            added = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
            if missing := sorted(added & {*found.missing_keys}):
                raise ModelError(f"it lacks {len(missing)} of its weights ({', '.join(missing[:3])}, ...)")
            if others := sorted(found.unexpected_keys):
                raise ModelError(f"{len(others)} of its weights are of no layer ({', '.join(others[:3])}, ...)")
    return adapted


def _peft_config(model: PreTrainedModel, rules: Lora) -> "LoraConfig":
    from peft import LoraConfig

    embedding = model.get_input_embeddings()
    kinds: dict[str, Callable[[Any], bool]] = {
        "embeddings": lambda part: part is embedding,
        "norms": lambda part: type(part).__name__.endswith("Norm"),
    }
    whole = [name for kind in rules.also for name in _names(model, kinds[kind])]
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


def _names(model: PreTrainedModel, is_wanted: Callable[[Any], bool]) -> list[str]:
    """Return the last parts of the names of the wanted layers."""
    return sorted({name.split(".")[-1] for name, part in model.named_modules() if is_wanted(part)})


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide peft's warnings about what is intended here: ``rope_parameters``, the base's name, and renamed functions."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Unexpected keyword arguments|The PEFT config's")
        warnings.filterwarnings("ignore", category=FutureWarning)
        yield
