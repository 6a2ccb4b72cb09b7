"""Long texts are encoded in pieces, with exactly the ids of the whole text, for every kind of tokenizer."""

import json
import re
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from skipwise.data import tokenising

WORDS = "the sky is blue, the grass isn't green; here we go: there and back again (we'll see) 1234 12 7.5 = x+y\n"
TEXT = (
    WORDS + "def go(self):\n    return self.sky  # 'blue'\n\n" + "天地玄黄，宇宙洪荒。 café e\u0301a <the sky is>\n"
) * 6

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def by_expressions(expression: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(expression), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(splitting: pre_tokenizers.PreTokenizer, normalizer=None, **model: object) -> Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = trained(models.BPE(**model), splitting, trainers.BpeTrainer, alphabet=alphabet)
    if normalizer:
        tokenizer.normalizer = normalizer
    return tokenizer


def trained(model, splitting, trainer, alphabet=()) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = splitting
    options = {"special_tokens": ["<unk>", "<s>", "</s>"], "initial_alphabet": list(alphabet), "show_progress": False}
    tokenizer.train_from_iterator([TEXT], trainer(vocab_size=420, **options))
    return tokenizer


def sentencepiece(normalizer=None, splitting=None) -> Tokenizer:
    """Llama 2's kind: a BPE with bytes for unknown characters, whose entries hold a space only at the beginning."""
    source = trained(models.BPE(unk_token="<unk>"), pre_tokenizers.Metaspace(), trainers.BpeTrainer)
    vocabulary = source.get_vocab(with_added_tokens=False)
    fallback = {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    merges = [tuple(merge) for merge in json.loads(source.to_str())["model"]["merges"]]
    model = models.BPE(vocabulary | fallback, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    for name, part in (("normalizer", normalizer), ("pre_tokenizer", splitting)):
        if part:
            setattr(tokenizer, name, part)
    return tokenizer


def template(tokenizer: Tokenizer, single: str) -> Tokenizer:
    named = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=named)
    return tokenizer


def replaced(*before: normalizers.Normalizer) -> normalizers.Normalizer:
    return normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])


def with_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<r>", rstrip=True), AddedToken("sky is")])
    tokenizer.add_tokens([AddedToken("go", single_word=True, normalized=False)])
    return tokenizer


MADE = {
    "gpt2-prefix": lambda: template(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)), "<s> $A </s>"),
    "llama3": lambda: template(byte_level(by_expressions(LLAMA3), ignore_merges=True), "<s> $A"),
    "qwen2": lambda: byte_level(by_expressions(LLAMA3.replace("{1,3}", "")), normalizers.NFC()),
    "llama2": lambda: template(sentencepiece(replaced(normalizers.Prepend("▁"))), "<s> $A"),
    "mistral": lambda: template(
        sentencepiece(splitting=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)), "<s> $A"
    ),
    "gemma": lambda: sentencepiece(replaced(), pre_tokenizers.Split(" ", "merged_with_previous")),
    "across-spaces": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
    "added": lambda: with_added_tokens(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))),
    "added-llama2": lambda: with_added_tokens(sentencepiece(replaced(normalizers.NFKC(), normalizers.Prepend("▁")))),
}
CHINESE = "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。" * 40  # is cut at its punctuation
_made: dict[str, Tokenizer] = {}


def made(name: str) -> Tokenizer:
    if name not in _made:
        _made[name] = MADE[name]()
    return _made[name]


def encoded(tokenizer: Tokenizer, *texts: str, piece: int = 48) -> list[list[int]]:
    encode = tokenising.text_encoder(SimpleNamespace(backend_tokenizer=tokenizer))
    with patch.multiple(tokenising, PIECE=piece, AROUND=24, _BLOCK=16, _TOGETHER=3):
        return [list(ids) for ids in encode(texts)]


def cuts(tokenizer: Tokenizer, text: str) -> int:
    """How many times a text is cut."""
    exact, is_exact = [], tokenising._is_exact
    counting = patch.object(tokenising, "_is_exact", lambda *place: exact.append(is_exact(*place)) or exact[-1])
    with counting, patch.multiple(tokenising, PIECE=48, AROUND=24, _BLOCK=16, _TOGETHER=3):
        tokenising._encode_long(tokenizer, text)
    return sum(exact)


SMALL = "the sky going x isn é e\u0301 \u0301 ﬁ 天地 ， 。 한 하 ß İ 's 'll ' \" . , ... - ( == 1 12 1234567"
ATOMS = [
    *re.findall(r"\S+", SMALL),
    *(" ", " ", " ", "  ", "    ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200d", "\x00", "▁", "Ġ"),
    *("a" * 60, " " * 60, "#" * 60, "<s>", "<mask>", "<r>", "sky is", " go ", "👩‍👩‍👧", "😀", "\U0001d518"),
]
texts = st.one_of(
    st.lists(st.sampled_from(ATOMS), max_size=150).map("".join),
    st.lists(st.sampled_from([*TEXT.split(), *"天地玄黄，。"]), max_size=80).map(" ".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
)


@pytest.mark.parametrize("name", MADE)
@settings(max_examples=25, deadline=None)
@given(text=texts)
def test_the_pieces_have_the_ids_of_the_whole(name, text):
    for some in (text, "<" + "the sky is " * 30):
        assert encoded(made(name), some) == [made(name).encode(some).ids]


@pytest.mark.parametrize("name", MADE)
def test_a_long_text_is_cut(name):
    if name != "across-spaces":  # its vocabulary has most pairs of characters
        assert cuts(made(name), TEXT) > len(TEXT) / 48 / 2
        assert cuts(made(name), CHINESE) > (10 if name in ("llama3", "llama2", "gemma") else 0)
    some = ["the sky", TEXT, "", TEXT[:49], "x" * 47, TEXT[5:], CHINESE]
    assert encoded(made(name), *some) == [made(name).encode(text).ids for text in some]


def test_a_tokenizer_without_a_rust_side() -> None:
    slow = lambda texts, **options: {"input_ids": [[len(text)] for text in texts]}  # noqa: E731
    assert list(tokenising.text_encoder(slow)(["ab", "c" * 10**6])) == [[2], [10**6]]
