"""The keys by which readers older than transformers 5 know a model's RoPE and tokenizer.

transformers 5 reads ``rope_parameters``. transformers 4, and engines that follow it, pass over that entry without a
warning, and read ``rope_theta`` and ``rope_scaling`` at the top level. A saved model has both, and both say the same.
transformers 4 cannot load a tokenizer that transformers 5 saved under names of its own; the older names serve both.
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
    """Return the older keys that say what a config's ``rope_parameters`` say.

    ``rope_scaling`` has ``rope_type`` and, for readers before 2024, ``type``. Of a model with sets of its own for kinds
    of layers it says that of the full-attention layers; Gemma 3's sliding layers have ``rope_local_base_freq``.
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


def contradictions(config: dict[str, Any]) -> list[str]:
    """Return the older keys of a config that say otherwise than its ``rope_parameters``; engines read the one or the other."""
    if not isinstance(config.get("rope_parameters"), dict):
        return []
    return [key for key, value in legacy_keys(config).items() if key in config and not _agrees(config[key], value)]


def _agrees(ours: Any, theirs: Any) -> bool:
    """Whether two values agree; of two objects only what both have counts."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return all(_agrees(ours[key], theirs[key]) for key in ours.keys() & theirs.keys())
    return bool(ours == theirs)


def _read(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
