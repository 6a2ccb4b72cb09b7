"""What the model card says of each engine, by what the engine reads."""

import json

from skipwise.method.interpolation import Rope, RopeSettings, rope_parameters
from skipwise.model.serving import llama_cpp, unproved, vllm

ROPE, FACTOR = Rope(10_000.0, 64, 2048), 8.0


def config(name: str, **more: object) -> dict:
    return {
        "model_type": "llama",
        "rope_parameters": {**rope_parameters(name, ROPE, FACTOR), **more},
        "max_position_embeddings": 16384,
    }


def test_vllm_is_told_the_length() -> None:
    """Of ``linear`` it would derive the target times the factor."""
    assert vllm(16384, "DIR") == "`vllm serve DIR --max-model-len 16384`"


def test_vllm_finds_the_attention_factor_of_revised_yarn_under_its_own_names() -> None:
    rope = config("yarn-revised")["rope_parameters"]
    assert rope["short_mscale"] == rope["long_mscale"] == rope["attention_factor"]


def test_llama_cpp_reads_revised_yarn_in_its_llama_architecture_alone() -> None:
    for name in ("linear", "ntk", "yarn", "yarn-revised"):
        assert llama_cpp(config(name), 16384, "DIR").endswith("`llama-server -m model.gguf -c 16384`")
    assert llama_cpp({**config("yarn-revised"), "model_type": "qwen2"}, 16384, "DIR").startswith(
        "cannot read yarn-revised or factors in qwen2"
    )
    assert "another ramp" in llama_cpp({**config("yarn", beta_fast=16.0), "model_type": "qwen2"}, 16384, "DIR")
    assert "`skipwise export DIR" in llama_cpp(config("yarn", beta_fast=16.0), 16384, "DIR")
    assert "`skipwise export DIR" in llama_cpp({**config("yarn"), "model_type": "qwen2"}, 16384, "DIR")


def test_of_engines_that_were_not_run_it_is_said_what_they_would_misread(tmp_path) -> None:
    def said(run: set[str], **about: object) -> dict[str, str]:
        (tmp_path / "config.json").write_text(json.dumps(about))
        return dict(unproved(str(tmp_path), run))

    linear = said({"vllm"}, **config("linear"))
    assert "vLLM" not in linear
    assert linear["SGLang"] == ("start it with --context-length 16384, for it would derive the target times the factor")
    assert linear["Ollama"].startswith("it forgets the RoPE")
    assert linear["transformers 4"].startswith("it forgets the RoPE")
    both = said({"vllm", "llama.cpp"}, **config("linear"), rope_scaling={"rope_type": "linear", "factor": FACTOR})
    assert set(both) == {"SGLang", "TGI"}
    other = said(set(), **config("yarn", attention_factor=1.5))
    for name in ("vLLM", "SGLang"):
        assert other[name].endswith("; it takes 1.20794 for the attention_factor 1.5")
    assert "attention_factor" not in other["llama.cpp"]  # export writes it where llama.cpp reads it
    ours = rope_parameters("yarn", ROPE, FACTOR, RopeSettings(attention_factor=1.5))
    assert "attention_factor" not in "".join(said(set(), **config("yarn", **ours)).values())
    assert "attention_factor" not in "".join(said(set(), **config("yarn")).values())
    assert set(said(set(), **config("ntk"))) == {"vLLM", "llama.cpp", "SGLang"}


def test_of_kinds_of_layers_the_set_that_is_extended_counts() -> None:
    nested = {"sliding_attention": {"rope_type": "default"}, "full_attention": rope_parameters("yarn", ROPE, FACTOR)}
    model = {"model_type": "gemma3_text", "rope_parameters": nested, "max_position_embeddings": 16384}
    assert "gguf" in llama_cpp(model, 16384, "DIR")
