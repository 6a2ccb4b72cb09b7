import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from skipwise.data.prompts import answer_ids, filler, passkey_prompt, passkey_text
from skipwise.errors import TooShortError
from tests.tiny import byte_tokenizer

TEXT = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.\n"
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
    "The grass is green.\n"
    "The pass key is 81501. Remember it. 81501 is the pass key.\n"
    "The grass is green. The sky is blue.\n"
    "What is the pass key? The pass key is"
)


def trained(pieces, vocabulary, bos_and_eos=False):
    """A byte-level BPE tokenizer trained on filler; ``pieces`` says where tokens must end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pieces
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT, filler(40)], trainer)
    if bos_and_eos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)
LINES = pre_tokenizers.Sequence(
    [pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
)
TOKENIZERS = {
    "bytes": byte_tokenizer(),
    "words": trained(WORDS, 400),
    "words with BOS and EOS": trained(WORDS, 400, bos_and_eos=True),
    "across words": trained(LINES, 300),  # and sentences
}
any_kind = st.sampled_from(list(TOKENIZERS))


def ids_of(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    return ids[:-1] if ids[-1] == tokenizer.eos_token_id else ids


def sentences_in(text):
    """Filler sentences before and behind the key."""
    before, after = re.split(r"The pass key is \d{5}\. Remember it\. \d{5} is the pass key\.\n", text)
    count = re.compile(r"(green|blue|yellow|go|again)\.")
    return len(count.findall(before)), len(count.findall(after))


def text_of(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True)


def test_the_text_is_the_papers():
    assert passkey_text("81501", 6, 2) == TEXT


@settings(max_examples=40, deadline=None)
@given(kind=any_kind, extra=st.integers(0, 700), seed=st.integers(0, 2**32), depth=st.none() | st.floats(0, 1))
def test_one_more_sentence_would_not_fit(kind, extra, seed, depth):
    tokenizer = TOKENIZERS[kind]
    shortest = len(ids_of(tokenizer, passkey_text("10000", 0, 0))) + 8
    length = shortest + extra
    prompt = passkey_prompt(tokenizer, length, np.random.default_rng(seed), depth)
    room = length - len(answer_ids(tokenizer, prompt.answer))
    assert len(prompt.ids) <= room
    assert passkey_prompt(tokenizer, length, np.random.default_rng(seed), depth) == prompt
    question = text_of(tokenizer, prompt.ids + answer_ids(tokenizer, prompt.answer))
    assert question.endswith(f"The pass key is {prompt.answer}")
    before, after = sentences_in(text_of(tokenizer, prompt.ids))
    assert prompt.ids == ids_of(tokenizer, passkey_text(prompt.answer, before, after))
    longer = [passkey_text(prompt.answer, before + 1, after), passkey_text(prompt.answer, before, after + 1)]
    assert max(len(ids_of(tokenizer, text)) for text in longer) > room
    assert prompt.depth == (before / (before + after) if before + after else 0.0)
    if depth is not None:
        assert abs(before - depth * (before + after)) <= 0.5


def test_depths_are_uniform():
    prompts = [passkey_prompt(TOKENIZERS["words"], 400, np.random.default_rng(i)) for i in range(200)]
    depths = np.sort([p.depth for p in prompts])
    # Kolmogorov-Smirnov distance from U[0, 1]; 200 draws exceed 0.14 with probability < 1e-3
    assert np.max(np.abs(depths - (np.arange(200) + 0.5) / 200)) < 0.14
    assert len({p.answer for p in prompts}) > 190


def test_a_length_too_short_names_the_shortest_that_fits():
    tokenizer = TOKENIZERS["words"]
    with pytest.raises(TooShortError) as caught:
        passkey_prompt(tokenizer, 20, np.random.default_rng(0))
    passkey_prompt(tokenizer, caught.value.shortest, np.random.default_rng(0))
    with pytest.raises(TooShortError):
        passkey_prompt(tokenizer, caught.value.shortest - 1, np.random.default_rng(0))
