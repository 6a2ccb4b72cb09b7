import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipwise.errors import RecipeError
from skipwise.method.lengths import format_length, parse_length


@pytest.mark.parametrize(
    ("written", "tokens"),
    [(2048, 2048), ("2,048", 2048), (" 2K ", 2048), ("1,048,576", 2**20), ("1.5k", 1536), (1000.0, 1000)],
)
def test_reads_what_people_write(written: int | str, tokens: int) -> None:
    assert parse_length(written) == tokens


@pytest.mark.parametrize("wrong", [0, "-2k", "1.5", "1.1k", "2x", "", "nan", 2**40, "1,5k", "2,04"])
def test_what_is_no_length_is_refused(wrong: int | str) -> None:
    with pytest.raises(RecipeError):
        parse_length(wrong)


@given(st.integers(1, 2**40 - 1))
def test_reads_back_what_it_writes(tokens: int) -> None:
    assert parse_length(format_length(tokens)) == tokens
    assert format_length(tokens).endswith("k") is (tokens % 1024 == 0)
