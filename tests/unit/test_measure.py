"""Measurements: what identifies them, and what is said when memory is short."""

import io
import math

import pytest
import torch
from rich.console import Console
from transformers import GPT2Config, GPT2LMHeadModel

from skipwise.errors import EvaluationError, RecipeError, RunError
from skipwise.measure import (
    Measurement,
    identity,
    measure,
    passkey_command,
    passkey_measurement,
    perplexity_command,
    perplexity_measurement,
)
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


def test_positions_that_a_model_lacks_are_explained() -> None:
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=257, n_positions=64, n_embd=16, n_layer=1, n_head=2))
    plan = [
        perplexity_measurement("gpt2", [DOCUMENT], 80, 16, "float32", "x"),
        passkey_measurement("gpt2", byte_tokenizer(), 400, 1, 0, "float32"),
    ]
    for measurement, length in zip(plan, (80, 400), strict=True):
        with pytest.raises(
            EvaluationError, match=rf"gpt2 cannot read {length} tokens: its positions end at 64 \(config"
        ):
            measure(gpt2, [measurement], "gpt2", Console(file=io.StringIO()), print)


def test_weights_that_are_not_numbers_are_refused() -> None:
    model = llama(512)
    torch.nn.init.constant_(model.lm_head.weight, math.nan)
    plan = [
        perplexity_measurement("pose", [DOCUMENT], 32, 16, "float32", "x"),
        passkey_measurement("pose", byte_tokenizer(), 400, 1, 0, "float32"),
    ]
    for measurement in plan:
        with pytest.raises(EvaluationError, match="logits are not finite measuring pose"):
            measure(model, [measurement], "pose", Console(file=io.StringIO()), print)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("documents", 0, "documents 0 must be at least 1"),
        ("documents", -1, "documents -1 must be at least 1"),
        ("stride", 1000, "stride 1000 .*window"),
        (
            "precision",
            "bf61",
            r"precision 'bf61' is unknown \(did you mean bf16\?\); choose one of auto, bf16",
        ),
    ],
)
def test_settings_of_perplexity_are_refused_before_a_model_is_sought(setting, value, message) -> None:
    settings = {"stride": 16, "documents": 1, "precision": "auto", setting: value}
    with pytest.raises(RecipeError, match=message):
        perplexity_command("nowhere", "x", [32], out=None, console=Console(), **settings)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("trials", 0, "trials 0 must be at least 1"),
        ("seed", -1, "seed -1 must be at least 0"),
        ("precision", "foo", "precision 'foo' is unknown; choose one of auto, bf16, fp16, float32"),
    ],
)
def test_settings_of_passkey_are_refused_before_a_model_is_sought(setting, value, message) -> None:
    settings = {"trials": 1, "seed": 0, "precision": "auto", setting: value}
    with pytest.raises(RecipeError, match=message):
        passkey_command("nowhere", [400], out=None, console=Console(), **settings)


def test_a_foreign_out_file_is_refused_before_a_model_is_sought(tmp_path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("mine")
    with pytest.raises(RunError, match="holds no results of skipwise"):
        passkey_command("nowhere", [400], 1, 0, "auto", notes, Console())
    with pytest.raises(RunError, match="holds no results of skipwise"):
        perplexity_command("nowhere", "x", [32], 16, 1, "auto", notes, Console())
    assert notes.read_text() == "mine"
