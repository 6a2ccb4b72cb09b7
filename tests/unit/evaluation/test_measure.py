"""Measurements: what identifies them, and what is said when memory is short."""

import io
import math

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import GPT2Config, GPT2LMHeadModel

from skipwise.errors import DataError, EvaluationError, RecipeError
from skipwise.evaluation.measure import (
    Measurement,
    identity,
    measure,
    passkey_measurement,
    perplexity_measurement,
    reading_measurement,
    retrieval_measurement,
)
from skipwise.evaluation.perplexity import sliding_perplexity
from skipwise.evaluation.texts import longest_documents, spread_segments
from skipwise.results.records import PasskeyRecord, PerplexityRecord, tenth_of
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


class Store(list):
    """Stands for a token store of documents of these lengths."""

    def __init__(self, *lengths: int) -> None:
        super().__init__(np.arange(n) for n in lengths)
        self.lengths, self.names = np.array(lengths, dtype=int), [f"d{i}" for i in range(len(lengths))]

    def document(self, i: int) -> np.ndarray:
        return self[i]


def test_the_longest_documents_that_fill_the_window_are_taken_and_cut() -> None:
    said = io.StringIO()
    take = {"most": 2, "console": Console(file=said, width=300)}
    text = longest_documents(Store(9, 50, 30, 70), np.array([0, 1, 2]), windows=[16, 32], limit=40, **take)
    assert (list(map(len, text.documents)), text.names, text.windows) == ([40], ["d1"], [16, 32])
    assert said.getvalue() == ""
    text = longest_documents(
        Store(9, 50, 30, 70), np.array([0, 1, 2]), windows=[64, 8, 20], limit=None, **take
    )
    assert (list(map(len, text.documents)), text.names, text.windows) == ([40, 30], ["d1", "d2"], [8, 20])
    assert (
        "perplexity at 64 tokens is left out: the longest document to measure on, d1, has 50"
        in said.getvalue()
    )


@pytest.mark.parametrize(
    ("lengths", "windows", "limit", "error", "words"),
    [
        (
            (),
            [4],
            None,
            DataError,
            "no document of 0 is left to measure on: raise data.held_out, or give text",
        ),
        ((9, 5), [16, 32], None, DataError, "d0, has 9 tokens and does not fill a window of 16: give longer"),
        (
            (90, 50),
            [16, 32],
            20,
            RecipeError,
            "tokens_per_document 20 must be at least the largest window, 32",
        ),
    ],
)
def test_text_that_cannot_be_measured_on_is_explained(lengths, windows, limit, error, words) -> None:
    with pytest.raises(error, match=words):
        longest_documents(
            Store(*lengths), np.arange(len(lengths)), windows=windows, most=1, limit=limit, console=Console()
        )


def test_another_stride_text_seed_or_number_of_trials_is_another_measurement() -> None:
    perplexity = PerplexityRecord("pose", 32, 16, 1, 9, 1.0, "float32", 1.0, "x")
    passkey = PasskeyRecord("pose", 400, 0, [0.5], [390], [True], 1.0)
    others = [
        PerplexityRecord("pose", 32, 8, 1, 9, 1.0, "float32", 1.0, "x"),
        PerplexityRecord("pose", 32, 16, 1, 9, 1.0, "float32", 1.0, "y"),
        PerplexityRecord("pose", 32, 16, 2, 9, 1.0, "float32", 1.0, "x"),
        PerplexityRecord("pose", 32, 16, 1, 8, 1.0, "float32", 1.0, "x"),
        PerplexityRecord("full", 32, 16, 1, 9, 1.0, "float32", 1.0, "x"),
        PasskeyRecord("pose", 400, 1, [0.5], [390], [True], 1.0),
        PasskeyRecord("pose", 400, 0, [0.5] * 2, [390] * 2, [True] * 2, 1.0),
    ]
    assert len({identity(r) for r in (perplexity, passkey, *others)}) == 9


def failing(error: Exception, length: int) -> list[Measurement]:
    def run(model, on_progress):
        raise error

    return [Measurement(("perplexity", "x", length), 1, run)]


def test_only_positions_beyond_the_models_own_are_called_so() -> None:
    console = Console(file=io.StringIO())
    with pytest.raises(EvaluationError, match="cannot read 64 tokens: its positions end at 32"):
        measure(
            llama(32),
            failing(RuntimeError("CUDA error: device-side assert triggered"), 64),
            "x",
            console,
            print,
        )
    with pytest.raises(RuntimeError, match="shapes differ"):
        measure(llama(32), failing(RuntimeError("shapes differ"), 64), "x", console, print)
    with pytest.raises(IndexError):
        measure(llama(32), failing(IndexError("elsewhere"), 32), "x", console, print)


def test_no_hook_stays_on_the_model() -> None:
    model = llama(512)
    measure(
        model,
        [passkey_measurement("x", byte_tokenizer(), 400, 1, 0, "float32")],
        "x",
        Console(file=io.StringIO()),
        [].append,
    )
    assert not model.lm_head._forward_hooks


def test_segments_are_spread_over_documents_before_any_gives_a_second() -> None:
    store = Store(9, 50, 30, 70)
    names, rows = spread_segments(store, np.array([0, 1, 2, 3]), 20, 5)
    assert names == ["d3", "d1", "d2", "d3", "d1"]
    assert rows.shape == (5, 20)
    np.testing.assert_array_equal(rows[0], store.document(3)[:20])
    np.testing.assert_array_equal(rows[4], store.document(1)[20:40])
    assert len(spread_segments(store, np.array([0, 1, 2, 3]), 20, 99)[0]) == 3 + 2 + 1
    assert spread_segments(store, np.array([2]), 30, 9)[0] == ["d2"]  # exactly as long
    names, rows = spread_segments(store, np.array([0]), 20, 5)
    assert (names, rows.shape) == ([], (0, 20))


def test_every_ten_trials_cover_the_prompt_evenly_and_are_drawn_by_number() -> None:
    model, made = llama(2048), []
    plan = [retrieval_measurement("m", byte_tokenizer(), "passkey", 900, [3, 14, 25, 8], 1, "float32", "w")]
    measure(model, plan, "m", Console(file=io.StringIO()), made.append)
    assert sorted(record.trial for record in made) == [3, 8, 14, 25]
    for record in made:
        assert record.tenth / 10 - 0.03 <= record.depth <= (record.tenth + 1) / 10 + 0.03
        assert identity(record) == ("trial", "m", 900, "passkey", 1, record.trial, "float32", "w")
    assert sorted(tenth_of(trial) for trial in range(10)) == list(range(10))
    assert [tenth_of(trial) for trial in range(4)] == [0, 3, 6, 9]  # a few trials are spread too
    again: list = []
    plan = [retrieval_measurement("m", byte_tokenizer(), "passkey", 900, [25], 1, "float32", "w")]
    measure(model, plan, "m", Console(file=io.StringIO()), again.append)
    [same] = [record for record in made if record.trial == 25]
    assert (again[0].depth, again[0].prompt_tokens, again[0].answer) == (
        same.depth,
        same.prompt_tokens,
        same.answer,
    )


def test_a_reading_is_recorded_document_by_document_as_it_is_made() -> None:
    made: list = []
    documents = {"a": DOCUMENT, "b": DOCUMENT[::-1].copy()}
    plan = [reading_measurement("m", documents, 32, 16, [1, 30, 90], "float32", "x", "w")]
    measure(llama(512), plan, "m", Console(file=io.StringIO()), made.append)
    assert [record.document for record in made] == ["a", "b"]
    for record, document in zip(made, documents.values(), strict=True):
        whole = sliding_perplexity(llama(512), [document], window=32, stride=16)
        assert sum(record.nll) == pytest.approx(whole.nll, rel=1e-5)
