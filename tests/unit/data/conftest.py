"""A tokenizer made on the spot."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast


def make_tokenizer(bos: bool = True) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer that begins a sequence with ``<s>`` where ``bos``."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the sky is blue, the grass is green, here we go there and back"] * 4, trainer)
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", pad_token="<s>", model_max_length=16)


@pytest.fixture(scope="session", name="make_tokenizer")
def _make_tokenizer():
    return make_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()
