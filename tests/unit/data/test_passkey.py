import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from skipwise.data.passkey import filler, passkey_prompt, passkey_text, training_passkey
from skipwise.data.prompts import answer_ids
from skipwise.errors import DataError

TEXT = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.\n"
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
    "The grass is green.\n"
    "The pass key is 81501. Remember it. 81501 is the pass key.\n"
    "The grass is green. The sky is blue.\n"
    "What is the pass key? The pass key is"
)


def trained(pieces, vocabulary, **special):
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
    return tokenizer, special


def build(kind):
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    lines = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    if kind == "bytes":
        tokenizer, special = trained(words, 258)
    elif kind == "words":
        tokenizer, special = trained(words, 400, bos_token="<s>", eos_token="</s>")
    elif kind == "words with BOS and EOS":
        tokenizer, special = trained(words, 400, bos_token="<s>", eos_token="</s>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    else:  # tokens run across words and sentences
        tokenizer, special = trained(lines, 300, eos_token="</s>")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


class Uneven:
    """A token a character, and two from the 600th on: the tokens do not grow linearly."""

    eos_token_id = None

    def __call__(self, text, **_):
        ids = [i for c in text[600:] for i in (ord(c), 0)]
        return {"input_ids": [ord(c) for c in text[:600]] + ids}

    def decode(self, ids, **_):
        return "".join(chr(i) for i in ids if i)


KINDS = ["bytes", "words", "words with BOS and EOS", "across words", "uneven"]
TOKENIZERS = {kind: build(kind) for kind in KINDS[:-1]} | {"uneven": Uneven()}
any_kind = st.sampled_from(KINDS)


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


def test_a_filler_line_without_sentences_is_left_out():
    lines = passkey_text("81501", 0, 0).split("\n")
    assert [line.split(".")[0] for line in lines] == [
        "There is an important info hidden inside a lot of irrelevant text",
        "The pass key is 81501",
        "What is the pass key? The pass key is",
    ]


@settings(max_examples=60, deadline=None)
@given(kind=any_kind, extra=st.integers(0, 700), seed=st.integers(0, 2**32), depth=st.none() | st.floats(0, 1))
def test_one_more_sentence_would_not_fit(kind, extra, seed, depth):
    tokenizer = TOKENIZERS[kind]
    shortest = len(ids_of(tokenizer, passkey_text("10000", 0, 0))) + 8
    length = shortest + extra
    prompt = passkey_prompt(tokenizer, length, np.random.default_rng(seed), depth)
    room = length - len(answer_ids(tokenizer, prompt.answer))
    assert len(prompt.ids) <= room
    before, after = sentences_in(text_of(tokenizer, prompt.ids))
    assert prompt.ids == ids_of(tokenizer, passkey_text(prompt.answer, before, after))
    longer = [passkey_text(prompt.answer, before + 1, after), passkey_text(prompt.answer, before, after + 1)]
    assert max(len(ids_of(tokenizer, text)) for text in longer) > room
    assert prompt.depth == (before / (before + after) if before + after else 0.0)
    if depth is not None:
        assert abs(before - depth * (before + after)) <= 0.5


def test_depths_are_uniform():
    tokenizer = TOKENIZERS["words"]
    prompts = [passkey_prompt(tokenizer, 400, np.random.default_rng(i)) for i in range(400)]
    depths = np.sort([p.depth for p in prompts])
    # Kolmogorov-Smirnov distance from U[0, 1]; 400 draws exceed 0.1 with probability < 1e-3
    assert np.max(np.abs(depths - (np.arange(400) + 0.5) / 400)) < 0.1
    assert depths[0] == 0
    assert depths[-1] == 1
    keys = {p.answer for p in prompts}
    assert len(keys) > 390
    assert all(re.fullmatch("[1-9][0-9]{4}", key) for key in keys)


@pytest.mark.parametrize("depth", [0, 0.25, 0.5, 1])
def test_a_given_depth_is_met(depth):
    prompt = passkey_prompt(TOKENIZERS["words"], 600, np.random.default_rng(0), depth)
    assert prompt.depth == pytest.approx(depth, abs=0.02)


def test_the_same_generator_state_gives_the_same_prompt():
    one, same, other = (passkey_prompt(TOKENIZERS["words"], 300, np.random.default_rng([7, 300, i])) for i in (0, 0, 1))
    assert one == same
    assert one.ids != other.ids


def test_special_tokens_are_the_tokenizers_own_but_no_eos_follows_the_question():
    tokenizer = TOKENIZERS["words with BOS and EOS"]
    ids = passkey_prompt(tokenizer, 300, np.random.default_rng(0)).ids
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.eos_token_id not in ids


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_continues_the_question(kind):
    tokenizer = TOKENIZERS[kind]
    prompt = passkey_prompt(tokenizer, 500, np.random.default_rng(0))
    text = text_of(tokenizer, prompt.ids + answer_ids(tokenizer, prompt.answer))
    assert text.endswith(f"The pass key is {prompt.answer}")


@settings(max_examples=40, deadline=None)
@given(kind=any_kind, extra=st.integers(0, 300), seed=st.integers(0, 2**32))
def test_a_training_example_fits_and_ends_with_its_answer(kind, extra, seed):
    tokenizer = TOKENIZERS[kind]
    length = len(ids_of(tokenizer, passkey_text("10000", 0, 0))) + 9 + extra
    ids = training_passkey(tokenizer, length, np.random.default_rng(seed))
    assert len(ids) <= length
    if tokenizer.eos_token_id is not None:
        assert ids[-1] == tokenizer.eos_token_id
    text = text_of(tokenizer, ids)
    before, after = sentences_in(text)
    key = text[-5:]
    assert text == f"{passkey_text(key, before, after)} {key}"


def test_training_examples_have_every_amount_of_filler_at_every_place():
    tokenizer = TOKENIZERS["words"]
    texts = [text_of(tokenizer, training_passkey(tokenizer, 120, np.random.default_rng(i))) for i in range(600)]
    counts = [sentences_in(text) for text in texts]
    totals, most = [b + a for b, a in counts], max(b + a for b, a in counts)
    assert set(totals) == set(range(most + 1))
    share = np.bincount(totals)[:most] / len(totals)  # the last amount fits only with some places of the key
    assert np.all(np.abs(share - 1 / (most + 1)) < 0.05)
    assert {b for b, a in counts if b + a == 3} == {0, 1, 2, 3}


@pytest.mark.parametrize("draw", [passkey_prompt, training_passkey])
def test_a_length_without_room_is_explained(draw):
    tokenizer = TOKENIZERS["words"]
    with pytest.raises(DataError, match="length 20 is too short for a retrieval prompt") as caught:
        draw(tokenizer, 20, np.random.default_rng(0))
    needed = int(re.search(r"the shortest has (\d+) tokens", str(caught.value)).group(1))
    draw(tokenizer, needed, np.random.default_rng(0))
    with pytest.raises(DataError):
        draw(tokenizer, needed - 1, np.random.default_rng(0))


def test_a_tokenizer_without_digits_is_refused():
    letters = {token: i for i, token in enumerate(["<unk>", *"abcdefghijklmnopqrstuvwxyz"])}
    backend = Tokenizer(models.BPE(vocab=letters, merges=[], unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    with pytest.raises(DataError, match=r"turns the digit 0 into .*use a tokenizer whose vocabulary has all ten"):
        passkey_prompt(tokenizer, 5000, np.random.default_rng(0))


@pytest.mark.parametrize("depth", [-0.1, 1.5])
def test_a_depth_out_of_range_is_explained(depth):
    with pytest.raises(DataError, match=f"depth {depth} must lie between 0"):
        passkey_prompt(TOKENIZERS["words"], 300, np.random.default_rng(0), depth)
