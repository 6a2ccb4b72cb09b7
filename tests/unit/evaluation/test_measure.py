"""Which requests are measured, what is kept, and which errors are explained; time and memory."""

from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from transformers import LlamaConfig

from skipwise.errors import EvaluationError
from skipwise.evaluation.measure import Workload, answered, measure, measuring_seconds, missing, planned, too_long
from skipwise.evaluation.perplexity import sliding_perplexity
from skipwise.evaluation.plan import Readings, plan_prompts, plan_readings
from skipwise.extend import _measure_step
from skipwise.model.cost import token_bytes
from skipwise.model.forward_cost import ForwardCost, Speed
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


@pytest.mark.parametrize("parts", [1, 3, 40])
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


def test_too_little_memory_is_of_the_evaluation_and_not_of_the_training_around_it(tmp_path) -> None:
    batch = broken(torch.OutOfMemoryError("CUDA"))
    with pytest.raises(EvaluationError):
        measure(llama(), [batch], QUIET, print)
    trainer, run = SimpleNamespace(micro_batch=(4, 8)), SimpleNamespace(results=tmp_path / "results.jsonl")
    batch = replace(batch, requests=[replace(request, step=2) for request in batch.requests])
    evaluation = SimpleNamespace(step_batches=lambda step: [batch])
    with pytest.raises(EvaluationError), _memory_errors(trainer):
        _measure_step(evaluation, run, llama(), 2)


def test_a_recipes_workload_is_planned_before_its_texts_are_known() -> None:
    settings: dict[str, object] = {"windows": [64, 128], "stride": 32, "documents": 3, "tokens_per_document": 128}
    settings |= {"prompt_trials": 5, "prompt_lengths": [128], "segment_lengths": [64], "segments": 7}
    settings |= {"arms": ["original", "trained"], "other": False}
    changes = {f"evaluation.{key}": value for key, value in settings.items()}
    parts = planned(load_recipe(None, changes), 64, 128)
    totals = {name: sum(part.tokens for part in parts if str(part) == name) for name in map(str, parts)}
    assert totals == {  # two arms, three documents, three windows of each
        "windows of 64 tokens": 2 * 3 * 3 * 64 + 2 * 7 * 64,
        "windows of 128 tokens": 2 * 3 * 128,
        "passkey prompts of 128 tokens": 2 * 5 * 128,
    }
    stepped = {**changes, "evaluation.steps": [5], "evaluation.keep": "best", "training.max_steps": 10}
    more = sum(part.tokens for part in planned(load_recipe(None, stepped), 64, 128)) - sum(totals.values())
    assert more == 2 * 3 * 128 + 2 * 7 * 128  # step 5 and the last
    alone = [Workload("windows", 32, 320), Workload("passkey prompts", 64, 3 * 64, scored=False)]
    assert measuring_seconds(alone, COST, SPEED) == {
        "windows of 32 tokens": pytest.approx(320 * (150 / 10 + 2 * 16 / 20)),
        "passkey prompts of 64 tokens": pytest.approx(3 * 64 * (100 / 10 + 2 * 32 / 20)),
    }


def test_lengths_that_no_memory_holds_are_refused(monkeypatch) -> None:
    batches = batches_of()
    monkeypatch.setattr("skipwise.evaluation.measure.machine_memory", lambda device: 1000)
    with pytest.raises(EvaluationError):
        measure(llama(512), batches, QUIET, print)
    config = LlamaConfig(num_hidden_layers=1)
    parts = [Workload("windows", n, n) for n in (64, 128)]
    each = token_bytes(config, 2, cached=False)
    assert too_long(parts, config, 2, 1000, 1000 + 100 * each)
    assert too_long(parts, config, 2, 1000, 1000 + 128 * each) == ""
    prompts = [replace(part, scored=False) for part in parts]
    assert too_long(prompts, config, 2, 1000, 1000 + 128 * each)  # the KV cache
