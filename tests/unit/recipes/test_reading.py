"""What YAML a recipe may hold, and how the rest is refused, with the place."""

import math
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from skipwise.errors import RecipeError
from skipwise.recipes.loading import read_file, read_text, to_text

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
MERGES = "a0: &a0 {k: 1}\n" + "".join(
    f"a{i}: &a{i} {{'<<': [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed: 1\nmodel: x\nseed: 2\n", "key seed stands twice, in line 1 and again in line 3; leave one of them out"),
        ("data: {source: x, source: y}\n", "key source stands twice, in line 1"),
        ("training:\n  max_steps: 1\n  'max_steps': 2\n", "key max_steps stands twice, in line 2 and again in line 3"),
        (BOMB, "more than 10,000 values"),
        (MERGES, "nested deeper than 20 levels"),
        ("a: &a [*a]\n", "an alias stands for itself in line 1"),
        ("a: &a {b: *a}\n", "an alias stands for itself in line 1"),
        ("[" * 5000, "nested deeper than 20 levels"),
        ("[" * 30 + "]" * 30, "nested deeper than 20 levels"),
        ("seed: 1\nx: !!python/object/apply:os.system ['true']\n", "in line 2"),
        ("seed: 1\n\tx: 1\n", "cannot start any token in line 2"),
        ("a: 1\n---\nb: 2\n", "but found another document in line 2"),
        ("a: \x00", "special characters are not allowed"),
        ("2020-13-45", "month must be in 1..12"),
        ("a: !!float ''", "a tag (!!) does not fit its value"),
        ("a: !!bool x", "a tag (!!) does not fit its value"),
        ("a: !!timestamp x", "a tag (!!) does not fit its value"),
    ],
)
def test_yaml_that_no_recipe_needs_is_refused(text: str, said: str) -> None:
    """Without the guard the two that repeat aliases would be expanded to 9 to the 11th values, and never end."""
    with pytest.raises(ValueError, match=re.escape(said)):
        read_text(text)


def test_an_alias_may_stand_for_a_value_and_merges_may_be_overridden() -> None:
    assert read_text("a: &a [1k, 2e3]\nb: *a\n") == {"a": ["1k", 2000.0], "b": ["1k", 2000.0]}
    assert read_text("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  x: 3\n")["b"] == {"x": 3, "y": 2}
    assert read_text("") is None


def test_numbers_are_decimal() -> None:
    """In YAML 1.1 the texts are 128, 90, 16 and 90.5."""
    numbers = read_text("[200, 1_000, -3, 0, 1e-5, 2.5, .5, 1.e3, -.inf]")
    assert numbers == [200, 1000, -3, 0, 1e-5, 2.5, 0.5, 1000.0, -math.inf]
    assert [type(number) for number in numbers] == [int] * 4 + [float] * 5
    texts = ["0200", "1:30", "0x10", "1:30.5"]
    assert read_text(f"[{', '.join(texts)}]") == texts
    assert yaml.safe_load(to_text(texts)) == texts  # another program reads them as texts too


@given(st.text(alphabet="0123456789+-._eExo: \uff12", max_size=6) | st.integers() | st.floats(allow_nan=False))
@example("-.5")
@example("1\uff12")
def test_what_is_written_is_read_again(value: object) -> None:
    assert read_text(to_text([value])) == [value]


def test_a_file_that_is_no_recipe_says_why(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"x" * (2**20 + 1))
    with pytest.raises(
        RecipeError, match=r"r.yaml has 1,048,577 bytes, and a recipe at most 1,048,576; .* data.source"
    ):
        read_file(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match=r"r.yaml is not YAML: .*; correct the file"):
        read_file(path)
    with pytest.raises(RecipeError, match="cannot be read: Is a directory"):
        read_file(tmp_path)
