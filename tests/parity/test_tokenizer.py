"""Baichuan's tokenizer as a stock one, against the SentencePiece library on the model that it came with."""

import json

import pytest
import sentencepiece
from hypothesis import given, settings, strategies as st
from transformers import AutoTokenizer

from skipwise.model.convert import convert
from tests.parity.test_conversion import baichuan
from tests.tiny import sentencepiece_model

LINES = ["the sky is blue and the sea is deep", "  return x + 12", "say   grün once", "你好 世界"] * 20
TEXTS = ["", " ", "a", " the sky", "the  sky\n\n\tis", "2023 年", "☘\r\nﬁ", "▁the", "\u3000x", "the sky "]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The library's processor, and what transformers loads of the converted checkpoint."""
    folder = tmp_path_factory.mktemp("baichuan")
    baichuan(folder / "source")
    sentencepiece_model(folder / "source" / "tokenizer.model", LINES)
    config = {
        "auto_map": {"AutoTokenizer": ["tokenization_baichuan.BaichuanTokenizer", None]},
        "tokenizer_class": "BaichuanTokenizer",
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False, "normalized": True},
        "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False, "normalized": True},
        "clean_up_tokenization_spaces": False,
    }
    (folder / "source" / "tokenizer_config.json").write_text(json.dumps(config))
    stock = AutoTokenizer.from_pretrained(convert(str(folder / "source"), folder / "out"))
    return sentencepiece.SentencePieceProcessor(str(folder / "source" / "tokenizer.model")), stock


def test_a_text_has_the_same_tokens_and_comes_back(both) -> None:
    reference, stock = both
    for text in TEXTS:
        assert stock(text).input_ids == reference.encode(text)
        assert stock.decode(stock(text).input_ids) == reference.decode(reference.encode(text))
    assert (stock.bos_token, stock.eos_token) == ("<s>", "</s>")
    assert stock("</s>").input_ids == [stock.eos_token_id]


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.sampled_from("the skyblu 12\n\t▁ü你☘\u3000"), max_size=40))
def test_any_text_has_the_same_tokens(both, text: str) -> None:
    reference, stock = both
    assert stock(text).input_ids == reference.encode(text)
