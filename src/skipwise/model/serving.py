"""Write the model card's lines on loading and serving; each was run (docs/engines.md)."""

import json
from typing import Any

from skipwise.method.interpolation import BETA_FAST, BETA_SLOW
from skipwise.model.config import extended_set

FACTORS_BY_FREQUENCY = {"llama", "mistral", "mixtral"}  # model types with the architecture llama in GGUF


def vllm(length: int, path: str) -> str:
    """Return vLLM's command; without a length it multiplies that of ``linear`` by the factor."""
    return f"`vllm serve {path} --max-model-len {length}`"


def llama_cpp(config: dict[str, Any], length: int, path: str) -> str:
    """Return the commands for llama.cpp, or why it cannot serve the model."""
    rope = extended_set(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if by_frequency(rope) and config["model_type"] not in FACTORS_BY_FREQUENCY:
        return (
            f"cannot read this RoPE in {config['model_type']}. Extend with yarn without settings, ntk, theta or linear"
        )
    return (
        f"`skipwise export {path} --out model.gguf`, which checks the file in llama.cpp, then "
        f"`llama-server -m model.gguf -c {length}`"
    )


def by_frequency(rope: dict[str, Any]) -> bool:
    """Return True if llama.cpp needs factors by frequency for a RoPE, which only its architecture llama has.

    It reads the keys of YaRN's ramp, ``yarn_beta_fast`` and ``yarn_beta_slow``, for few architectures.
    """
    kind = rope.get("rope_type")
    ramp = (rope.get("beta_fast") or BETA_FAST, rope.get("beta_slow") or BETA_SLOW)
    return kind == "longrope" or (kind == "yarn" and ramp != (BETA_FAST, BETA_SLOW))


def transformers(path: str) -> str:
    """Return Python code that loads a checkpoint."""
    return f"""\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained({json.dumps(path)})
tokenizer = AutoTokenizer.from_pretrained({json.dumps(path)})"""


def peft(base: str, path: str) -> str:
    """Return Python code that loads an adapter with its base."""
    return f"""\
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

config = AutoConfig.from_pretrained({json.dumps(path)})  # has the extended RoPE
base = AutoModelForCausalLM.from_pretrained({json.dumps(base)}, config=config)
model = PeftModel.from_pretrained(base, {json.dumps(path)})
tokenizer = AutoTokenizer.from_pretrained({json.dumps(path)})"""
