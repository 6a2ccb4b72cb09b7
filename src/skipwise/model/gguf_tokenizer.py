"""The tokenizer in a GGUF file -> a stock one, as llama.cpp reads it.

transformers splits by GPT-2's expression whatever ``tokenizer.ggml.pre`` says (newer releases know some of the names),
and takes other files' special tokens. So a byte-level tokenizer is built here; transformers reads the other kinds.
"""

from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+SHORT|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*SHORT|DIGITS"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
)
_AS_LLAMA3 = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2")
# tokenizer.ggml.pre -> the expressions by which llama.cpp splits a text, one after the other
SPLITS = (
    dict.fromkeys(("gpt-2", "mpt", "olmo", "jais", "phi-2", "trillion", "exaone4"), (_GPT2,))
    | dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), (r"\p{N}", _GPT2)
    )
    | dict.fromkeys((*_AS_LLAMA3, "dbrx", "smaug-bpe"), (_LLAMA3,))
    | dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"), (_LLAMA3.replace("{1,3}", ""),))
    | dict.fromkeys(("gpt-4o", "llama4"), (_CASED.replace("SHORT", f"{_SHORT}?").replace("DIGITS", r"\p{N}{1,3}"),))
    | {"tekken": (_CASED.replace("SHORT", "").replace("DIGITS", r"\p{N}"),)}
    | {"superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))")}
)
_WHOLE_FIRST = {*_AS_LLAMA3, "tekken"}  # a piece that is a token is not merged, and a text begins with BOS
_CONTROL, _USER_DEFINED = 3, 4  # types of tokens


def read_tokenizer(
    get: Callable[..., Any], otherwise: Callable[[], PreTrainedTokenizerFast], length: int
) -> PreTrainedTokenizerFast:
    """Return the tokenizer for texts of up to ``length`` tokens.

    ``get(key, default)`` reads the file's settings; ``otherwise`` lets transformers read what is not byte-level.
    """
    byte_level = get("tokenizer.ggml.model") == "gpt2"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=_byte_level(get)) if byte_level else otherwise()
    tokens = get("tokenizer.ggml.tokens")
    for name, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        number = get(f"tokenizer.ggml.{key}_token_id")
        setattr(tokenizer, f"{name}_token", None if number is None else tokens[number])
    tokenizer.chat_template = get("tokenizer.chat_template")
    tokenizer.model_max_length = length
    begins = get("tokenizer.ggml.model") == "llama" or get("tokenizer.ggml.pre") in _WHOLE_FIRST  # llama.cpp's default
    begin = [tokenizer.bos_token] * bool(get("tokenizer.ggml.add_bos_token", begins) and tokenizer.bos_token)
    end = [tokenizer.eos_token] * bool(get("tokenizer.ggml.add_eos_token", False) and tokenizer.eos_token)
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in {*begin, *end}]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=[*begin, "$A", *end], pair=[*begin, "$A", *end, *begin, "$B", *end], special_tokens=special
    )
    return tokenizer


def _byte_level(get: Callable[..., Any]) -> Tokenizer:
    tokens, merges = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.merges", [])
    pre = get("tokenizer.ggml.pre", "")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre in _WHOLE_FIRST))
    splits = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in SPLITS.get(pre, (_GPT2,))]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    backend.decoder = decoders.ByteLevel()
    kinds = list(zip(tokens, get("tokenizer.ggml.token_type", []), strict=False))
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in kinds if kind == _CONTROL]
    )
    backend.add_tokens([AddedToken(token, normalized=False) for token, kind in kinds if kind == _USER_DEFINED])
    return backend
