"""How each inference engine loads an extended checkpoint, by what it reads of ``config.json``.

Read off the engines' own loaders: vLLM's ``get_rope`` and the length that it derives from a config, and llama.cpp's
``convert_hf_to_gguf.py``. Both compute YaRN's frequencies and its attention factor 0.1 ln s + 1 as transformers does.
"""

import json
from typing import Any

_COMPLETE = {"default", "linear", "yarn"}


def vllm(config: dict[str, Any], path: str) -> str:
    """The command that serves the checkpoint at ``path``, or why there is none.

    The length is always said: of ``linear`` vLLM would derive ``max_position_embeddings`` times the factor.

    Args:
        config: the checkpoint's ``config.json``.
        path: as it is to stand in the command.
    """
    rope = _rope(config)
    if rope["rope_type"] == "longrope" and rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "cannot express revised YaRN where a part of each head is rotated; extend with yarn, ntk or linear"
    return f"`vllm serve {path} --max-model-len {config['max_position_embeddings']}`"


def llama_cpp(config: dict[str, Any], path: str) -> str:
    """The commands that convert and serve the checkpoint at ``path``, or why there are none."""
    if _rope(config)["rope_type"] not in _COMPLETE:
        return (
            "cannot express revised YaRN: its converter writes the name and leaves the frequencies out; extend with "
            "yarn, ntk or linear"
        )
    return (
        f"`python convert_hf_to_gguf.py {path} --outfile model.gguf`, then "
        f"`llama-server -m model.gguf -c {config['max_position_embeddings']}`"
    )


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """The set that is extended, where kinds of layers have sets of their own."""
    rope = config["rope_parameters"]
    return rope.get("full_attention") or rope


def transformers(path: str) -> str:
    """The lines that load the checkpoint at ``path``."""
    return "\n".join(
        [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f"model = AutoModelForCausalLM.from_pretrained({json.dumps(path)})",
            f"tokenizer = AutoTokenizer.from_pretrained({json.dumps(path)})",
        ]
    )


def peft(base: str, path: str) -> str:
    """The lines that put the adapter at ``path`` on its base, with the adapter's own ``config.json``."""
    return "\n".join(
        [
            "from peft import PeftModel",
            "from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer",
            "",
            f"config = AutoConfig.from_pretrained({json.dumps(path)})  # the extended RoPE is here",
            f"base = AutoModelForCausalLM.from_pretrained({json.dumps(base)}, config=config)",
            f"model = PeftModel.from_pretrained(base, {json.dumps(path)})",
            f"tokenizer = AutoTokenizer.from_pretrained({json.dumps(path)})",
        ]
    )
