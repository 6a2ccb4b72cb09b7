"""RULER's words: the list of 6.2 million keys that is never written."""

import sys

import pytest
from hypothesis import given, strategies as st

from skipwise.data.ruler.sources import Pairs, common_words, key_words
from skipwise.errors import RecipeError

TEXTS = st.lists(st.text(alphabet="ab -'z", min_size=1, max_size=4), max_size=6)


def written(adjectives, nouns) -> list[str]:
    return sorted({f"{adjective}-{noun}" for adjective in adjectives for noun in nouns})


@given(adjectives=TEXTS, nouns=TEXTS)
def test_pairs_are_the_sorted_list(adjectives, nouns) -> None:
    assert list(Pairs(adjectives, nouns)) == written(adjectives, nouns)
    assert len(Pairs(adjectives, nouns)) == len(written(adjectives, nouns))


def test_the_words_are_wonderwords() -> None:
    assert len(common_words()) == len(set(common_words())) == 8166
    assert len(key_words()) == 6_171_620


def test_without_wonderwords_the_package_to_install_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wonderwords", None)
    with pytest.raises(RecipeError, match="wonderwords"):
        key_words.__wrapped__()
