import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipwise.errors import RecipeError
from skipwise.method.lengths import format_length, parse_length


@pytest.mark.parametrize(
    ("written", "tokens"),
    [
        (2048, 2048),
        ("2048", 2048),
        ("2,048", 2048),
        ("2_048", 2048),
        ("2k", 2048),
        (" 2K ", 2048),
        ("1,048,576", 2**20),
        ("1.5k", 1536),
        ("128k", 131072),
        (1000.0, 1000),
        ("1e3", 1000),
    ],
)
def test_reads_what_people_write(written: int | str, tokens: int) -> None:
    assert parse_length(written) == tokens


@pytest.mark.parametrize(
    "wrong", [0, -1, "-2k", "1.5", "1.1k", "2x", "k", "", "nan", "inf", "two thousand", 2**40, "1,5k", "2,04", "2,0480"]
)
def test_message_has_value_rule_and_way_out(wrong: int | str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_length(wrong)
    assert repr(wrong) in str(caught.value)
    assert "positive number of tokens" in str(caught.value)
    assert "2048 or 2k" in str(caught.value)


@given(st.integers(1, 2**40 - 1))
def test_reads_back_what_it_writes(tokens: int) -> None:
    assert parse_length(format_length(tokens)) == tokens


def test_writes_k_only_where_it_is_exact() -> None:
    assert [format_length(n) for n in (256, 1000, 1024, 2048, 2049)] == ["256", "1000", "1k", "2k", "2049"]
