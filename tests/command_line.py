"""The commands as users run them, in this process."""

import sys
from collections.abc import Callable

import pytest

from skipwise.cli import main


def run(monkeypatch: pytest.MonkeyPatch, *words: object, program: str = "skipwise", main: Callable = main) -> None:
    """Run a command; what it refuses is a SystemExit."""
    monkeypatch.setattr(sys, "argv", [program, *map(str, words)])
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


def refused(monkeypatch, capsys, *words: object, **how: object) -> str:
    """The message of a refused command; a traceback fails the test."""
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, *words, **how)
    assert end.value.code == 1
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    _, prefix, message = printed.partition("skipwise: ")
    assert prefix
    return " ".join(message.split())
