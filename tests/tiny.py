"""Tiny models and tokenizers, made in a moment; the hub cannot be reached and is not needed."""

import io
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_TEXT = "the model reads a long text and finds what was said before in it again and again until it ends here"
WORDS = _TEXT.split()


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer of the 256 bytes and one end-of-text token, id 0."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<|endoftext|>": 0, **{letter: i + 1 for i, letter in enumerate(alphabet)}}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|endoftext|>", eos_token="<|endoftext|>")


def llama(window: int = 32, **changes: object) -> LlamaForCausalLM:
    """Make a random Llama of two layers with the vocabulary of ``byte_tokenizer``."""
    torch.manual_seed(0)
    settings: dict[str, object] = {
        "vocab_size": 257,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": window,
        "initializer_range": 0.2,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()


def checkpoint(folder: Path, window: int = 32, **changes: object) -> Path:
    """Save ``llama`` and ``byte_tokenizer`` as one checkpoint folder."""
    llama(window, **changes).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def with_config(folder: Path, **changes: object) -> str:
    """Save ``checkpoint`` with changed entries in its config.json, and return the folder's name."""
    path = checkpoint(folder, window=64) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return str(folder)


def corpus(folder: Path, documents: int = 30, words: int = 60) -> Path:
    """Write text files of rising length; their names decide which are held out."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(documents):
        text = " ".join(WORDS[(i * 7 + j * (i + 3)) % len(WORDS)] for j in range(words + i))
        (folder / f"document-{i}.txt").write_text(text, encoding="utf-8")
    return folder


def sentencepiece_model(path: Path, lines: list[str]) -> None:
    """Train a SentencePiece model as Baichuan 2's is described: byte pairs, single digits, bytes for what is not known,
    no normalization, no space before a text."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=340,
        hard_vocab_limit=False,
        byte_fallback=True,
        split_digits=True,
        add_dummy_prefix=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())
