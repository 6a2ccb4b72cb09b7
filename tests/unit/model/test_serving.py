"""Lines of the model card for each engine."""

from skipwise.method.interpolation import Rope, rope_parameters
from skipwise.report.sharing import llama_cpp

ROPE, FACTOR = Rope(10_000.0, 64, 2048), 8.0


def config(name: str, **more: object) -> dict:
    return {
        "model_type": "llama",
        "rope_parameters": {**rope_parameters(name, ROPE, FACTOR), **more},
        "max_position_embeddings": 16384,
    }


def test_llama_cpp_reads_revised_yarn_in_its_llama_architecture_alone() -> None:
    for name in ("linear", "ntk", "yarn", "yarn-revised"):
        assert llama_cpp(config(name), 16384, "DIR").endswith("`llama-server -m model.gguf -c 16384`")
    for model in (config("yarn-revised"), config("yarn", beta_fast=16.0)):
        assert "export" not in llama_cpp({**model, "model_type": "qwen2"}, 16384, "DIR")
    assert "`skipwise export DIR" in llama_cpp(config("yarn", beta_fast=16.0), 16384, "DIR")
    assert "`skipwise export DIR" in llama_cpp({**config("yarn"), "model_type": "qwen2"}, 16384, "DIR")
