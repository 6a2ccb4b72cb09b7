"""Write RoPE and tokenizer under the keys of transformers 4 too.

transformers 5 reads ``rope_parameters``. transformers 4, and engines that follow it, ignore that entry without a
warning and read ``rope_theta`` and ``rope_scaling`` at the top level. A saved model has both, with equal values.
transformers 4 cannot load a tokenizer under transformers 5's class names; both load the older names.
"""

import json
from pathlib import Path
from typing import Any

from skipwise.model.rope import SLIDING, extended_set

_ELSEWHERE = ("rope_theta", "partial_rotary_factor")  # older readers have them at the top level


def write_legacy_keys(folder: Path) -> None:
    """Add the older keys to ``config.json`` and ``tokenizer_config.json`` of a saved model."""
    config = _read(folder / "config.json")
    _write(folder / "config.json", config | legacy_keys(config))
    path = folder / "tokenizer_config.json"
    if path.exists():
        tokenizer = _read(path)
        if tokenizer.get("tokenizer_class") == "TokenizersBackend":
            tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
        if isinstance(tokenizer.get("extra_special_tokens"), list):
            tokenizer["additional_special_tokens"] = tokenizer.pop("extra_special_tokens")
        _write(path, tokenizer)


def legacy_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Return the older keys with the values of a config's ``rope_parameters``.

    ``rope_scaling`` has ``rope_type`` and, for readers before 2024, ``type``. For a model with one RoPE for each kind of
    layer it has that of the full-attention layers; Gemma 3's sliding layers have ``rope_local_base_freq``.
    """
    sets = config["rope_parameters"]
    rope = extended_set(sets)
    kind = rope.get("rope_type", "default")
    scaling = {"type": kind, **{key: value for key, value in rope.items() if key not in _ELSEWHERE}}
    keys = {"rope_scaling": None if kind == "default" else scaling, **{k: rope[k] for k in _ELSEWHERE if k in rope}}
    if SLIDING in sets:
        keys["rope_local_base_freq"] = sets[SLIDING]["rope_theta"]
    if config["model_type"] == "gpt_neox":
        keys |= {"rotary_emb_base": rope["rope_theta"], "rotary_pct": rope.get("partial_rotary_factor", 1.0)}
    return keys


def _read(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
