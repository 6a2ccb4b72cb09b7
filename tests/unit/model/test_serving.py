"""What the model card says of each engine, by what the engine reads."""

import pytest

from skipwise.method.interpolation import Rope, rope_parameters
from skipwise.model.serving import llama_cpp, vllm

ROPE, FACTOR = Rope(10_000.0, 64, 2048), 8.0


def config(name: str, **more: object) -> dict:
    return {"rope_parameters": {**rope_parameters(name, ROPE, FACTOR), **more}, "max_position_embeddings": 16384}


@pytest.mark.parametrize("name", ["linear", "ntk", "yarn", "yarn-revised"])
def test_vllm_is_told_the_length(name: str) -> None:
    """Of ``linear`` it would derive the target times the factor."""
    assert vllm(config(name), "DIR") == "`vllm serve DIR --max-model-len 16384`"


def test_vllm_finds_the_attention_factor_of_revised_yarn_under_its_own_names() -> None:
    rope = config("yarn-revised")["rope_parameters"]
    assert rope["short_mscale"] == rope["long_mscale"] == rope["attention_factor"]
    assert "cannot express revised YaRN" in vllm(config("yarn-revised", partial_rotary_factor=0.5), "DIR")


def test_llama_cpp_takes_all_but_revised_yarn() -> None:
    for name in ("linear", "ntk", "yarn"):
        assert llama_cpp(config(name), "DIR").endswith("`llama-server -m model.gguf -c 16384`")
    assert llama_cpp(config("yarn-revised"), "DIR").startswith("cannot express revised YaRN")


def test_of_kinds_of_layers_the_set_that_is_extended_counts() -> None:
    nested = {"sliding_attention": {"rope_type": "default"}, "full_attention": rope_parameters("yarn", ROPE, FACTOR)}
    model = {"rope_parameters": nested, "max_position_embeddings": 16384}
    assert vllm(model, "DIR") == "`vllm serve DIR --max-model-len 16384`"
    assert "gguf" in llama_cpp(model, "DIR")
