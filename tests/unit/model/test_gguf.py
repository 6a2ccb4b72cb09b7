"""What is read of a GGUF file's settings; the package that reads them is not needed here."""

from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import Gemma3TextConfig, GPT2Config, LlamaConfig, Qwen3Config

from skipwise.errors import ModelError
from skipwise.method.interpolation import Rope, rope_parameters
from skipwise.model.gguf import GGUFFile, _set_attention, _set_rope
from skipwise.model.gguf_tokenizer import read_tokenizer
from tests import tiny

CONSOLE = Console(quiet=True)


def source(lists: dict[str, Any] | None = None, **settings: object) -> Any:
    """A file with settings, short for ``rope.scaling.KEY``, and lists of the RoPE."""

    def setting(name: str, default: object = None) -> object:
        return settings.get(name.split(".")[-1], default)

    tensors = [SimpleNamespace(name=name, data=data) for name, data in (lists or {}).items()]
    made = SimpleNamespace(path=Path("m.gguf"), setting=setting, reader=SimpleNamespace(tensors=tensors))
    made.number = MethodType(GGUFFile.number, made)
    return made


def llama(**changes: Any) -> LlamaConfig:
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    settings = {"hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 2048, "rope_parameters": rope}
    return LlamaConfig(**{**settings, **changes})


@pytest.mark.parametrize("settings", [{}, {"type": "none", "factor": 8.0}, {"type": "linear", "factor": 1.0}])
def test_no_scaling_stays_none(settings: dict[str, Any]) -> None:
    config = llama()
    _set_rope(config, source(**settings))
    assert config.rope_parameters == llama().rope_parameters


@pytest.mark.parametrize("settings", [{"type": "linear", "factor": 8.0}, {"factor": 8.0}, {"scale_linear": 8.0}])
def test_a_factor_without_a_type_is_linear_as_in_llama_cpp(settings: dict[str, Any]) -> None:
    config = llama()
    _set_rope(config, source(**settings))
    assert config.rope_parameters == {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 8.0}


def test_yarn_is_what_skipwise_writes() -> None:
    config = llama()
    _set_rope(config, source(type="yarn", factor=8.0, original_context_length=256))
    expected = rope_parameters("yarn", Rope(10_000.0, 8, 256), 8.0)
    assert config.rope_parameters == pytest.approx(expected)


def test_revised_yarn_is_what_skipwise_writes() -> None:
    expected = rope_parameters("yarn-revised", Rope(10_000.0, 8, 256), 8.0)
    config = llama()
    lists = {"rope_freqs.weight": expected["long_factor"]}
    _set_rope(config, source(lists, attn_factor=expected["attention_factor"]))
    assert config.rope_parameters == expected


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
    factors = (500_000.0 ** -(torch.arange(0, 64, 2) / 64) / frequencies).tolist()
    _set_rope(config, source({"rope_freqs.weight": factors}))
    assert config.rope_parameters == pytest.approx(expected)


@pytest.mark.parametrize(
    ("file", "what"),
    [
        (source(type="su", factor=8.0), "su RoPE"),
        (source({"rope_freqs.weight": [1.0] * 4}, type="yarn", factor=8.0), "yarn RoPE with rope_freqs.weight"),
        (source({"rope_factors_long.weight": [1.0]}), "linear RoPE with rope_factors_long.weight"),
    ],
)
def test_a_rope_that_is_not_known_is_refused(file: Any, what: str) -> None:
    with pytest.raises(ModelError) as refusal:
        _set_rope(llama(), file)
    assert str(refusal.value) == (
        f"m.gguf has {what}, which is not converted; give the model's own checkpoint, or a GGUF file of its base"
    )


@pytest.mark.parametrize("value", [-8.0, float("nan"), float("inf"), "abc"])
def test_a_factor_that_is_no_number_above_0_is_refused(value: object) -> None:
    with pytest.raises(ModelError, match=r"m\.gguf says rope\.scaling\.factor = .* must be a number above 0"):
        _set_rope(llama(), source(type="linear", factor=value))


@pytest.mark.parametrize("factors", [[], [1.0], [1.0] * 8, [0.0] * 4, [float("nan")] * 4])
def test_factors_by_frequency_are_as_many_as_frequencies_and_above_0(factors: list[float]) -> None:
    with pytest.raises(ModelError, match=r"rope_freqs\.weight of llama must be 4 numbers above 0"):
        _set_rope(llama(), source({"rope_freqs.weight": factors}))


def test_a_model_without_rope_is_refused() -> None:
    with pytest.raises(ModelError, match="model_type gpt2 has learned positions"):
        _set_rope(GPT2Config(), source())


def test_what_transformers_leaves_at_a_default_is_set() -> None:
    qwen = Qwen3Config()
    _set_attention(qwen, source(key_length=64))
    assert qwen.head_dim == 64
    gemma = Gemma3TextConfig(head_dim=128, hidden_size=5376, num_attention_heads=32)
    _set_attention(gemma, source(block_count=26))
    assert gemma.query_pre_attn_scalar == 128
    _set_attention(gemma, source(block_count=62))
    assert gemma.query_pre_attn_scalar == 168


def settings_of(pre: str, **more: object) -> dict[str, object]:
    """A byte-level tokenizer without merges, as a file stores it; id 257 is a user's token."""
    vocabulary = tiny.byte_tokenizer().get_vocab()
    tokens = [*sorted(vocabulary, key=lambda token: vocabulary[token]), "<think>", "Ġ1", "11", "see"]
    given = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [3] + [1] * 256 + [4, 1, 1, 1],
        "bos_token_id": 0,
    }
    settings = {f"tokenizer.ggml.{key}": value for key, value in (given | more).items()}
    return {**settings, "tokenizer.ggml.merges": ["Ġ 1", "1 1"], "tokenizer.chat_template": "{{ messages }}"}


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["I", "'ll", "Ġsee", "Ġ", "Ġ1234567", "Ċ", "ĠX", "!!'"]),
        ("smollm", ["I", "'ll", "Ġsee", "ĠĠ", *"1234567", "Ċ", "ĠX", "!!'"]),
        ("llama-bpe", ["I", "'ll", "Ġsee", "Ġ", "Ġ", "123", "456", "7", "Ċ", "ĠX", "!!'"]),
        ("qwen2", ["I", "'ll", "Ġsee", "Ġ", "Ġ", *"1234567", "Ċ", "ĠX", "!!'"]),
        ("gpt-4o", ["I'll", "Ġsee", "Ġ", "Ġ", "123", "456", "7", "Ċ", "ĠX", "!!'"]),
        ("tekken", ["I", "'ll", "Ġsee", "Ġ", "Ġ", *"1234567", "Ċ", "ĠX", "!!'"]),
        ("superbpe", ["I'llĠseeĠĠ", "1", "234", "567", "ĊĠX!!'"]),
    ],
)
def test_text_is_split_as_the_file_says(pre: str, pieces: list[str]) -> None:
    tokenizer = read_tokenizer(settings_of(pre).get, lambda: pytest.fail("not byte-level"), 64)
    split = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("I'll see  1234567\n X!!'")
    assert [piece for piece, _ in split] == pieces


@pytest.mark.parametrize(("pre", "tokens"), [("gpt-2", 3), ("llama-bpe", 1), ("tekken", 1)])
def test_a_piece_that_is_a_token_is_not_merged_where_llama_cpp_does_not(pre: str, tokens: int) -> None:
    tokenizer = read_tokenizer(settings_of(pre).get, tiny.byte_tokenizer, 64)
    assert len(tokenizer("see", add_special_tokens=False).input_ids) == tokens


def test_special_tokens_are_the_file_s() -> None:
    tokenizer = read_tokenizer(settings_of("gpt-2", eos_token_id=257).get, tiny.byte_tokenizer, 64)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<|endoftext|>", "<think>", None)
    assert tokenizer("<think>").input_ids == [257]
    assert (len(tokenizer), tokenizer.model_max_length, tokenizer.chat_template) == (261, 64, "{{ messages }}")


@pytest.mark.parametrize(
    ("pre", "more", "begins"),
    [
        ("gpt-2", {}, 0),
        ("gpt-2", {"add_bos_token": True}, 1),
        ("llama-bpe", {}, 1),
        ("llama-bpe", {"add_bos_token": False}, 0),
    ],
)
def test_a_text_begins_with_bos_where_llama_cpp_says_so(pre: str, more: dict[str, object], begins: int) -> None:
    tokenizer = read_tokenizer(settings_of(pre, **more).get, tiny.byte_tokenizer, 64)
    assert tokenizer("<think>").input_ids == [0] * begins + [257]
