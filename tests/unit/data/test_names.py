"""Names that a terminal may show: no control characters, and different names stay different."""

import os
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from skipwise.data.names import document_name, printable

NASTY = st.text(st.sampled_from("a\\x1b9u0\x00\x1b\x7f\x9b\n\r\u2028\u202e\udc9b\udcff\ud800é天"))


@given(st.one_of(NASTY, st.text()))
def test_nothing_commands_a_terminal(name):
    shown = document_name(name)
    assert not {"Cc", "Cs", "Zl", "Zp"} & {unicodedata.category(character) for character in shown}
    shown.encode()


@given(NASTY, NASTY)
def test_different_names_stay_different(one, other):
    assert (document_name(one) == document_name(other)) == (one == other)


def test_examples():
    assert document_name("a\x1b[31m.txt") == r"a\x1b[31m.txt"
    assert document_name(r"a\x1b[31m.txt") == r"a\\x1b[31m.txt"
    assert document_name(os.fsdecode(b"n\xff\xc2\x9b.txt")) == r"n\xff\u009b.txt"
    assert document_name("grün 天地 👩‍👩‍👧.txt") == "grün 天地 👩‍👩‍👧.txt"
    assert printable("C:\\texts\n") == "C:\\texts\\x0a"
