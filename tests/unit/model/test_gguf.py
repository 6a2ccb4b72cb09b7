from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config

from skipwise.errors import ModelError
from skipwise.method.interpolation import Rope, rope_parameters
from skipwise.model.convert import _set_attention, _set_rope, _set_tokenizer, round_matrices
from tests import tiny


def source(lists: dict[str, Any] | None = None, **settings: object) -> Any:
    """A file with settings, short for ``rope.scaling.KEY``, and lists of the RoPE."""

    def setting(name: str, default: object = None) -> object:
        return settings.get(name.split(".")[-1], default)

    tensors = [SimpleNamespace(name=name, data=data) for name, data in (lists or {}).items()]
    return SimpleNamespace(path=Path("m.gguf"), setting=setting, reader=SimpleNamespace(tensors=tensors))


def llama(**changes: Any) -> LlamaConfig:
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    settings = {"hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 2048, "rope_parameters": rope}
    return LlamaConfig(**{**settings, **changes})


@pytest.mark.parametrize(
    ("settings", "scaled"),
    [
        ({}, False),
        ({"type": "none", "factor": 8.0}, False),
        ({"scale_linear": 8.0}, True),  # without a type it is linear, as in llama.cpp
    ],
)
def test_a_linear_scaling_is_read(settings: dict[str, Any], scaled: bool) -> None:
    config = llama()
    _set_rope(config, source(**settings))
    expected = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 8.0} if scaled else llama().rope_parameters
    assert config.rope_parameters == expected


def test_yarn_is_what_skipwise_writes() -> None:
    config = llama()
    _set_rope(config, source(type="yarn", factor=8.0, original_context_length=256))
    expected = rope_parameters("yarn", Rope(10_000.0, 8, 256), 8.0)
    assert config.rope_parameters == pytest.approx(expected)


def test_llama_3_scaling_is_recognised() -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    expected = {
        "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    scaled = llama(hidden_size=256, rope_parameters=expected, max_position_embeddings=131_072)
    plain = {"rope_type": "default", "rope_theta": 500_000.0}
    config = llama(hidden_size=256, rope_parameters=plain, max_position_embeddings=131_072)
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](scaled, torch.device("cpu"))
    factors = (500_000.0 ** -(torch.arange(0, 64, 2) / 64) / frequencies).numpy()
    _set_rope(config, source({"rope_freqs.weight": factors}))
    assert config.rope_parameters == pytest.approx(expected)


@pytest.mark.parametrize(
    ("file", "what"),
    [
        (source(type="su", factor=8.0), "su"),
        (source({"rope_freqs.weight": np.array([1.0, 2.0, 4.0, 8.0])}), "rope_freqs.weight"),
    ],
)
def test_a_rope_that_is_not_known_is_refused(file: Any, what: str) -> None:
    with pytest.raises(ModelError, match=what):
        _set_rope(llama(), file)


def test_what_transformers_leaves_at_a_default_is_set() -> None:
    qwen = Qwen3Config()
    _set_attention(qwen, source(key_length=64))
    assert qwen.head_dim == 64
    gemma = Gemma3TextConfig(head_dim=128, hidden_size=5376, num_attention_heads=32)
    _set_attention(gemma, source())
    assert gemma.query_pre_attn_scalar == 128
    gemma.num_hidden_layers = 62
    _set_attention(gemma, source())
    assert gemma.query_pre_attn_scalar == 168


def tokenizer_of(pre: str, **more: object) -> Any:
    """A byte-level tokenizer as transformers reads it, with this ``tokenizer.ggml.pre``."""
    vocabulary = {**tiny.byte_tokenizer().get_vocab(), "see": 257, "Ġ1": 258}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ġ", "1")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|endoftext|>")
    given = {"model": "gpt2", "pre": pre, **more}
    file: Any = SimpleNamespace(get=lambda name, default=None: given.get(name.split(".")[-1], default))
    _set_tokenizer(tokenizer, file, 64)
    assert tokenizer.model_max_length == 64
    return tokenizer


@pytest.mark.parametrize(
    ("pre", "more", "tokens", "begins"),
    [
        ("gpt-2", {}, ["s", "e", "e", "Ġ", "Ġ1", "2"], 0),
        ("gpt-2", {"add_bos_token": True}, ["s", "e", "e", "Ġ", "Ġ1", "2"], 1),
        ("smollm", {}, ["s", "e", "e", "Ġ", "Ġ", "1", "2"], 0),  # each digit is a piece
        ("llama-bpe", {}, ["see", "Ġ", "Ġ1", "2"], 1),  # a piece that is a token is not merged
        ("llama-bpe", {"add_bos_token": False}, ["see", "Ġ", "Ġ1", "2"], 0),
    ],
)
def test_a_text_has_the_tokens_of_llama_cpp(pre: str, more: dict[str, object], tokens: list[str], begins: int) -> None:
    tokenizer = tokenizer_of(pre, **more)
    assert tokenizer.tokenize("see  12") == tokens
    assert tokenizer("see").input_ids[: begins + 1].count(0) == begins


def test_vectors_keep_their_digits_in_a_checkpoint_of_bfloat16(tmp_path: Path) -> None:
    model = tiny.llama()
    model.model.norm.weight.data.fill_(1.001)
    round_matrices(model, torch.bfloat16)
    model.save_pretrained(tmp_path)
    read = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert read.model.norm.weight[0] == torch.tensor(1.001)
    assert torch.equal(read.lm_head.weight, tiny.llama().lm_head.weight.to(torch.bfloat16).float())
    assert LlamaForCausalLM.from_pretrained(tmp_path, dtype="auto").dtype == torch.bfloat16
