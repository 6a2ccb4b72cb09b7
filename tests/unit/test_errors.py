"""What is kept of another library's message, and what it means."""

import pytest
import torch

from skipwise.errors import out_of_memory, reason

CPU_FULL = (
    "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes. "
    "Error code 12 (Cannot allocate memory)"
)


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


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (torch.OutOfMemoryError("CUDA"), True),
        (RuntimeError(CPU_FULL), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 5 GB)"), True),
        (MemoryError(), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("unable to mmap 4096 bytes from file </x/a>: Cannot allocate memory (12)"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 99 bytes."), True),
        (RuntimeError("can't start new thread"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (OSError(2, "No such file or directory: out of memory.txt"), False),
        (RuntimeError("shapes differ"), False),
        (ValueError("a text about being out of memory"), False),
    ],
)
def test_a_want_of_memory_is_known_on_every_device(error: Exception, full: bool) -> None:
    assert out_of_memory(error) is full
