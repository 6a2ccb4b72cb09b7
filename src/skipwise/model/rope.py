"""What a config says of its RoPE: its parameters, its original length, how far it reads, which layers slide.

A model has one set of ``rope_parameters``, or one for each kind of layer, as Gemma 3 does. Then the set of
``full_attention`` is the one that is read and extended. Sliding layers keep theirs, since they attend no farther than before.
"""

import math
from typing import Any

from transformers import PretrainedConfig

from skipwise.errors import ModelError
from skipwise.model.memory import head_size

_LEARNED = {"gpt2", "opt", "bert", "roberta", "gpt_bigcode", "gpt_neo", "distilbert", "electra", "xglm"}
_ALIBI = {"bloom", "mpt"}
CONVERTED = {"gptj", "baichuan"}
FULL, SLIDING = "full_attention", "sliding_attention"  # kinds of layers
SCALED = {"linear", "yarn", "llama3", "longrope"}


def rope_of(config: PretrainedConfig) -> dict[str, Any]:
    """Return the ``rope_parameters`` to extend: the model's one set, or that of its full-attention layers."""
    kind = config.model_type
    current = getattr(config, "rope_parameters", None)
    if kind in CONVERTED:
        raise ModelError(converted_first(kind, config.name_or_path))
    if not current and (text := config.get_text_config()) is not config:
        raise ModelError(
            f"model_type {kind} is a model of text and more; take its {text.model_type} alone: load it by its own class, "
            "save that model and its tokenizer in a folder, and give the folder"
        )
    if not current:
        what = "learned positions" if kind in _LEARNED else "ALiBi" if kind in _ALIBI else "no rope_parameters"
        raise ModelError(
            f"model_type {kind} has {what} in its config; PoSE needs rotary position embeddings whose scaling is set "
            "there, as in Llama, Mistral or Qwen"
        )
    extended = extended_set(current)
    if not isinstance(extended, dict) or ("rope_theta" not in extended and "rope_type" in extended):
        raise ModelError(
            f"config has rope_parameters {str(extended)[:80]}, which must give rope_theta, the base of the frequencies; "
            "correct config.json"
        )
    if "rope_theta" not in extended:
        raise ModelError(
            f"model_type {kind} has several RoPEs ({', '.join(map(str, current))}) and none for {FULL} layers, "
            "the only ones that can be extended; choose a model that has such layers"
        )
    return extended


def extended_set(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the RoPE that is read and extended: Gemma 3 has a set for each kind of layer, and most models have one."""
    return parameters.get(FULL) or parameters


def original_length(config: PretrainedConfig) -> int:
    """Return L_o as a config gives it; an NTK extension changes theta alone and is not recognised."""
    try:
        current = rope_of(config)
    except ModelError:  # not rotary
        current = {}
    return _original_length(config.get_text_config(), current)


def _original_length(config: PretrainedConfig, current: dict[str, Any]) -> int:
    """Return L_o: what a scaling gives, else the window divided by a linear factor, else the window.

    A linear scaling may leave ``max_position_embeddings`` at the base's value, which cannot be told from a raised one.
    """
    kind = current.get("rope_type", "default")
    given = None if kind == "default" else current.get("original_max_position_embeddings")
    if given is None and kind == "linear":
        _require_number("rope factor", current.get("factor"), "at least 1")
        return int(config.max_position_embeddings / current["factor"])
    if given is not None:
        _require_number("original_max_position_embeddings", given, "at least 1")
    return int(given or config.max_position_embeddings)


def reach_of(config: PretrainedConfig, original: int | None = None) -> int | None:
    """Return how many positions a model's RoPE was made for by its config; None if it does not say.

    ``max_position_embeddings`` is that length under llama3 and longrope, and in every model that Skipwise extended. Under
    yarn, linear and dynamic it may have stayed at the original length, as Qwen's model cards advise: then it is the original
    length times the factor. A linear or dynamic scaling does not state the original length, and without ``original`` it is
    taken for ``max_position_embeddings``: so a linear model whose length was raised already is said to read more than it does.
    """
    longest = getattr(config, "max_position_embeddings", None)
    # With a set for each kind of layer there is no rope_type, and the length is the one that is reached.
    rope = getattr(config, "rope_parameters", None) or {}
    if not isinstance(longest, int) or rope.get("rope_type") not in ("yarn", "linear", "dynamic"):
        return longest if isinstance(longest, int) else None
    stated, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    original = stated if isinstance(stated, int) and stated else original or longest
    factor = factor if isinstance(factor, int | float) and math.isfinite(factor) else 1
    return max(longest, round(original * factor))


def rotated_dims(config: PretrainedConfig, current: dict[str, Any]) -> int:
    """Return how many dimensions of each head a model rotates by its ``rope_parameters``."""
    return int(head_size(config) * current.get("partial_rotary_factor", 1.0))


def slides(config: PretrainedConfig) -> bool:
    """Return whether any layer attends to the last tokens alone; configs of older classes do not list their layers."""
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None) or [SLIDING]
    return bool(window and getattr(config, "use_sliding_window", True) is not False and SLIDING in layers)


def sliding_layers(config: PretrainedConfig) -> str | None:
    """Return a sentence on the layers whose reach does not grow with the extension, or None if there are none."""
    kinds = getattr(config, "layer_types", None) or []
    if not slides(config) or FULL not in kinds:
        return None
    own_rope = " and keep their own RoPE" if FULL in config.rope_parameters else ""
    return (
        f"{kinds.count(FULL)} of {len(kinds)} layers attend to all tokens and are extended; the others look back "
        f"{config.sliding_window:,} tokens{own_rope}"
    )


def check_numbers(config: PretrainedConfig, current: dict[str, Any]) -> None:
    """Refuse a config whose RoPE cannot be computed."""
    _require_number("max_position_embeddings", getattr(config, "max_position_embeddings", None), "at least 1")
    _require_number("rope_theta", current["rope_theta"], "above 1")
    if current.get("factor") is not None:  # longrope has a list instead
        _require_number("rope factor", current["factor"], "at least 1")
    if current.get("original_max_position_embeddings") is not None:
        _require_number("original_max_position_embeddings", current["original_max_position_embeddings"], "at least 1")
    share = current.get("partial_rotary_factor", 1.0)
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise ModelError(
            f"config has partial_rotary_factor {share!r}, which must be above 0 and at most 1; correct config.json"
        )
    try:
        dims = rotated_dims(config, current)
    except (AttributeError, RuntimeError):  # the second where transformers refuses to name one for all layers
        raise ModelError(
            f"config of type {config.model_type} has no head_dim, hidden_size or num_attention_heads that holds for all layers, "
            "so its frequencies cannot be set; choose another model"
        ) from None
    if dims < 2 or dims % 2:
        raise ModelError(
            f"config has {dims} dims to rotate in each head, which must be an even number of at least 2; correct head_dim, "
            "hidden_size, num_attention_heads or partial_rotary_factor in it"
        )


def _require_number(name: str, value: Any, rule: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 1 or (rule == "above 1" and value == 1):
        raise ModelError(f"config has {name} {value!r}, which must be a number {rule}; correct config.json")


def converted_first(kind: str, checkpoint: str | None) -> str:
    """Return the message for a model that ``skipwise convert`` must convert first."""
    return (
        f"model_type {kind} has rotary positions that its class cannot scale; write it as a stock class with the same "
        f"logits first: skipwise convert {checkpoint or 'CHECKPOINT'} OUT"
    )
