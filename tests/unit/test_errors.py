"""What is kept of another library's message, what it means, and how missing packages are named."""

import errno
import importlib.metadata

import pytest
import torch

from skipwise.errors import ModelError, library_errors, out_of_memory, out_of_room, pip_install, reason


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("Error for field 'x':\n    TypeError: it is 3\nmore", "Error for field 'x': TypeError: it is 3"),
        ("Old file. Set weights_only=False. Try again", "Old file. Try again"),
        ("x" * 400, "x" * 300 + " ..."),
    ],
)
def test_the_reason_of_another_library_is_a_part_of_a_sentence(message, kept) -> None:
    assert reason(ValueError(message)) == kept


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (torch.OutOfMemoryError("CUDA"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."), True),
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (OSError(2, "No such file or directory: out of memory.txt"), False),
        (ValueError("a text about being out of memory"), False),
    ],
)
def test_a_want_of_memory_is_known_on_every_device(error: Exception, full: bool) -> None:
    assert out_of_memory(error) is full


def test_errors_of_a_library_are_named_but_lack_of_memory_and_room() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    for error, kind in ((KeyError("a"), ModelError), (MemoryError(), MemoryError), (full, OSError)):
        with pytest.raises(kind), library_errors(ModelError, "a model", "Choose another"):
            raise error


def test_the_packages_of_an_extra_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ["torch>=2.9", "peft>=0.18; extra == 'qlora'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: [*needs, "lm-eval; extra == 'benchmarks'"])
    assert pip_install("qlora", "benchmarks") == "pip install 'peft>=0.18' 'lm-eval'"


@pytest.mark.parametrize(
    "words", ["[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0", "basic_ios::clear: iostream error"]
)
def test_a_stream_of_torch_that_ends_is_a_full_disk(words: str) -> None:
    assert out_of_room(RuntimeError(words))
    assert not out_of_room(ValueError(words))
