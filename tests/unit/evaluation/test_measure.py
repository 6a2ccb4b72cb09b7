"""Which requests are measured, what is kept, and which errors are explained; time and memory."""

from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from transformers import LlamaConfig

from skipwise.errors import EvaluationError
from skipwise.evaluation.measure import (
    Workload,
    answered,
    measure,
    measuring_seconds,
    missing,
    planned,
    require_memory,
    too_long,
    workloads,
)
from skipwise.evaluation.perplexity import sliding_perplexity
from skipwise.evaluation.plan import Readings, plan_prompts, plan_readings
from skipwise.extend import _measure_step
from skipwise.model.cost import ForwardCost, Speed, token_bytes
from skipwise.recipes.loading import load_recipe
from skipwise.results.records import ReadingRecord, append_record, read_records
from skipwise.training.trainer import _memory_errors
from tests.tiny import byte_tokenizer, llama
from tests.unit.evaluation.test_plan import ASKED, MODEL, READ, TEXT, keys, text_of

QUIET = Console(quiet=True)
COST, SPEED = ForwardCost(linear=100.0, output=50.0, pair=2.0), Speed(linear=10.0, attention=20.0)


def batches_of(*texts) -> list:
    return [*plan_readings(READ, MODEL, texts or [TEXT]), *plan_prompts(ASKED, MODEL, byte_tokenizer(), QUIET)]


def broken(error: Exception):
    """Make a batch at 64 tokens whose first answer raises ``error``."""

    class Broken(Readings):
        def answers(self, model, on_progress=None):
            raise error
            yield

    [batch, *_] = plan_readings(READ, MODEL, [TEXT], [64])
    return Broken(batch.requests, batch.documents)


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 40])
def test_shards_cover_every_request_once_and_evenly(parts) -> None:
    batches = batches_of(text_of(95, 90, 80, 70))
    shards = [keys(missing(batches, set(), (part, parts))) for part in range(1, parts + 1)]
    assert sorted(chain.from_iterable(shards)) == sorted(keys(batches))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_every_request_gets_the_record_of_its_key() -> None:
    model, batches = llama(512), batches_of()
    made: list = []
    measure(model, batches, QUIET, made.append)
    assert sorted(r.key for r in made) == sorted(keys(batches))
    assert not model.lm_head._forward_hooks
    for record in (r for r in made if isinstance(r, ReadingRecord)):
        tokens = next(d.tokens for d in TEXT.documents if d.document == record.document)
        tokens = tokens[record.begin :][:40] if record.mode == "segment" else tokens
        whole = sliding_perplexity(model, [tokens], window=record.window, stride=min(record.stride, record.window))
        assert sum(record.nll) == pytest.approx(whole.nll, rel=1e-4)
        assert record.tokens == len(tokens) - 1


def test_existing_records_are_not_measured_again(tmp_path) -> None:
    path, loads = tmp_path / "results.jsonl", []

    def load():
        loads.append(1)
        return llama(512)

    batches = batches_of()
    first = answered(load, batches, path, QUIET)
    assert [r.key for r in first] == keys(batches)
    assert answered(load, batches, path, QUIET) == first
    records = read_records(path)
    path.unlink()
    append_record(path, *records[:4])
    answered(load, batches, path, QUIET)
    assert read_records(path)[:4] == records[:4]
    assert {r.key for r in read_records(path)} == {r.key for r in records}
    assert len(read_records(path)) == len(records)
    assert loads == [1, 1]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_too_little_memory_is_explained(error: Exception) -> None:
    with pytest.raises(EvaluationError, match="out of memory measuring m at 64 tokens"):
        measure(llama(), [broken(error)], QUIET, print)


def test_too_little_memory_at_a_step_is_not_that_of_training(tmp_path) -> None:
    trainer, run = SimpleNamespace(micro_batch=(4, 8)), SimpleNamespace(results=tmp_path / "results.jsonl")
    batch = broken(torch.OutOfMemoryError("CUDA"))
    batch = replace(batch, requests=[replace(request, step=2) for request in batch.requests])
    evaluation = SimpleNamespace(step_batches=lambda step: [batch])
    with pytest.raises(EvaluationError, match=r"evaluation\.steps"), _memory_errors(trainer):
        _measure_step(evaluation, run, llama(), 2)


def test_lengths_that_no_memory_holds_are_refused(monkeypatch) -> None:
    batches = batches_of()
    monkeypatch.setattr("skipwise.evaluation.measure.machine_memory", lambda device: 1000)
    with pytest.raises(EvaluationError, match="at most 0 tokens may fit"):
        require_memory(workloads(batches), LlamaConfig(), 4, 0, torch.device("cpu"))
    config = LlamaConfig(num_hidden_layers=1)
    parts = [Workload("windows", n, n) for n in (64, 128)]
    each = token_bytes(config, 2, cached=False)
    assert "at most 100 tokens" in too_long(parts, config, 2, 1000, 1000 + 100 * each)
    assert too_long(parts, config, 2, 1000, 1000 + 128 * each) == ""
    prompts = [replace(part, scored=False) for part in parts]
    assert too_long(prompts, config, 2, 1000, 1000 + 128 * each)  # the KV cache


def test_seconds_are_tokens_times_operations() -> None:
    parts = [*workloads(batches_of())[:1], Workload("passkey prompts", 64, 3 * 64, scored=False)]
    assert measuring_seconds([*parts, parts[1]], COST, SPEED) == {
        "windows of 32 tokens": pytest.approx(parts[0].tokens * (150 / 10 + 2 * 16 / 20)),
        "passkey prompts of 64 tokens": pytest.approx(2 * 3 * 64 * (100 / 10 + 2 * 32 / 20)),
    }


def test_a_recipes_workload_is_planned_before_its_texts_are_known() -> None:
    changes: dict[str, object] = {
        "evaluation.windows": [64, 128],
        "evaluation.stride": 32,
        "evaluation.documents": 3,
        "evaluation.tokens_per_document": 128,
        "evaluation.prompt_trials": 5,
        "evaluation.prompt_lengths": [128],
        "evaluation.segment_lengths": [64],
        "evaluation.segments": 7,
        "evaluation.arms": ["original", "trained"],
        "evaluation.other": False,
    }

    def tokens(**more: object) -> dict[str, int]:
        totals: dict[str, int] = {}
        for part in planned(load_recipe(None, changes | {f"evaluation.{k}": v for k, v in more.items()}), 64, 128):
            totals[str(part)] = totals.get(str(part), 0) + part.tokens
        return totals

    windows, segments = 2 * 3 * 3 * 64, 2 * 7 * 64  # two arms, three documents, three windows of each
    plain = {
        "windows of 64 tokens": windows + segments,
        "windows of 128 tokens": 2 * 3 * 128,
        "passkey prompts of 128 tokens": 2 * 5 * 128,
    }
    assert tokens() == plain
    assert tokens(other=True)["windows of 64 tokens"] == windows + segments + 2 * 3 * 32 * 64
    assert tokens(windows=[128])["windows of 64 tokens"] == windows // 2 + segments  # the original's own window
    stepped = load_recipe(
        None, changes | {"evaluation.steps": [5], "evaluation.keep": "best", "training.max_steps": 10}
    )
    more = sum(part.tokens for part in planned(stepped, 64, 128)) - sum(plain.values())
    assert more == 2 * 3 * 128 + 2 * 7 * 128  # step 5 and the last
