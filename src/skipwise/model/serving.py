"""How to load an extended checkpoint in each inference engine, by what the engine reads of ``config.json``.

Taken from the engines' own loaders: vLLM's ``get_rope`` and the length that it derives from a config, and llama.cpp's
``convert_hf_to_gguf.py``. Both compute YaRN's frequencies and its attention factor 0.1 ln s + 1 as transformers does.
"""

import json
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

_CONVERTED_BY_LLAMA_CPP = {"default", "linear", "yarn"}


def vllm(config: dict[str, Any], path: str) -> str:
    """Return the command that serves the checkpoint at ``path``, or why vLLM cannot serve it.

    The command always gives the length: for ``linear``, vLLM would derive ``max_position_embeddings`` times the factor.
    """
    rope = _extended_rope(config)
    if rope["rope_type"] == "longrope" and rope.get("partial_rotary_factor", 1.0) != 1.0:
        return (
            "cannot express revised YaRN in a model that rotates a part of each head; extend with yarn, ntk or linear"
        )
    return f"`vllm serve {path} --max-model-len {config['max_position_embeddings']}`"


def llama_cpp(config: dict[str, Any], path: str) -> str:
    """Return the commands that convert and serve the checkpoint at ``path``, or why llama.cpp cannot serve it."""
    if _extended_rope(config)["rope_type"] not in _CONVERTED_BY_LLAMA_CPP:
        return (
            "cannot express revised YaRN: its converter writes the name and leaves the frequencies out; extend with "
            "yarn, ntk or linear"
        )
    return (
        f"`python convert_hf_to_gguf.py {path} --outfile model.gguf`, then "
        f"`llama-server -m model.gguf -c {config['max_position_embeddings']}`"
    )


def unproved(model: str, run: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield engines that were not run, and what each makes of this checkpoint by its own loader."""
    try:
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
        rope = _extended_rope(config)
    except (OSError, ValueError, KeyError):
        return
    kind, target = rope.get("rope_type", "default"), config.get("max_position_embeddings")
    if "vllm" not in run:
        yield "vLLM", f"{vllm(config, model)}"
    if "llama.cpp" not in run:
        yield "llama.cpp", f"{llama_cpp(config, model)}"
    length = f"give it --context-length {target}" + (", for it derives target x factor" if kind == "linear" else "")
    default = 0.1 * math.log(rope["factor"]) + 1 if "factor" in rope else 1.0
    if abs(rope.get("attention_factor", default) - default) > 1e-6:
        length += "; it drops an attention_factor that is not 0.1 ln(factor) + 1"
    yield "SGLang", length
    older = (
        "the older keys are there" if "rope_theta" in config else "the older keys are missing, so it forgets the RoPE"
    )
    yield "Ollama", f"of safetensors it reads rope_theta and rope_scaling at the top level alone: {older}"
    if kind != "default":
        yield (
            "TGI",
            f"it reads no scaling from the config; start it with --rope-scaling, or serve with vLLM ({kind} here)",
        )


def _extended_rope(config: dict[str, Any]) -> dict[str, Any]:
    """Return the RoPE settings that were extended; Gemma 3 has one set for each kind of layer."""
    rope = config["rope_parameters"]
    return rope.get("full_attention") or rope


def transformers(path: str) -> str:
    """Return Python code that loads the checkpoint at ``path``."""
    return f"""\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained({json.dumps(path)})
tokenizer = AutoTokenizer.from_pretrained({json.dumps(path)})"""


def peft(base: str, path: str) -> str:
    """Return Python code that puts the adapter at ``path`` on its base, with the adapter's own ``config.json``."""
    return f"""\
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

config = AutoConfig.from_pretrained({json.dumps(path)})  # has the extended RoPE
base = AutoModelForCausalLM.from_pretrained({json.dumps(base)}, config=config)
model = PeftModel.from_pretrained(base, {json.dumps(path)})
tokenizer = AutoTokenizer.from_pretrained({json.dumps(path)})"""
