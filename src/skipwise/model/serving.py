"""How to load an extended checkpoint in each inference engine, and what those make of it that were not run.

What is said of transformers, vLLM and llama.cpp was run (docs/engines.md); what is said of SGLang, Ollama and TGI is read
off their loaders.
"""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from skipwise.method.interpolation import BETA_FAST, BETA_SLOW, yarn_attention
from skipwise.model.origin import promised_length
from skipwise.model.rope import extended_set

FACTORS_BY_FREQUENCY = {"llama", "mistral", "mixtral"}  # model types whose GGUF architecture is llama


def vllm(length: int, path: str) -> str:
    """Return the command that serves the checkpoint at ``path`` up to ``length`` tokens.

    It gives the length: for ``linear``, vLLM would derive ``max_position_embeddings`` times the factor.
    """
    return f"`vllm serve {path} --max-model-len {length}`"


def llama_cpp(config: dict[str, Any], length: int, path: str) -> str:
    """Return the commands that convert and serve the checkpoint at ``path``, or why llama.cpp cannot serve it."""
    rope = _extended_rope(config)
    if by_frequency(rope) and config["model_type"] not in FACTORS_BY_FREQUENCY:
        what = "yarn-revised or factors" if rope["rope_type"] == "longrope" else "another ramp than YaRN's own"
        return (
            f"cannot read {what} in {config['model_type']}; extend with yarn as it is by default, ntk, theta or linear"
        )
    return (
        f"`skipwise export {path} --out model.gguf`, which reads the file in llama.cpp and compares it, then "
        f"`llama-server -m model.gguf -c {length}`"
    )


def by_frequency(rope: dict[str, Any]) -> bool:
    """Return whether llama.cpp reads a RoPE only as factors by frequency, which it takes in its llama architecture alone.

    Of YaRN's keys it reads ``yarn_beta_fast`` and ``yarn_beta_slow`` for few architectures, and llama is none of them.
    """
    kind = rope.get("rope_type")
    ramp = (rope.get("beta_fast") or BETA_FAST, rope.get("beta_slow") or BETA_SLOW)
    return kind == "longrope" or (kind == "yarn" and ramp != (BETA_FAST, BETA_SLOW))


def unproved(model: str, run: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the engines that are not among those ``run``, and what each makes of the checkpoint in folder ``model``."""
    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    rope = _extended_rope(config)
    kind, target = rope.get("rope_type", "default"), promised_length(model) or config["max_position_embeddings"]
    # vLLM and SGLang multiply YaRN's own attention factor by attn_factor. What skipwise export writes has the true one.
    read = yarn_attention(rope["factor"]) * rope.get("attn_factor", 1.0) if kind == "yarn" else 1.0
    stated = rope.get("attention_factor", read) if kind == "yarn" else read
    dropped = f"; it takes {read:g} for the attention_factor {stated:g}" if abs(stated - read) > 1e-6 else ""
    if "vllm" not in run:
        yield "vLLM", vllm(target, model) + dropped
    if "llama.cpp" not in run:
        yield "llama.cpp", llama_cpp(config, target, model)
    why = ", for it would derive the target times the factor" if kind == "linear" else ""
    yield "SGLang", f"start it with --context-length {target}{why}{dropped}"
    if kind != "default" and "rope_scaling" not in config:
        yield (
            "Ollama",
            "it forgets the RoPE: of safetensors it reads rope_scaling at the top level of config.json alone",
        )
        yield "transformers 4", "it forgets the RoPE: it reads rope_scaling at the top level of config.json alone"
    if kind != "default":
        yield "TGI", "it reads no RoPE scaling from the config; use another engine"


def _extended_rope(config: dict[str, Any]) -> dict[str, Any]:
    """Return the RoPE settings that were extended; Gemma 3 has one set for each kind of layer."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return extended_set(rope)


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
