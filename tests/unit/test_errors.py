"""What is kept of another library's message."""

import pytest

from skipwise.errors import reason


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        (
            "Validation error for field 'x':\n    TypeError: it is 3\nmore",
            "Validation error for field 'x': TypeError: it is 3",
        ),
        ("Old file. Set weights_only=False. Try again", "Old file. Try again"),
        ("Pass trust_remote_code=True", "ValueError"),
        ("Shapes differ. For details look at the above report!", "Shapes differ"),
        ("", "ValueError"),
        ("heading:", "heading"),
        ("it is no (<class 'int'>, <class 'torch.dtype'>)", "it is no (int, torch.dtype)"),
        ("x" * 400, "x" * 300 + " ..."),
    ],
)
def test_the_reason_of_another_library_is_a_part_of_a_sentence(message, kept) -> None:
    assert reason(ValueError(message)) == kept
