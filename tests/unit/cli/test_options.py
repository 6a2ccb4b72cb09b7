"""Values of options, as people write them."""

import pytest

from skipwise.cli.options import read_lengths
from skipwise.errors import RecipeError


@pytest.mark.parametrize(
    "text", ["2,048", "8,192", "16,384", "32,768", "65,536,131,072", "98,304", "2k,4,096", "128,000"]
)
def test_a_length_with_a_separator_of_thousands_is_no_list_of_two(text: str) -> None:
    with pytest.raises(RecipeError, match=rf"'{text}' is no list of lengths: .*as 2048,4096 or 2k,4k"):
        read_lengths(text)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("64,128,256", [64, 128, 256]),
        ("64,512", [64, 512]),
        ("192,512,1k", [192, 512, 1024]),
        ("2k, 4096", [2048, 4096]),
        ("64,400", [64, 400]),
        ("512", [512]),
        (None, []),
    ],
)
def test_a_list_of_lengths(text: str | None, lengths: list[int]) -> None:
    assert read_lengths(text) == lengths
