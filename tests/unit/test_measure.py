"""Measurements: what identifies them, and what is said when memory is short."""

import io

import pytest
import torch
from rich.console import Console

from skipwise.errors import EvaluationError
from skipwise.measure import Measurement, identity, measure, passkey_measurement, perplexity_measurement
from tests.tiny import byte_tokenizer, llama

DOCUMENT = torch.arange(90).numpy() % 250


def test_a_record_has_the_identity_of_its_measurement() -> None:
    records = []
    plan = [
        perplexity_measurement("pose", [DOCUMENT], 32, 16, "float32", "x"),
        passkey_measurement("pose", byte_tokenizer(), 400, 1, 0, "float32"),
    ]
    measure(llama(512), plan, "pose", Console(file=io.StringIO()), records.append)
    assert [identity(record) for record in records] == [m.identity for m in plan]
    assert records[0].tokens == 89


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_want_of_memory_is_explained(error: Exception) -> None:
    def run(model, on_progress):
        raise error

    plan = [Measurement(("perplexity", "pose", 131072), 1, run)]
    with pytest.raises(EvaluationError, match=r"of pose at 131,072 tokens: .* is kept\. Lower the windows"):
        measure(llama(), plan, "pose", Console(file=io.StringIO()), print)


def test_other_errors_pass_through() -> None:
    def run(model, on_progress):
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        measure(llama(), [Measurement(("a", "b", 1), 1, run)], "x", Console(file=io.StringIO()), print)
