"""Records of skipwise 0.1 say the same when they are read today; nothing can be appended to them."""

import json
import math
from pathlib import Path

import pytest

from skipwise.errors import RunError
from skipwise.results.records import BenchmarkRecord, CostRecord, ReadingRecord, TrainingRecord
from skipwise.results.results_file import append_record, drop_cut_off_record, read_records, require_results
from skipwise.results.statistics import found, loss, perplexity

# Real lines of version 0.1; long lists are cut to their first items.
TRAINING = """{"schema": 1, "kind": "training", "arm": "full", "step": 10, "loss": 2.8817, "learning_rate": 1e-05, \
"grad_norm": 1.6, "tokens": 81920, "tokens_per_second": 9481.6}"""
PERPLEXITY = """{"schema": 1, "kind": "perplexity", "arm": "full", "window": 256, "stride": 128, "documents": 4, \
"tokens": 16380, "nll": 39363.690810631015, "precision": "bf16", "seconds": 0.572, "data": "modules"}"""
STEP = """{"schema": 1, "kind": "perplexity-by-step", "arm": "full", "step": 10, "window": 2048, "stride": 128, \
"documents": 4, "tokens": 16380, "nll": 41576.10176208581, "data": "modules"}"""
PASSKEY = """{"schema": 1, "kind": "passkey", "arm": "cream", "length": 2048, "seed": 0, \
"depths": [0.906, 0.025, 0.992], "prompt_tokens": [2040, 2041, 2041], "hits": [true, false, true], "seconds": 3.0, \
"answers": ["98178", "26900", "71397."]}"""
POSITIONS = """{"schema": 1, "kind": "by-position", "arm": "full", "length": 2048, "data": "modules", \
"edges": [1, 64, 128, 256, 512, 1024, 2048], "documents": ["subprocess.py", "enum.py", "subprocess.py"], \
"nll": [[339.3343, 381.495, 702.3394, 1462.6226, 2943.9519, 5287.3242], \
[324.6433, 332.6287, 696.4867, 1382.7525, 2619.3027, 4904.1297], \
[405.6967, 384.3514, 689.8111, 1231.388, 2460.9951, 4943.9978]], \
"hits": [[9, 8, 7, 6, 5, 4], [1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 2, 2]], "precision": "bf16", "seconds": 6.0}"""
READING = """{"schema": 1, "kind": "reading", "arm": "mine", "data": "text", "document": "a.py", "window": 64, \
"stride": 32, "edges": [1, 16, 64], "nll": [40.5, 100.25], "hits": [3, 9], "precision": "float32", "seconds": 0.1, \
"key": "0123456789abcdef"}"""
TRIAL = """{"schema": 1, "kind": "trial", "arm": "mine", "task": "lines", "length": 512, "seed": 1, "trial": 7, \
"depth": 0.25, "prompt_tokens": 500, "hit": true, "answer": "12345", "precision": "float32", "seconds": 0.2, \
"key": "fedcba9876543210"}"""
COST = """{"schema": 1, "kind": "cost", "arm": "pose", "target": 512, "window": 256, "examples": 2, \
"step_seconds": [0.31548, 0.09593], "peak_bytes": 623906816, "base_bytes": 491642880, "device": "cpu", \
"key": "f053302b2b45"}"""
BENCHMARK = """{"schema": 1, "kind": "benchmark", "arm": "mine", "task": "boolq", "metric": "acc", "fewshot": 0, \
"target": 512, "limit": null, "samples": 40, "value": 0.5, "standard_error": 0.08, "precision": "float32", \
"seconds": 1.0, "harness": "0.4.13"}"""
EVERY_KIND = [TRAINING, PERPLEXITY, STEP, PASSKEY, POSITIONS, READING, TRIAL, COST, BENCHMARK]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def read(path: Path, *lines: str) -> list:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return read_records(path)


def test_a_sum_over_documents_gives_the_same_perplexity(path) -> None:
    [record] = read(path, PERPLEXITY)
    assert isinstance(record, ReadingRecord)
    assert (record.arm, record.data, record.window, record.stride) == ("full", "modules", 256, 128)
    assert (record.document, record.tokens, record.step) == ("4 documents", 16380, None)
    assert perplexity([record]).mean == pytest.approx(math.exp(39363.690810631015 / 16380), rel=1e-12)


def test_perplexity_in_training_keeps_its_step(path) -> None:
    [record] = read(path, STEP)
    assert (record.step, record.window, record.precision) == (10, 2048, "")
    assert loss([record]).mean == pytest.approx(41576.10176208581 / 16380, rel=1e-12)


def test_a_list_of_passkeys_becomes_a_record_for_each_prompt(path) -> None:
    records = read(path, PASSKEY)
    assert found(records) == (2, 3)
    assert [(r.trial, r.depth, r.prompt_tokens, r.hit, r.answer) for r in records] == [
        (0, 0.906, 2040, True, "98178"),
        (1, 0.025, 2041, False, "26900"),
        (2, 0.992, 2041, True, "71397."),
    ]
    assert {(r.task, r.length, r.seed, r.depths, r.seconds) for r in records} == {("passkey", 2048, 0, "random", 1)}
    assert len({r.key for r in records}) == 3


def test_passkeys_that_were_stored_without_answers_are_read(path) -> None:
    raw = json.loads(PASSKEY)
    del raw["answers"]
    assert [r.answer for r in read(path, json.dumps(raw))] == ["", "", ""]


def test_losses_by_position_become_a_record_for_each_segment(path) -> None:
    records = read(path, POSITIONS)
    assert [(r.mode, r.document, r.begin, r.window) for r in records] == [
        ("segment", "subprocess.py", 0, 2048),
        ("segment", "enum.py", 0, 2048),
        ("segment", "subprocess.py", 2048, 2048),
    ]
    last = (5287.3242 + 4904.1297 + 4943.9978) / (3 * 1024)
    assert loss(records, 1024).mean == pytest.approx(last, rel=1e-12)
    assert loss(records, 1024, sums="hits").mean == pytest.approx(12 / (3 * 1024))


def test_readings_and_trials_of_an_evaluation_keep_every_field(path) -> None:
    reading, trial = read(path, READING, TRIAL)
    assert (reading.mode, reading.digest, reading.nll, reading.hits) == (
        "sliding",
        "0123456789abcdef",
        [40.5, 100.25],
        [3, 9],
    )
    assert (trial.task, trial.trial, trial.depths, trial.digest, trial.hit) == (
        "lines", 7, "spread", "fedcba9876543210", True
    )  # fmt: skip


def test_other_kinds_are_read_as_they_are(path) -> None:
    training, cost, benchmark = read(path, TRAINING, COST, BENCHMARK)
    assert isinstance(training, TrainingRecord)
    assert isinstance(cost, CostRecord)
    assert cost.key == "f053302b2b45"
    assert isinstance(benchmark, BenchmarkRecord)
    assert (benchmark.samples, benchmark.value, benchmark.digest) == (40, 0.5, "")


@pytest.mark.parametrize("line", EVERY_KIND, ids=lambda line: json.loads(line)["kind"])
def test_nothing_is_appended_to_old_records(path, line) -> None:
    before = f"{line}\n".encode()
    new = read(path, line)[0]
    for use in (require_results, drop_cut_off_record, lambda file: append_record(file, new)):
        with pytest.raises(RunError, match=r"records of skipwise 0\.1 \(schema 1\).*give another --out"):
            use(path)
        assert path.read_bytes() == before


def test_a_missing_field_is_named(path) -> None:
    raw = json.loads(PERPLEXITY)
    del raw["nll"]
    with pytest.raises(RunError, match=r"line 1: not a result record \(it has no 'nll'\)"):
        read(path, json.dumps(raw))
