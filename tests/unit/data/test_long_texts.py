"""Long texts are encoded in pieces, with exactly the ids of the whole text, for every kind of tokenizer."""

import json
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def by_expressions(*expressions: str) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in expressions]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(splitting: pre_tokenizers.PreTokenizer, **model: object) -> Tokenizer:
    return trained(models.BPE(**model), splitting, trainers.BpeTrainer, alphabet=pre_tokenizers.ByteLevel.alphabet())


def trained(model, splitting, trainer, alphabet=(), normalizer=None, special=("<unk>", "<s>", "</s>")) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = splitting
    if normalizer:
        tokenizer.normalizer = normalizer
    unknown = {"unk_token": "<unk>"} if trainer is trainers.UnigramTrainer else {}
    options = {"special_tokens": list(special), "initial_alphabet": list(alphabet), "show_progress": False, **unknown}
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
    if normalizer:
        tokenizer.normalizer = normalizer
    if splitting:
        tokenizer.pre_tokenizer = splitting
    return tokenizer


def template(tokenizer: Tokenizer, single: str) -> Tokenizer:
    named = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=named)
    return tokenizer


def replaced(*before: normalizers.Normalizer) -> normalizers.Normalizer:
    return normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])


def wordpiece() -> Tokenizer:
    normalizer, splitting = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return trained(models.WordPiece(unk_token="<unk>"), splitting, trainers.WordPieceTrainer, normalizer=normalizer)


def unigram(splitting: pre_tokenizers.PreTokenizer, normalizer=None) -> Tokenizer:
    return trained(models.Unigram(), splitting, trainers.UnigramTrainer, normalizer=normalizer)


def with_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<r>", rstrip=True), AddedToken("sky is")])
    tokenizer.add_tokens([AddedToken("go", single_word=True, normalized=False)])
    return tokenizer


def normalised(tokenizer: Tokenizer, *steps: normalizers.Normalizer) -> Tokenizer:
    tokenizer.normalizer = normalizers.Sequence(list(steps))
    return tokenizer


MADE = {
    "gpt2": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "gpt2-prefix": lambda: template(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)), "<s> $A </s>"),
    "llama3": lambda: template(byte_level(by_expressions(LLAMA3), ignore_merges=True), "<s> $A"),
    "qwen2": lambda: normalised(byte_level(by_expressions(QWEN2)), normalizers.NFC()),
    "deepseek": lambda: byte_level(by_expressions(r"\p{N}{1,3}", "[一-龥]+", DEEPSEEK)),
    "falcon": lambda: byte_level(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(False), pre_tokenizers.Digits()]
        )
    ),
    "llama2": lambda: template(sentencepiece(replaced(normalizers.Prepend("▁"))), "<s> $A"),
    "mistral": lambda: template(
        sentencepiece(splitting=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)), "<s> $A"
    ),
    "gemma": lambda: sentencepiece(replaced(), pre_tokenizers.Split(" ", "merged_with_previous")),
    "llama2-nfkc": lambda: sentencepiece(replaced(normalizers.NFKC(), normalizers.Prepend("▁"))),
    "t5": lambda: template(unigram(pre_tokenizers.Metaspace()), "$A </s>"),
    "unigram-nfkc": lambda: unigram(
        pre_tokenizers.Metaspace(), normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    ),
    "bert": lambda: template(wordpiece(), "<s> $A </s>"),
    "across-spaces": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
    "added": lambda: with_added_tokens(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))),
    "added-llama2": lambda: with_added_tokens(sentencepiece(replaced(normalizers.Prepend("▁")))),
    "added-stripped": lambda: normalised(with_added_tokens(wordpiece()), normalizers.Strip(), normalizers.NFD()),
}
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
    """How many pieces a text is encoded in."""
    found, batch = [], Tokenizer.encode_batch_fast

    class Counting:
        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def encode_batch_fast(self, texts, **options):
            found.extend(texts)
            return batch(tokenizer, texts, **options)

    with patch.multiple(tokenising, PIECE=48, AROUND=24, _BLOCK=16, _TOGETHER=3):
        tokenising._Pieces(Counting()).encode(text)
    return len(found)


ATOMS = [
    *[
        "the",
        "sky",
        "going",
        "x",
        "isn",
        "é",
        "é",
        "́",
        "ﬁ",
        "天地",
        "，",
        "。",
        "한",
        "하",
        "ß",
        "İ",
        "'s",
        "'ll",
        "'",
        '"',
        ".",
        ",",
        "...",
        "-",
        "(",
        "==",
        "1",
        "12",
        "1234567",
    ],
    *(" ", " ", " ", "  ", "    ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200d", "\x00", "▁", "Ġ"),
    *("a" * 60, " " * 60, "#" * 60, "<s>", "<mask>", "<r>", "sky is", " go ", "👩‍👩‍👧", "😀", "\U0001d518"),
]
texts = st.one_of(
    st.lists(st.sampled_from(ATOMS), max_size=150).map("".join),
    st.lists(st.sampled_from([*TEXT.split(), *"天地玄黄，。"]), max_size=80).map(" ".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
)


@pytest.mark.parametrize("name", MADE)
class TestExact:
    @settings(max_examples=60, deadline=None)
    @given(text=texts)
    def test_the_pieces_have_the_ids_of_the_whole(self, name, text):
        assert encoded(made(name), text) == [made(name).encode(text).ids]

    def test_a_long_text_is_cut(self, name):
        if name != "across-spaces":  # its vocabulary has most pairs of characters
            assert cuts(made(name), TEXT) > len(TEXT) / 48 / 2

    def test_short_and_long_texts_at_once(self, name):
        some = ["the sky", TEXT, "", TEXT[:49], "x" * 47, TEXT[5:]]
        assert encoded(made(name), *some) == [made(name).encode(text).ids for text in some]


def test_pieces_of_the_real_size() -> None:
    text = TEXT * (2 * tokenising.PIECE // len(TEXT) + 2)
    encode = tokenising.text_encoder(SimpleNamespace(backend_tokenizer=made("llama2")))
    assert list(next(encode([text]))) == made("llama2").encode(text).ids


def test_chinese_without_spaces_is_cut_at_its_punctuation() -> None:
    text = "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。" * 40
    for name in ("gpt2", "llama3", "qwen2", "deepseek", "llama2", "mistral", "gemma"):
        assert cuts(made(name), text) > 10, name
        assert encoded(made(name), text) == [made(name).encode(text).ids]


# Tokens that depend on text far away: the text is encoded whole.
FAR = {
    "fixed lengths": lambda: byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.FixedLength(7), pre_tokenizers.ByteLevel(False, use_regex=False)])
    ),
    "brackets": lambda: byte_level(by_expressions(r"<[^>]*|\w+|\s+|.")),
    "unigram over spaces": lambda: unigram(pre_tokenizers.Metaspace(split=False)),
    "text twice": lambda: template(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)), "<s> $A </s> $A"),
}


@pytest.mark.parametrize("name", FAR)
@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_tokens_that_depend_on_text_far_away(name, text):
    if name not in _made:
        _made[name] = FAR[name]()
    for some in (text, "<" + "the sky is " * 30):
        assert encoded(_made[name], some) == [_made[name].encode(some).ids]


def test_merges_that_depend_on_text_far_away() -> None:
    """Which equal lines merge depends on how many there are before."""
    vocabulary = {token: number for number, token in enumerate(["a", "\n", "x", "a\n", "a\na\n"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "\n"), ("a\n", "a\n")]))
    for text in ("a\n" * 100, "x" + "a\n" * 100):
        assert encoded(tokenizer, text) == [tokenizer.encode(text).ids]


def test_a_tokenizer_without_a_rust_side() -> None:
    slow = lambda texts, **options: {"input_ids": [[len(text)] for text in texts]}  # noqa: E731
    assert list(tokenising.text_encoder(slow)(["ab", "c" * 10**6])) == [[2], [10**6]]
